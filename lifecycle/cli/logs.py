"""The messages and log records that commands print, as text or as JSON."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lifecycle.cli.failures import is_debugging, one_line
from lifecycle.cli.output import PREFIX, RED, YELLOW, Console, stderr_console, without_output, write
from lifecycle.workers.model import NOT_RESTARTED

if TYPE_CHECKING:
    from collections.abc import Generator

    from lifecycle.cli.options import LogFormat

__all__ = ["JsonConsole", "console_for", "json_line", "logging_to", "print_failure", "program_logging"]

#: This logger reports rejected requests at level INFO. They help you configure the sender.
_SOURCES = "lifecycle.sources"
_OURSELVES = "lifecycle.cli"
_LEVELS = {YELLOW: logging.WARNING, RED: logging.ERROR}


@dataclass(frozen=True, slots=True)
class JsonConsole(Console):
    """Prints messages as JSON objects, in the format of `lifecycle.observe.JsonFormatter`."""

    def _format(self, text: str, colour: str) -> str:
        return _encode(_record(_LEVELS.get(colour, logging.INFO), text))

    def log(self, record: logging.LogRecord) -> None:
        """Print a log record."""
        write(self.stream or sys.stderr, _encode(record))


def console_for(log_format: LogFormat | None, prefix: str = PREFIX) -> Console:
    """Return a console that prints to standard error, as text or as JSON."""
    return JsonConsole() if log_format == "json" else stderr_console(prefix)


def print_failure(console: Console, error: BaseException) -> None:
    """Print an error raised by the user's program, with a traceback unless it is an expected failure."""
    line = None if is_debugging() else one_line(error)
    if line is not None:
        console.error(line)
    elif isinstance(console, JsonConsole):
        console.log(_record(logging.ERROR, str(error), exc_info=(type(error), error, error.__traceback__)))
    else:
        traceback.print_exception(error)


def json_line(text: str, **fields: Any) -> str:
    """Return a line of output as a JSON log record."""
    return _encode(_record(logging.INFO, text, **fields))


def _encode(record: logging.LogRecord) -> str:
    from lifecycle.observe.logs import JsonFormatter  # imported here because few commands need it

    return JsonFormatter().format(record) + "\n"


def _record(level: int, text: str, **fields: Any) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": _OURSELVES, "levelno": level, "levelname": logging.getLevelName(level), "msg": text, **fields}
    )


@contextmanager
def logging_to(console: Console) -> Generator[None]:
    """Within the block, print the library's warnings and errors, and the requests that it rejects."""
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
    """Print log records while the user's program runs inside the block.

    In JSON format, all records at level INFO and above are printed, unless the program configures the root logger. In
    text format, only the library's warnings and errors are printed, unless the program configures logging.
    """
    is_json = isinstance(console, JsonConsole)
    logger = logging.getLogger() if is_json else logging.getLogger("lifecycle")
    handler = _ConsoleHandler(console) if is_json else _DefaultHandler(console)
    level = logger.level
    logger.setLevel(logging.INFO if is_json else level)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _ConsoleHandler(logging.Handler):
    """Prints log records on a console."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(self._console, JsonConsole):
            self._console.log(record)
        else:
            text = self._text(record)
            (self._console.error if record.levelno >= logging.ERROR else self._console.warning)(text)

    def _text(self, record: logging.LogRecord) -> str:
        return self.format(record)


class _WarningHandler(_ConsoleHandler):
    """Prints warnings, errors and rejected requests. `watch` and `up` print failed commands themselves."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg == NOT_RESTARTED:
            return False
        return record.levelno >= logging.WARNING or record.name == _SOURCES

    def _text(self, record: logging.LogRecord) -> str:
        # The console has already shown the output of each command.
        return without_output(self.format(record))


class _DefaultHandler(_ConsoleHandler):
    """Prints warnings and errors until the program configures logging."""

    def filter(self, record: logging.LogRecord) -> bool:
        is_configured = logging.getLogger().handlers or len(logging.getLogger("lifecycle").handlers) > 1
        return record.levelno >= logging.WARNING and not is_configured
