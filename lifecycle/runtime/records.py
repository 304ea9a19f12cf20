"""What a lifetime is told and what it tells, as plain records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["LifetimeState", "Reason", "Settings"]


class Reason(StrEnum):
    """Why a program stops; the first cause wins."""

    #: It does not.
    NONE = "none"
    #: Ctrl+C.
    INTERRUPT = "interrupt"
    #: SIGTERM, or the terminal went away.
    TERMINATE = "terminate"
    #: `shutdown` was called.
    CANCEL = "cancel"
    #: The main ended, or the block was left.
    STOP = "stop"
    #: A deadline passed: the main ended with a `TimeoutError`.
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Settings:
    """How a lifetime treats signals, and how long its end may take; `run` says what each means.

    Raises:
        ValueError: for a negative number.
        TypeError: for what is no number.
    """

    force_exit: int = 1
    cancel_on_interrupt: bool | None = None
    reset_after: float = 5.0
    hook_timeout: float = 5.0
    shutdown_timeout: float = 2.0
    exit_timeout: float = 25.0

    def __post_init__(self) -> None:
        if type(self.force_exit) is not int:
            raise TypeError(f"force_exit={self.force_exit!r} is no number of signals; give 0 (never), 1, 2, …")
        if self.cancel_on_interrupt not in (None, True, False):
            raise TypeError(f"cancel_on_interrupt={self.cancel_on_interrupt!r}: give True, False or None")
        for name in ("force_exit", "reset_after", "hook_timeout", "shutdown_timeout", "exit_timeout"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)):
                raise TypeError(f"{name}={value!r} is no number; give seconds, 0 or more")
            if not value >= 0:
                raise ValueError(f"{name}={value!r} is below 0 or no number; give 0 or more")


@dataclass(frozen=True, slots=True)
class LifetimeState:
    """A lifetime at one moment."""

    reason: Reason
    #: The signal that was the first cause.
    signum: int | None
    stopping: bool
    #: Signals that count in the present series.
    signals: int
    #: The number in the series at which the process would now be ended by force; 0: never, or it hears no signals.
    force_exit_at: int
    #: Names of the background tasks that run.
    tasks: tuple[str, ...]
    #: Background tasks so far, and how many of them raised.
    tasks_started: int
    tasks_crashed: int
    #: Shutdown hooks that have not run yet.
    hooks: int
    #: Names of the workers that were started under it and have not ended.
    workers: tuple[str, ...]
    #: Whether another program runs the event loop and gets the signals: a stop ends what is under this lifetime, and
    #: that program continues.
    embedded: bool = False
