"""Expected failures, such as a port already in use, which commands print as one line instead of a traceback."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING, Final

from lifecycle._util import error_text, message_of, with_stderr
from lifecycle.errors import BridgeError, JournalError, RestartLimitReached, SourceFailed, UsageError, WorkerFailed

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["is_debugging", "one_line"]

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
