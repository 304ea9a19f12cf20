from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import Dropped, Event, NotHandled, Router
from lifecycle.control.router import call_directly
from lifecycle.events import InterruptEvent, SignalEvent
from lifecycle.handlers import Escalator, ShutdownHandler, SuspendHandler

if TYPE_CHECKING:
    from lifecycle.testing import Clock

EVENT = Event("signal/interrupt")


class Primary:
    """A handler that raises `error`."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None

    async def __call__(self, _: object) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error


async def test_not_handled_escalates_until_a_reset() -> None:
    primary = Primary()
    fallen: list[Any] = []
    escalator = Escalator(primary, fallen.append)
    await escalator(EVENT)
    assert not fallen
    primary.error = NotHandled("enough")
    await escalator(EVENT)
    assert fallen == [EVENT]
    primary.error = None
    await escalator(EVENT)
    assert fallen == [EVENT, EVENT]
    assert primary.calls == 2


async def test_reset_goes_back_to_the_primary() -> None:
    primary = Primary()
    fallen: list[Any] = []
    escalator = Escalator(primary, fallen.append)
    primary.error = NotHandled("enough")
    await escalator(EVENT)
    primary.error = None
    escalator.reset()
    await escalator(EVENT)
    assert (primary.calls, len(fallen)) == (2, 1)


@pytest.mark.parametrize("error", [OSError("broken"), Dropped("given up")])
async def test_other_errors_are_raised_and_do_not_escalate(error: Exception) -> None:
    primary = Primary()
    fallen: list[Any] = []
    escalator = Escalator(primary, fallen.append)
    primary.error = error
    with pytest.raises(type(error)):
        await escalator(EVENT)
    assert not fallen
    assert not escalator.escalated


async def test_a_second_event_within_the_window_escalates(clock: Clock) -> None:
    primary = Primary()
    fallen: list[Any] = []
    escalator = Escalator(primary, fallen.append, window=2)
    await escalator(EVENT)
    await clock.advance(2.5)
    await escalator(EVENT)
    assert (primary.calls, len(fallen)) == (2, 0)
    await clock.advance(1.5)
    await escalator(EVENT)
    await clock.advance(10)
    await escalator(EVENT)
    assert (primary.calls, len(fallen)) == (2, 2)


async def test_the_window_counts_while_the_first_is_still_busy(clock: Clock) -> None:
    fallen: list[object] = []
    escalator = Escalator(lambda _: asyncio.sleep(5), fallen.append, window=2)
    first = asyncio.create_task(escalator(EVENT))
    await clock.advance(1)
    await escalator(EVENT)
    assert fallen == [EVENT]
    await first


async def test_a_successful_resume_resets_it() -> None:
    """The first Ctrl+C suspends the program, and the second quits it. After a resume, the sequence starts again."""
    suspend = SuspendHandler()
    quits: list[Any] = []
    escalator = Escalator(suspend, quits.append)
    router = Router()
    router.handle("signal/interrupt", escalator)
    await call_directly(router, SignalEvent(2))
    assert suspend.suspended
    await call_directly(router, SignalEvent(2))
    assert len(quits) == 1
    await suspend.resume()
    await call_directly(router, SignalEvent(2))
    assert suspend.suspended
    assert len(quits) == 1


async def test_the_fallback_may_be_a_shutdown() -> None:
    seen: list[object] = []
    escalator = Escalator(SuspendHandler(), ShutdownHandler(seen.append))
    for _ in range(3):
        await escalator(InterruptEvent())
    assert seen == [InterruptEvent()]


@pytest.mark.parametrize("window", [0, -1.0])
def test_a_window_must_be_positive(window: float) -> None:
    with pytest.raises(ValueError, match="window"):
        Escalator(print, print, window=window)


def test_both_must_be_handlers() -> None:
    bad: Any = lambda: None  # noqa: E731  # of no argument
    with pytest.raises(TypeError):
        Escalator(bad, print)
