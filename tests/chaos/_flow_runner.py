"""A process that carries out flows until it is killed: ``python -m tests.chaos._flow_runner DIRECTORY LIFE LAST``.

It goes on with what the lives before it left, by turns with `Flows.recover` and with `Flows.start`, and begins the
flows of the next numbers. Each effect is a line in the file ``effects``. Where ``LAST`` is not 0 it ends by itself,
when all flows below that number have ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle.errors import ClaimLost, InvalidState, JournalError
from lifecycle.flows import Flows, Options, current_task
from tests.flows.recipes import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ENDS"]

ENDS = ("SUCCESS", "FAILURE", "REVERTED")

#: Flows at a time, and the longest effect in seconds.
_AT_ONCE, _LONGEST = 4, 0.01
_CONCURRENCY = (None, 1, 3)


class _Runner:
    """One life."""

    def __init__(self, flows: Flows, life: int, effects: int) -> None:
        self._flows, self._life, self._effects = flows, life, effects

    async def effect(self) -> None:
        os.write(self._effects, f"{self._life} {current_task().key}\n".encode())
        await asyncio.sleep(random.random() * _LONGEST)

    async def live(self, last: int) -> None:
        ended = {int(row.id) for row in await self._flows.store.flows(states=ENDS)}
        if self._life % 2:
            left = [int(row.id) for row in await self._flows.store.flows() if int(row.id) not in ended]
            await self._flows.recover(*(Recipe(number, self.effect).flow for number in left))
        numbers = (number for number in (range(last) if last else count()) if number not in ended)
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(self._work(numbers))

    async def _work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            try:
                await self._flows.start(Recipe(number, self.effect).flow, id=str(number))
            except (ClaimLost, InvalidState, JournalError):
                raise
            except Exception:  # noqa: BLE001  # many fail, as they should; they are looked at in the end
                continue


async def _main(directory: Path, life: int, last: int) -> None:
    effects = os.open(directory / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    options = Options(concurrency=_CONCURRENCY[life % len(_CONCURRENCY)])
    try:
        async with Flows(directory / "flows.db", options=options) as flows:
            print("up", flush=True)
            await _Runner(flows, life, effects).live(last)
    finally:
        os.close(effects)


if __name__ == "__main__":
    logging.getLogger("lifecycle").setLevel(logging.ERROR)
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
