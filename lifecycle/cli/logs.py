"""What the library logs while a command runs, said as everything else is that the command says: as text, or as JSON."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lifecycle.cli.output import PREFIX, Voice, brief, put, voice

if TYPE_CHECKING:
    from collections.abc import Generator

    from lifecycle.cli.options import LogFormat

__all__ = ["MachineVoice", "configured", "failure_shown", "heard", "json_line", "voice_of"]


#: Logs at level info whom it refused: who sets up a sender looks here for what is wrong.
_SOURCES = "lifecycle.sources"

#: Who speaks for a command.
_OURSELVES = "lifecycle.cli"


@dataclass(frozen=True, slots=True)
class MachineVoice(Voice):
    """Prints each message as an object of JSON, as log records are; see `lifecycle.observe.JsonFormatter`."""

    def say(self, text: str) -> None:
        """What happens."""
        self.tell(_record(logging.INFO, text))

    def good(self, text: str) -> None:
        """What was wished for happened."""
        self.tell(_record(logging.INFO, text))

    def warn(self, text: str) -> None:
        """What the reader may want to change."""
        self.tell(_record(logging.WARNING, text))

    def bad(self, text: str) -> None:
        """What went wrong."""
        self.tell(_record(logging.ERROR, text))

    def tell(self, record: logging.LogRecord) -> None:
        """A record that was logged."""
        put(self.stream or sys.stderr, _encoded(record))


def voice_of(log_format: LogFormat | None, prefix: str = PREFIX) -> Voice:
    """Who speaks in that format on standard error."""
    return MachineVoice() if log_format == "json" else voice(prefix)


def failure_shown(voice: Voice, error: BaseException) -> None:
    """Show ``error`` of the user's program whole."""
    if isinstance(voice, MachineVoice):
        voice.tell(_record(logging.ERROR, str(error), exc_info=(type(error), error, error.__traceback__)))
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
def heard(voice: Voice) -> Generator[None]:
    """Within the block ``voice`` says what the library logs, from warnings on; and which requests it refuses."""
    logger, sources, handler = logging.getLogger("lifecycle"), logging.getLogger(_SOURCES), _Spoken(voice)
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
def configured(voice: Voice) -> Generator[None]:
    """Within the block a program of the user's runs here, and ``voice`` says what is logged.

    As JSON that is whatever anybody logs, from level info on, unless the program configures the root logger anew. As
    text it is what the library logs, from warnings on, as long as the program has configured nothing.
    """
    is_machine = isinstance(voice, MachineVoice)
    logger = logging.getLogger() if is_machine else logging.getLogger("lifecycle")
    handler = _Told(voice) if is_machine else _Unconfigured(voice)
    level = logger.level
    logger.setLevel(logging.INFO if is_machine else level)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Told(logging.Handler):
    """Lets ``voice`` say what comes."""

    def __init__(self, voice: Voice) -> None:
        super().__init__()
        self._voice = voice

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(self._voice, MachineVoice):
            self._voice.tell(record)
        else:
            (self._voice.bad if record.levelno >= logging.ERROR else self._voice.warn)(brief(self.format(record)))


class _Spoken(_Told):
    """Only what somebody should know."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or record.name == _SOURCES


class _Unconfigured(_Told):
    """Only what somebody should know, and nothing once the program has its own way of logging."""

    def filter(self, record: logging.LogRecord) -> bool:
        is_configured = logging.getLogger().handlers or len(logging.getLogger("lifecycle").handlers) > 1
        return record.levelno >= logging.WARNING and not is_configured
