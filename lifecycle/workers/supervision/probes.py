"""Asking workers after their health: once, or again and again."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from lifecycle._async import was_cancelled
from lifecycle._util import error_text
from lifecycle.workers.model import AT_WORK, ProbeResult, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lifecycle.workers.supervision.slots import Slot

__all__ = ["ask", "ask_all", "keep_asking"]


async def ask(slot: Slot) -> ProbeResult:
    """Its answer; an error, silence, or a worker that does not run is a bad one. It is kept in the slot."""
    worker, status = slot.worker, slot.status
    if worker is None or status not in AT_WORK:
        return ProbeResult(healthy=False, message=f"is {status}")
    generation = slot.generation
    result = await _answer(worker, slot.spec.probe_timeout)
    if slot.generation == generation:
        slot.health = result
    return result


async def keep_asking(slot: Slot, interval: float, tell: Callable[[int, ProbeResult], None]) -> None:
    """Ask every ``interval`` seconds while it runs, and ``tell`` how many bad answers in a row there were."""
    bad = 0
    while True:
        # Many that were started together are not asked together.
        await asyncio.sleep(interval * random.uniform(0.9, 1.1))  # noqa: S311  # no secret
        if slot.status != Status.RUNNING:
            continue
        result = await ask(slot)
        bad = 0 if result.healthy else bad + 1
        tell(bad, result)


async def ask_all(slots: Iterable[Slot]) -> ProbeResult:
    """Ask all at once: as healthy as the worst of those that have to run, and of those that failed."""
    # A child that ended well is not ill, and one that is down by hand is meant to be.
    asked = [slot for slot in slots if slot.status not in (Status.FINISHED, Status.STOPPED)]
    answers = await asyncio.gather(*map(ask, asked))
    return _summary(dict(zip((slot.spec.name for slot in asked), answers, strict=True)))


def _summary(answers: dict[str, ProbeResult]) -> ProbeResult:
    """One answer for many: healthy if all are."""
    ill = [f"{name}: {answer.message or 'unhealthy'}" for name, answer in answers.items() if not answer.healthy]
    return ProbeResult(not ill, "; ".join(ill))


async def _answer(worker: Any, timeout: float) -> ProbeResult:
    probe = getattr(worker, "probe", None)
    if probe is None:
        return ProbeResult(healthy=True)
    try:
        async with asyncio.timeout(timeout):
            answer = await probe()
    except TimeoutError:
        return ProbeResult(healthy=False, message=f"no answer within {timeout:g} s")
    except asyncio.CancelledError:
        if was_cancelled():
            raise
        # What it asked was cancelled by somebody else.
        return ProbeResult(healthy=False, message="cancelled")
    except Exception as error:  # noqa: BLE001  # it is the answer
        return ProbeResult(healthy=False, message=error_text(error))
    if isinstance(answer, ProbeResult):
        return answer
    return ProbeResult(healthy=False, message=f"its probe returned {answer!r}; it has to return a ProbeResult")
