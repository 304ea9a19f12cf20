"""Periodic health checks as events."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from lifecycle._async import is_async
from lifecycle._durations import in_seconds
from lifecycle._util import reason_of
from lifecycle.events import HealthEvent
from lifecycle.events.sources import Source

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle._durations import Duration
    from lifecycle.control import Emit

__all__ = ["HealthCheckSource", "Trigger"]


class Trigger(StrEnum):
    """The check results that are sent as events."""

    #: The first result, and every result that changes the state.
    EDGE = "edge"
    #: Every result.
    LEVEL = "level"


class HealthCheckSource(Source):
    """Sends a `HealthEvent` when the result of a periodic check changes.

    The first check runs immediately. A check fails if it raises an error, exceeds ``timeout``, or returns ``False``.
    Any other result, including ``None``, is a success. If the result has the attributes ``healthy`` and ``message``,
    like the result of a worker's ``probe``, these are used instead. The first result sets the state.

    Checks never overlap. If a plain function times out, it keeps running in its thread. Until it returns, further
    checks are treated as failed without being run, so a hanging check occupies only one thread.

    Args:
        name: The name used in the topics ``health/<name>/up`` and ``health/<name>/down``.
        check: An async function, or a plain function, which is run in a thread.
        interval: Seconds between checks.
        trigger: ``"edge"`` sends an event when the state changes, and ``"level"`` sends one after every check.
        timeout: The time limit for each check, in seconds.
        failures: The number of consecutive failures after which the state becomes down.
        successes: The number of consecutive successes after which the state becomes up.

    Raises:
        ValueError: if a time is not positive, a threshold is less than 1, ``trigger`` is unknown, or the name contains
            "/".
        TypeError: if ``check`` is not callable.
    """

    def __init__(
        self,
        name: str,
        check: Callable[[], Awaitable[object]] | Callable[[], object],
        *,
        interval: Duration = 30.0,
        trigger: Trigger | Literal["edge", "level"] = "edge",
        timeout: Duration = 10.0,
        failures: int = 1,
        successes: int = 1,
    ) -> None:
        _require(name, check, {"failures": failures, "successes": successes})
        self.name: str = name
        self.interval: float = in_seconds("interval", interval, finite=True)
        self.timeout: float = in_seconds("timeout", timeout, finite=True)
        self.trigger: Trigger = _trigger(trigger)
        self._check = check
        # How many consecutive results change the state: successes if the state is down, failures if it is up.
        self._needed = {False: successes, True: failures}
        self._healthy: bool | None = None
        # The number of consecutive results, up to the latest, that contradict the state.
        self._against = 0
        # A plain check that timed out and is still running.
        self._hanging: asyncio.Future[object] | None = None

    @property
    def healthy(self) -> bool | None:
        """True if up, False if down, None before the first result."""
        return self._healthy

    async def run(self, emit: Emit) -> None:
        """Run checks until cancelled. The router calls this."""
        now = asyncio.get_running_loop().time
        self._healthy, self._against = None, 0
        due = now()
        while True:
            good, message = await self._result()
            if self._judge(good=good) or self.trigger is Trigger.LEVEL:
                await emit(HealthEvent(self.name, bool(self._healthy), message))
            # Checks run at a fixed rate, but a check that takes longer than the interval is followed by a full
            # interval.
            due = due + self.interval if due + self.interval > now() else now() + self.interval
            await asyncio.sleep(due - now())

    async def _result(self) -> tuple[bool, str]:
        """Run the check once. Return whether it succeeded, and a message."""
        if self._hanging is not None and not self._hanging.done():
            return False, "the previous check is still running in its thread"
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                answer = await self._call()
        except Exception as error:  # noqa: BLE001  # any error of a check is its result
            if isinstance(error, TimeoutError) and limit.expired():
                return False, f"no answer within {self.timeout:g} s"
            return False, reason_of(error)
        return _judgement(answer)

    async def _call(self) -> object:
        if is_async(self._check):
            return await self._check()
        # We don't use to_thread, because a check that times out would leave behind a task that nothing awaits.
        in_context = contextvars.copy_context().run
        self._hanging = asyncio.get_running_loop().run_in_executor(None, in_context, self._check)
        self._hanging.add_done_callback(_forget)
        answer = await asyncio.shield(self._hanging)
        return await answer if inspect.isawaitable(answer) else answer

    def _judge(self, *, good: bool) -> bool:
        """Count a result, and return whether the state changed."""
        if self._healthy is None:
            self._healthy = good
            return True
        if good is self._healthy:
            self._against = 0
            return False
        self._against += 1
        if self._against < self._needed[self._healthy]:
            return False
        self._healthy, self._against = good, 0
        return True


def _judgement(answer: object) -> tuple[bool, str]:
    healthy: object = getattr(answer, "healthy", None)
    if isinstance(healthy, bool):
        return healthy, str(getattr(answer, "message", ""))
    return (False, "the check returned False") if answer is False else (True, "")


def _forget(future: asyncio.Future[object]) -> None:
    """Ignore the error of a check that fails after it has timed out."""
    if not future.cancelled():
        future.exception()


def _trigger(value: str) -> Trigger:
    try:
        return Trigger(value)
    except ValueError:
        raise ValueError(f'trigger={value!r} is unknown; use "edge" or "level"') from None


def _require(name: str, check: object, thresholds: dict[str, int]) -> None:
    if not name or "/" in name:
        raise ValueError(f"a check's name must be a single topic segment, without a slash, got {name!r}")
    if not callable(check):
        raise TypeError(f"{check!r} is not a check; pass a function without arguments")
    for word, count in thresholds.items():
        if count < 1:
            raise ValueError(f"{word} must be 1 or more, got {count!r}")
