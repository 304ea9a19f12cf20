"""What the library logs while a command runs, said as everything else is that the command says: as text, or as JSON."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lifecycle.cli.output import PREFIX, Console, stderr_console, without_output, write

if TYPE_CHECKING:
    from collections.abc import Generator

    from lifecycle.cli.options import LogFormat

__all__ = ["JsonConsole", "console_for", "json_line", "logging_to", "print_failure", "program_logging"]


#: Logs at level info whom it refused: who sets up a sender looks here for what is wrong.
_SOURCES = "lifecycle.sources"

#: Who speaks for a command.
_OURSELVES = "lifecycle.cli"


@dataclass(frozen=True, slots=True)
class JsonConsole(Console):
    """Prints each message as an object of JSON, as log records are; see `lifecycle.observe.JsonFormatter`."""

    def info(self, text: str) -> None:
        """What happens."""
        self.tell(_record(logging.INFO, text))

    def success(self, text: str) -> None:
        """What was wished for happened."""
        self.tell(_record(logging.INFO, text))

    def warning(self, text: str) -> None:
        """What the reader may want to change."""
        self.tell(_record(logging.WARNING, text))

    def error(self, text: str) -> None:
        """What went wrong."""
        self.tell(_record(logging.ERROR, text))

    def tell(self, record: logging.LogRecord) -> None:
        """A record that was logged."""
        write(self.stream or sys.stderr, _encoded(record))


def console_for(log_format: LogFormat | None, prefix: str = PREFIX) -> Console:
    """Who speaks in that format on standard error."""
    return JsonConsole() if log_format == "json" else stderr_console(prefix)


def print_failure(console: Console, error: BaseException) -> None:
    """Show ``error`` of the user's program whole."""
    if isinstance(console, JsonConsole):
        console.tell(_record(logging.ERROR, str(error), exc_info=(type(error), error, error.__traceback__)))
    else:
        traceback.print_exception(error)


def json_line(text: str, **fields: Any) -> str:
    """One line of JSON about what a process wrote."""
    return _encoded(_record(logging.INFO, text, **fields))


def _encoded(record: logging.LogRecord) -> str:
    from lifecycle.observe.logs import JsonFormatter  # most commands speak to people

    return JsonFormatter().format(record) + "\n"


def _record(level: int, text: str, **fields: Any) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": _OURSELVES, "levelno": level, "levelname": logging.getLevelName(level), "msg": text, **fields}
    )


@contextmanager
def logging_to(console: Console) -> Generator[None]:
    """Within the block ``voice`` says what the library logs, from warnings on; and which requests it refuses."""
    logger, sources, handler = logging.getLogger("lifecycle"), logging.getLogger(_SOURCES), _WarningHandler(console)
    propagated, logger.propagate = logger.propagate, False
    level = sources.level
    sources.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        sources.setLevel(level)
        logger.propagate = propagated


@contextmanager
def program_logging(console: Console) -> Generator[None]:
    """Within the block a program of the user's runs here, and ``voice`` says what is logged.

    As JSON that is whatever anybody logs, from level info on, unless the program configures the root logger anew. As
    text it is what the library logs, from warnings on, as long as the program has configured nothing.
    """
    is_machine = isinstance(console, JsonConsole)
    logger = logging.getLogger() if is_machine else logging.getLogger("lifecycle")
    handler = _ConsoleHandler(console) if is_machine else _DefaultHandler(console)
    level = logger.level
    logger.setLevel(logging.INFO if is_machine else level)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _ConsoleHandler(logging.Handler):
    """Lets ``voice`` say what comes."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(self._console, JsonConsole):
            self._console.tell(record)
        else:
            (self._console.error if record.levelno >= logging.ERROR else self._console.warning)(
                without_output(self.format(record))
            )


class _WarningHandler(_ConsoleHandler):
    """Only what somebody should know."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or record.name == _SOURCES


class _DefaultHandler(_ConsoleHandler):
    """Only what somebody should know, and nothing once the program has its own way of logging."""

    def filter(self, record: logging.LogRecord) -> bool:
        is_configured = logging.getLogger().handlers or len(logging.getLogger("lifecycle").handlers) > 1
        return record.levelno >= logging.WARNING and not is_configured
