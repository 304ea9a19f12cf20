"""What the library logs while a command runs, said as everything else is that the command says."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lifecycle.cli.messages import brief

if TYPE_CHECKING:
    from collections.abc import Generator

    from lifecycle.cli.messages import Voice

__all__ = ["heard"]


#: Logs at level info whom it refused: who sets up a sender looks here for what is wrong.
_SOURCES = "lifecycle.sources"


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


class _Spoken(logging.Handler):
    def __init__(self, voice: Voice) -> None:
        super().__init__()
        self._voice = voice

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or record.name == _SOURCES

    def emit(self, record: logging.LogRecord) -> None:
        (self._voice.bad if record.levelno >= logging.ERROR else self._voice.warn)(brief(self.format(record)))
