"""A process of the workflow storm: ``python -m tests.chaos._workflow_runner DIRECTORY STORE worker|sender``.

For each input line ``LIFE LAST``, it forks a child and prints how the child exited. A worker continues unfinished
workflows and, unless ``LAST`` is 1, starts new ones. Each executed step is a line in the file ``effects``, and each
workflow that is known to be stored is a line in ``started``. A sender sends the signals and the cancellations that
workflows need. It repeats each one until its acknowledgement is in the file ``sent``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import time
import traceback
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle.errors import InvalidState
from lifecycle.flows import Flows, current_task
from lifecycle.flows.states import ENDS, FlowState
from tests.flows.numbered_workflows import READY, Programs, expected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.flows import FlowRow

__all__ = ["A_LIFE"]

#: The maximum number of workflows that one process starts. The number of a workflow is that of its process times this.
A_LIFE = 1000
#: The number of workflows that a worker runs at the same time, and the duration of the longest step in seconds.
_AT_ONCE, _LONGEST = 6, 0.01
_UNFINISHED = tuple(state for state in FlowState if state not in ENDS)


class _Log:
    """A file of which each line is written at once, and remains if the process is killed."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


async def _work(flows: Flows, directory: Path, life: int, *, last: bool) -> None:
    effects, started = _Log(directory / "effects"), _Log(directory / "started")

    async def effect() -> None:
        task = current_task()
        effects.write(life, time.monotonic(), time.time(), task.attempt, task.key)
        await asyncio.sleep(random.random() * _LONGEST)

    programs = Programs(effect)
    await flows.recover(programs.numbered, programs.pair)
    for number in count(life * A_LIFE):
        while last or len(flows.runs) >= _AT_ONCE:
            await asyncio.sleep(0.05)
            await _check(flows)
        run = flows.start(programs.numbered, str(number), number, id=str(number))
        await run.stored()
        started.write(number)
        await asyncio.sleep(random.random() * 0.2)
        await _check(flows)


async def _check(flows: Flows) -> None:
    """Check that no run has stopped because of an error."""
    for run in flows.runs:
        assert not run.stopped, (run.info(), await flows.store.get(run.id), flows.presence)


class _Sender:
    def __init__(self, flows: Flows, directory: Path) -> None:
        self._flows, self._path = flows, directory / "sent"
        self._log = _Log(self._path)
        self._sent = set(self._path.read_text().splitlines())

    async def work(self) -> None:
        while True:
            for row in await self._flows.store.flows(name="numbered", states=_UNFINISHED):
                await self._serve(row)
            await asyncio.sleep(random.random() * 0.3)

    async def _serve(self, row: FlowRow) -> None:
        given = json.loads(row.store)
        needs = expected(given["flow"], given["number"], given.get("kind", "top"))
        for place, name in enumerate(needs.signals[row.id]):
            if f"{row.id} {place}" not in self._sent:
                if random.random() < 0.6:
                    break
                send = partial(self._flows.signal, row.id, name, place, key=f"{name} {place}")
                await self._send(f"{row.id} {place}", send)
        for ready, flow in needs.cancels.items():
            if not row.parent and f"{flow} cancel" not in self._sent and await self._is_ready(ready):
                await self._send(f"{flow} cancel", partial(self._flows.cancel, flow))

    async def _is_ready(self, flow: str) -> bool:
        if await self._flows.store.get(flow) is None:
            return False
        steps = (await self._flows.store.load(flow)).steps.values()
        return any(step.name.endswith(f" {READY}") and step.state == "SUCCESS" for step in steps)

    async def _send(self, line: str, send: Callable[[], Awaitable[None]]) -> None:
        # If a sender that was killed has sent it, the workflow may have ended.
        with suppress(InvalidState):
            await send()
        self._sent.add(line)
        self._log.write(line)


async def _live(directory: Path, where: str, role: str, life: int, last: int) -> None:
    async with Flows(where) as flows:
        _say("up")
        if role == "sender":
            await _Sender(flows, directory).work()
        else:
            await _work(flows, directory, life, last=bool(last))


def _fork(directory: Path, where: str, role: str, life: int, last: int) -> None:
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        _say(f"ended {os.waitstatus_to_exitcode(status)}")
        return
    try:
        _say(f"born {os.getpid()}")
        random.seed()
        asyncio.run(_live(directory, where, role, life, last))
    except BaseException:  # noqa: BLE001  # the forked child must not return
        traceback.print_exc()
    finally:
        os._exit(1)


def _say(words: str) -> None:
    os.write(1, f"{words}\n".encode())


if __name__ == "__main__":
    logging.getLogger("lifecycle").setLevel(logging.ERROR)
    for line in sys.stdin:
        _fork(Path(sys.argv[1]), sys.argv[2], sys.argv[3], *map(int, line.split()))
