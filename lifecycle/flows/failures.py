"""What went wrong, as it is kept: who reads it after a crash has no exception, only what was written of one."""

from __future__ import annotations

import json
import traceback as tracebacks
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lifecycle._util import message_of
from lifecycle.errors import StepFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Failure", "joined"]

#: Characters of a traceback that are kept, from its end.
_KEPT = 8000


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that a task, a retry or a revert raised; its ``type`` is the name of its class."""

    type: str
    message: str
    traceback: str = field(default="", repr=False)
    #: The exception itself, as long as the process lives in which it was raised.
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """What is to be said of ``error``."""
        try:
            text = "".join(tracebacks.format_exception(error))
        except Exception:  # noqa: BLE001  # as `message_of`
            text = ""
        return cls(type(error).__name__, message_of(error), text[-_KEPT:], error)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"

    def encode(self) -> str:
        """As text."""
        return json.dumps([self.type, self.message, self.traceback])

    @classmethod
    def decode(cls, text: str) -> Failure:
        """From the text that `encode` gave."""
        return cls(*json.loads(text))

    def exception(self, name: str) -> BaseException:
        """The error itself, or after a reload a `StepFailed` that says what ``name`` raised."""
        if self.error is not None:
            return self.error
        error = StepFailed(f"{name!r} failed: {self}")
        if self.traceback:
            error.add_note(self.traceback)
        return error


def joined(flow: str, failures: Sequence[tuple[str, Failure]]) -> BaseException:
    """One error for all: the only one there is, or a group of them."""
    errors = [failure.exception(name) for name, failure in failures]
    if len(errors) == 1:
        return errors[0]
    kind = ExceptionGroup if all(isinstance(each, Exception) for each in errors) else BaseExceptionGroup
    return kind(f"several tasks of the flow {flow!r} failed", errors)  # type: ignore[type-var]  # the kind fits
