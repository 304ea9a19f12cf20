"""Suspending all children of a supervisor, and letting them go on: each as a whole or not at all."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers.model import FINAL, Status
from lifecycle.workers.supervision.slots import suspendable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lifecycle.workers.supervision.owner import Owner
    from lifecycle.workers.supervision.slots import Slot

__all__ = ["resume", "suspend"]

_log = logging.getLogger("lifecycle.workers")


async def suspend(owner: Owner, settled: Callable[[], object], caller: asyncio.Future[Any]) -> None:
    """Suspend the children, the last first; those that are being started, start after the resume.

    ``settled`` is called when all are. Gives up, and takes back what it did, when ``caller`` or the supervisor does.

    Raises:
        WorkerFailed: if a child cannot be; by then those before it go on.
    """
    owner.restarts.suspended = True
    try:
        for slot in list(owner.slots.values()):
            if slot.opening is not None:
                await owner.closer.close(slot)
                owner.restarts.hold(slot)
            # Whoever waits for a start of it would wait for the resume, which may be his own to ask for.
            slot.answer()
        order = [slot for slot in reversed(owner.slots.values()) if _can(slot, Status.RUNNING)]
        await _unless_given_up(owner, caller, _each(order, "suspend", "resume"))
        settled()
    except BaseException:
        await owner.restarts.release()
        raise


async def resume(owner: Owner, settled: Callable[[], object], caller: asyncio.Future[Any]) -> None:
    """Let the children go on, the first first, and start those that had to wait.

    Raises:
        WorkerFailed: if a child cannot; by then those before it are suspended again.
    """
    order = [slot for slot in owner.slots.values() if _can(slot, Status.SUSPENDED)]
    await _unless_given_up(owner, caller, _each(order, "resume", "suspend"))
    settled()
    await owner.restarts.release()


async def _each(order: list[Slot], do: str, undo: str) -> None:
    done: list[Slot] = []
    try:
        for slot in order:
            await _apply(slot, do)
            done.append(slot)
    except BaseException:
        for slot in reversed(done):
            with suppress(WorkerFailed):
                await _apply(slot, undo)
        raise


async def _apply(slot: Slot, method: str) -> None:
    """Suspend or resume one; that it has ended meanwhile is no failure, it waits for the resume like any other."""
    worker: Any = slot.worker
    try:
        await getattr(worker, method)()
    except Exception as error:
        if worker.status in FINAL:
            return
        _log.exception("%r could not %s", slot.spec.name, method)
        raise WorkerFailed(f"{slot.spec.name!r} could not {method}: {error}") from error


def _can(slot: Slot, status: Status) -> bool:
    return slot.live and slot.status == status and suspendable(slot.worker)


async def _unless_given_up(owner: Owner, caller: asyncio.Future[Any], work: Coroutine[Any, Any, None]) -> None:
    """Do ``work``, but cancel it once nobody wants it any more: it may wait for a loop that never comes by."""
    doing = asyncio.ensure_future(work)
    halted = asyncio.ensure_future(owner.halted.wait())
    try:
        await asyncio.wait([doing, halted, caller], return_when=asyncio.FIRST_COMPLETED)
    finally:
        halted.cancel()
        doing.cancel()
        await asyncio.wait([doing, halted])
    if doing.cancelled():
        raise InvalidTransition(f"{owner.name!r} gave up the change: it was asked to stop, or nobody waits any more")
    doing.result()
