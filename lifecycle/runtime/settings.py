"""`Settings`, which the caller of `run` chooses, and `Reason`, which the caller of `shutdown` chooses."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from lifecycle._durations import in_seconds

if TYPE_CHECKING:
    from lifecycle._durations import Duration

__all__ = ["Reason", "Settings"]


class Reason(StrEnum):
    """Why a program is stopping. If there are several causes, this is the first one."""

    #: The program is not stopping.
    NONE = "none"
    #: The user pressed Ctrl+C.
    INTERRUPT = "interrupt"
    #: SIGTERM was received, or the terminal was closed.
    TERMINATE = "terminate"
    #: `shutdown` was called.
    CANCEL = "cancel"
    #: The main finished, or the ``async with`` block was exited.
    STOP = "stop"
    #: A deadline passed: the main raised `TimeoutError`.
    TIMEOUT = "timeout"


class Settings:
    """How to handle signals, and the time limits of the shutdown. `run` documents each setting.

    Raises:
        ValueError: if a number is negative.
        TypeError: if a value has the wrong type.
    """

    def __init__(
        self,
        *,
        force_exit: int = 1,
        cancel_on_interrupt: bool | None = None,
        reset_after: Duration = 5.0,
        hook_timeout: Duration = 5.0,
        shutdown_timeout: Duration = 2.0,
        exit_timeout: Duration = 25.0,
    ) -> None:
        if type(force_exit) is not int:
            raise TypeError(f"force_exit must be a number of signals (0: never), got {force_exit!r}")
        if force_exit < 0:
            raise ValueError(f"force_exit must be 0 or more, got {force_exit!r}")
        if cancel_on_interrupt not in (None, True, False):
            raise TypeError(f"cancel_on_interrupt must be True, False or None, got {cancel_on_interrupt!r}")
        self.force_exit: Final = force_exit
        self.cancel_on_interrupt: Final = cancel_on_interrupt
        self.reset_after: Final = in_seconds("reset_after", reset_after, least=0)
        self.hook_timeout: Final = in_seconds("hook_timeout", hook_timeout, least=0)
        self.shutdown_timeout: Final = in_seconds("shutdown_timeout", shutdown_timeout, least=0)
        self.exit_timeout: Final = in_seconds("exit_timeout", exit_timeout, least=0)
