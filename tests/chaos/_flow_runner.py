"""The process that runs flows until it is killed: ``python -m tests.chaos._flow_runner DIRECTORY STORE``.

For each input line ``LIFE LAST``, it forks a child and prints how the child exited. Forking is faster than starting a
new process. The child resumes unfinished flows, alternately with `Flows.recover` and `Flows.start`, and starts new
flows with the next numbers. Each effect is a line in the file ``effects``. If ``LAST`` is not 0, the child exits when
all flows below that number have finished.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import traceback
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle.errors import ClaimLost, InvalidState, JournalError
from lifecycle.flows import Flows, Options, current_task
from tests.flows.numbered_flows import NumberedFlow

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ENDS"]

ENDS = ("SUCCESS", "FAILURE", "REVERTED")

#: The number of concurrent flows, and the duration of the longest effect in seconds.
_AT_ONCE, _LONGEST = 4, 0.01
_CONCURRENCY = (None, 1, 3)


class _Runner:
    """One child process."""

    def __init__(self, flows: Flows, life: int, effects: int) -> None:
        self._flows, self._life, self._effects = flows, life, effects

    async def effect(self) -> None:
        os.write(self._effects, f"{self._life} {current_task().key}\n".encode())
        await asyncio.sleep(random.random() * _LONGEST)

    async def live(self, last: int) -> None:
        ended = {int(row.id) for row in await self._flows.store.flows(states=ENDS)}
        if self._life % 2:
            left = [int(row.id) for row in await self._flows.store.flows() if int(row.id) not in ended]
            await self._flows.recover(*(NumberedFlow(number, self.effect).flow for number in left))
        numbers = (number for number in (range(last) if last else count()) if number not in ended)
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(self._work(numbers))

    async def _work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            try:
                await self._flows.start(NumberedFlow(number, self.effect).flow, id=str(number))
            except (ClaimLost, InvalidState, JournalError):
                raise
            except Exception:  # noqa: BLE001  # flows may fail; the results are checked at the end
                continue


async def _live(directory: Path, where: str, life: int, last: int) -> None:
    effects = os.open(directory / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    options = Options(concurrency=_CONCURRENCY[life % len(_CONCURRENCY)])
    try:
        async with Flows(where, options=options) as flows:
            _say("up")
            await _Runner(flows, life, effects).live(last)
    finally:
        os.close(effects)


def _fork(directory: Path, where: str, life: int, last: int) -> None:
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        _say(f"ended {os.waitstatus_to_exitcode(status)}")
        return
    status = 1
    try:
        _say(f"born {os.getpid()}")
        random.seed()
        asyncio.run(_live(directory, where, life, last))
        status = 0
    except BaseException:  # noqa: BLE001  # the forked child must not return
        traceback.print_exc()
    finally:
        os._exit(status)


def _say(words: str) -> None:
    os.write(1, f"{words}\n".encode())


if __name__ == "__main__":
    logging.getLogger("lifecycle").setLevel(logging.ERROR)
    for line in sys.stdin:
        _fork(Path(sys.argv[1]), sys.argv[2], *map(int, line.split()))
