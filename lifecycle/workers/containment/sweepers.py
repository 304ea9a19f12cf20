"""Sweeps beside a loop: those that are wanted at the same time are one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from lifecycle.workers.containment.batches import Batches
from lifecycle.workers.containment.sweeps import Holders, sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lifecycle.workers.containment.sweeps import Known

    #: Who is to be found: the holders of a cookie, and some who are known already.
    _Wanted: TypeAlias = tuple[bytes, set[Known]]

__all__ = ["swept"]


async def swept(cookie: str, known: Iterable[Known]) -> None:
    """Return when nobody holds ``cookie`` any more, and ``known`` are gone. If cancelled, it blocks until then."""
    wanted = (cookie.encode(), set(known))
    try:
        await asyncio.wait({_sweeps.ask(wanted)})
    except asyncio.CancelledError:
        # The loop is being closed; nobody will wait for a thread any more.
        _sweep([wanted])
        raise


def _sweep(wanted: Sequence[_Wanted]) -> None:
    holders = Holders({cookie for cookie, _ in wanted}.__contains__)
    known = {each for _, some in wanted for each in some}

    def find() -> Iterator[Known]:
        # The known ones once.
        yield from known
        known.clear()
        yield from holders()

    sweep(find)


_sweeps: Batches[_Wanted] = Batches(_sweep, "sweep for processes left")
