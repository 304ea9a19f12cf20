"""Expected failures, such as a port already in use, which are printed as one line instead of a traceback.

`run` raises them like any other error. If such an error is not caught, the program prints that line and exits with
status 1.
"""

from __future__ import annotations

import os
import sys
import traceback
import weakref
from typing import TYPE_CHECKING, Final

from lifecycle._util import error_text, message_of, program_name, with_stderr
from lifecycle.errors import BridgeError, JournalError, RestartLimitReached, SourceFailed, UsageError, WorkerFailed

if TYPE_CHECKING:
    from types import CodeType, TracebackType

__all__ = ["is_debugging", "one_line", "print_as_one_line"]

#: Failures caused by the environment rather than by errors in the program.
_EXPECTED: Final = (BridgeError, JournalError, RestartLimitReached, SourceFailed, UsageError, WorkerFailed)

#: The code that raises the KeyError for a missing environment variable.
_ENVIRON: Final = type(os.environ).__getitem__.__code__


def is_debugging() -> bool:
    """Return True if full tracebacks are requested with LIFECYCLE_DEBUG."""
    return os.environ.get("LIFECYCLE_DEBUG", "0") not in ("", "0")


def one_line(error: BaseException) -> str | None:
    """Return the line to print for an expected failure, or None for a bug in the program, which needs a traceback.

    If a process failed, the last lines of its stderr follow.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return message_of(error)
    if isinstance(error, KeyError) and _was_raised_by(error, _ENVIRON):
        return f"the environment variable {error.args[0]} is not set"
    if not isinstance(error, _EXPECTED):
        return None
    cause = error.__cause__
    if cause is not None and not isinstance(error, RestartLimitReached) and one_line(cause) is None:
        return None
    return with_stderr(error_text(error), error)


def _was_raised_by(error: BaseException, code: CodeType) -> bool:
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1] is code


class _Mark:
    """An object that lives as long as the error to which it is attached. Most errors do not support weak references."""

    __slots__ = ("__weakref__",)


class _OneLineHook:
    """A `sys.excepthook` that prints marked errors as one line. It removes itself once none of them exists any more."""

    def __init__(self) -> None:
        self._marks: set[weakref.ref[_Mark]] = set()

    def add(self, error: BaseException) -> None:
        """Print ``error`` as one line if it ends the program."""
        mark = error.__dict__[_MARK] = _Mark()
        self._marks.add(weakref.ref(mark, self._forget))
        sys.excepthook = self

    def _forget(self, mark: weakref.ref[_Mark]) -> None:
        self._marks.discard(mark)
        if not self._marks and sys.excepthook is self:
            sys.excepthook = sys.__excepthook__

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        line = one_line(error) if _MARK in error.__dict__ else None
        if line is None:
            sys.__excepthook__(kind, error, trace)
        elif sys.stderr is not None:
            sys.stderr.write(f"{program_name()}: {line}\n")


#: The name under which an error holds its `_Mark`.
_MARK: Final = "_lifecycle_one_line"

_hook: Final = _OneLineHook()


def print_as_one_line(error: BaseException) -> None:
    """Print an expected failure as one line if it ends the program.

    This replaces ``sys.excepthook`` until the error has been caught and released. It has no effect if the program sets
    its own hook, or LIFECYCLE_DEBUG is set.
    """
    if sys.excepthook in (sys.__excepthook__, _hook) and not is_debugging():
        _hook.add(error)
