"""Small helpers for names, messages and the context of running code. They import only cheap modules.

This context does not include the event being handled. To get its delivery, use `lifecycle.control.delivery`.
"""

from __future__ import annotations

import functools
import os.path
import sys
from contextvars import ContextVar

# Importing typing and logging would double the time it takes to import this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from pathlib import Path
    from typing import Any

__all__ = [
    "STDERR",
    "current_flow",
    "current_span",
    "current_worker",
    "error_text",
    "file_mode",
    "mark_logged",
    "message_of",
    "name_of",
    "needs_extra",
    "program_name",
    "reason_of",
    "short_name",
    "stream_handlers",
    "was_logged",
    "with_stderr",
]

#: The name of the worker whose function is running.
current_worker: ContextVar[str] = ContextVar("lifecycle_worker", default="")
#: The ID of the flow whose task is running.
current_flow: ContextVar[str] = ContextVar("lifecycle_flow", default="")
#: The current span, as a W3C ``traceparent``.
current_span: ContextVar[str] = ContextVar("lifecycle_traceparent", default="")

#: The first line of the note that contains the end of a process's stderr.
STDERR = "the end of its stderr:\n"
#: The maximum number of stderr characters to add to a log message. The note and `Exit.stderr` contain more.
_STDERR_SHOWN = 1000

_LOGGED = "_lifecycle_logged"
_NO_MESSAGE = "(its message cannot be read"


def needs_extra(what: str, package: str, extra: str) -> str:
    """Return the message for a missing package: what needs it, and how to install it."""
    return f"{what} needs {package}; install the extra {extra!r}: pip install 'lifecycle-control[{extra}]'"


def file_mode(path: Path) -> int:
    """Return the mode of the file at ``path``, or 0 if there is no file.

    Raises:
        PermissionError: if a parent directory cannot be searched; from Python 3.14, `Path.exists` returns False.
    """
    try:
        return path.stat().st_mode
    except PermissionError:
        raise
    except (OSError, ValueError):
        return 0


def name_of(fn: object) -> str:
    """Return the qualified name of a function, or the class name of a callable object."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None)
    # Some objects return a value for every attribute, and the value can be of any type.
    return name if isinstance(name, str) and name else type(fn).__qualname__


def short_name(fn: object) -> str:
    """Return the last part of `name_of`."""
    return name_of(fn).rpartition(".")[2]


def error_text(error: BaseException) -> str:
    """Return an error's class and its message, if it has one."""
    message = message_of(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def message_of(error: BaseException) -> str:
    """Return an error's message, even if its ``__str__`` raises."""
    try:
        return str(error)
    except Exception as worse:  # noqa: BLE001  # the original error matters, not this one
        return f"{_NO_MESSAGE}: {type(worse).__name__})"


def reason_of(error: BaseException) -> str:
    """Return an error's message. If the message is empty or only a key, include the error's class."""
    message = "" if type(error).__str__ is KeyError.__str__ else message_of(error)
    return message if message and not message.startswith(_NO_MESSAGE) else error_text(error)


def with_stderr(text: str, error: BaseException | None) -> str:
    """Return ``text`` with the last lines of stderr noted in ``error`` or one of its causes, for use in the log."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        for note in getattr(error, "__notes__", ()):
            if isinstance(note, str) and note.startswith(STDERR):
                return f"{text}; {STDERR}{_last_lines(note.removeprefix(STDERR))}"
        seen.add(id(error))
        error = error.__cause__
    return text


def _last_lines(text: str) -> str:
    end = text[-_STDERR_SHOWN:]
    # Drop a partial first line, unless it is the only one.
    whole = end.partition("\n")[2].strip() if len(text) > _STDERR_SHOWN else ""
    return whole or end


def mark_logged(error: BaseException) -> None:
    """Record that ``error`` has been logged, so that code further up does not log it again."""
    vars(error)[_LOGGED] = True


def was_logged(error: BaseException) -> bool:
    """Return whether `mark_logged` was called for ``error``."""
    return _LOGGED in vars(error)


def program_name() -> str:
    """Return the name of this program: the module that ``python -m`` runs, or its file without the suffix."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    # Importing pathlib would double the time it takes to import this module.
    stem, _ = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))  # noqa: PTH119, PTH122
    return stem if stem not in ("", "-", "-c") else "python"


def stream_handlers() -> list[logging.StreamHandler[Any]]:
    """Return this process's log handlers that write to a stream, excluding subclasses such as file handlers."""
    import logging

    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {handler for each in loggers if isinstance(each, logging.Logger) for handler in each.handlers}
    return [handler for handler in handlers if type(handler) is logging.StreamHandler]
