"""What may be asked of a supervisor by hand; each is carried out in its turn by the owner, between two messages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lifecycle.workers.model import stopped_early
from lifecycle.workers.specs import AutoShutdown, Spec
from lifecycle.workers.supervision.slots import Slot

if TYPE_CHECKING:
    import asyncio

    from lifecycle.workers.supervision.owner import Owner

__all__ = ["add", "check_new", "remove", "restart", "slot_of", "stop_child"]

_log = logging.getLogger("lifecycle.workers")


def slot_of(owner: Owner, name: str) -> Slot:
    """The slot of the child ``name``.

    Raises:
        KeyError: naming those that there are.
    """
    if name not in owner.slots:
        known = ", ".join(map(repr, owner.slots)) or "nobody"
        raise KeyError(f"{owner.name!r} has no child {name!r}; it has {known}")
    return owner.slots[name]


def check_new(owner: Owner, spec: Spec, auto_shutdown: AutoShutdown) -> None:
    """Refuse what cannot be a further child.

    Raises:
        TypeError, ValueError: saying why.
    """
    _check_kind(owner.name, spec)
    if spec.name in owner.slots:
        status = owner.slots[spec.name].status
        raise ValueError(f"{owner.name!r} already has a child {spec.name!r}, which is {status}; remove it first")
    if spec.significant and auto_shutdown is AutoShutdown.NEVER:
        raise ValueError(f"{spec.name!r} is significant, but auto_shutdown of {owner.name!r} is 'never'")


def _check_kind(name: str, spec: object) -> None:
    if not isinstance(spec, Spec):
        several = ", or several one by one: *specs" if isinstance(spec, list | tuple) else ""
        raise TypeError(f"{spec!r} is no Spec; give {name!r} Spec(name, child){several}")


async def add(owner: Owner, spec: Spec, *, auto_shutdown: AutoShutdown) -> asyncio.Future[None] | None:
    """A further child, the last in order; what it returns completes with the start, None if that has to wait.

    Raises:
        TypeError, ValueError: as `check_new`.
    """
    check_new(owner, spec, auto_shutdown)
    slot = owner.slots[spec.name] = Slot(spec)
    if owner.restarts.suspended:
        owner.restarts.hold(slot)
        return None
    slot.provisional = True
    outcome = slot.ask()
    if owner.queue.empty:
        owner.starts.open(slot)
    else:
        owner.queue.add(slot)
        if not owner.starting_up:
            # The queue is a group that waits to be started again.
            owner.restarts.defer(slot)
    return outcome


async def remove(owner: Owner, name: str) -> None:
    """Stop the child ``name`` and forget it."""
    slot = await _close(owner, name)
    owner.forget(slot)
    slot.answer(stopped_early(name))


async def stop_child(owner: Owner, name: str) -> None:
    """Stop the child ``name``, wherever its life or its start has come; it stays, and nothing starts it by itself.

    If the caller of `add` still waits for its start, that fails, and so it is not taken on.
    """
    slot = await _close(owner, name)
    if slot.provisional and slot.asked:
        owner.starts.refuse(slot)
    else:
        slot.answer(stopped_early(name))


async def restart(owner: Owner, name: str) -> asyncio.Future[None] | None:
    """Stop the child ``name`` if it is at work, and start it; nothing of its past counts any more."""
    slot = await _close(owner, name)
    if not (slot.provisional and slot.asked):
        # The caller of `add` waits for this start in place of that which was stopped.
        slot.provisional = False
        slot.answer(stopped_early(name))
    slot.forgive()
    if owner.restarts.suspended:
        owner.restarts.hold(slot)
        return None
    outcome = slot.ask()
    owner.starts.open(slot)
    return outcome


async def _close(owner: Owner, name: str) -> Slot:
    slot = slot_of(owner, name)
    owner.queue.discard(slot)
    await owner.closer.close(slot)
    return slot
