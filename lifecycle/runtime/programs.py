"""A program: its mains are started, watched until it is complete, and stopped; then it says what became of it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from lifecycle.runtime.records import Reason
from lifecycle.runtime.stopping import conclude

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lifecycle.runtime.lives import Life
    from lifecycle.runtime.mains import Main

__all__ = ["Program"]

_log = logging.getLogger("lifecycle.runtime")


class Program:
    """The mains of one `run`."""

    def __init__(self, life: Life, mains: Sequence[Main]) -> None:
        self._life = life
        self._mains = mains
        self._begun: list[Main] = []
        # In the order in which they ended.
        self._ended: list[Main] = []

    async def live(self) -> Any:
        """Run from the first start to the last stop."""
        with self._life.as_current():
            stopping = asyncio.create_task(self._life.wait_stopping(), name="lifecycle stopping")
            try:
                for main in self._mains:
                    await self._start(main, stopping)
                self._tell_started()
                await self._until_complete(stopping)
            finally:
                self._life.begin(Reason.STOP)
                await conclude(self._life, self._begun)
                await stopping
        return self._outcome()

    async def _start(self, main: Main, stopping: asyncio.Task[None]) -> None:
        """Start ``main`` and wait until the next may start, unless the program is ending already."""
        self._look()
        if self._life.reason is not Reason.NONE:
            return
        task = main.begin()
        self._begun.append(main)
        task.add_done_callback(lambda _: self._ended.append(main))
        if main.drainable is not None:
            self._life.draining.add(main.drainable, task)
        started = asyncio.create_task(main.started.wait(), name=f"start of {main.name}")
        await asyncio.wait({task, started, stopping}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        await asyncio.wait({started})

    def _tell_started(self) -> None:
        """Also of a program that is complete at once: it did start."""
        if self._life.reason is Reason.NONE and all(main.error is None for main in self._begun):
            self._life.up()

    async def _until_complete(self, stopping: asyncio.Task[None]) -> None:
        self._look()
        while self._life.reason is Reason.NONE and not self._is_idle():
            # Also one that is done and has not been noted yet: nothing else would wake us for it.
            unseen = [main.task for main in self._begun if main not in self._ended]
            await asyncio.wait({*unseen, stopping}, return_when=asyncio.FIRST_COMPLETED)
            # Let the callbacks of what ended together with it run as well.
            await asyncio.sleep(0)
            self._look()

    def _is_idle(self) -> bool:
        """Whether all have ended for whose sake the program goes on."""
        needed = [main for main in self._begun if not main.auxiliary] or self._begun
        return all(main in self._ended for main in needed)

    def _look(self) -> None:
        """Begin the shutdown if a main that ended completes the program."""
        for main in self._ended:
            if main.error is not None or main.completes:
                timed_out = isinstance(main.error, TimeoutError)
                self._life.begin(Reason.TIMEOUT if timed_out else Reason.STOP)

    def _outcome(self) -> Any:
        """What the async function returned; the first error is raised, those that followed are logged."""
        failed = [main for main in self._ended if main.error is not None]
        for main in failed[1:]:
            _log.error("%s failed too: %r", main.name, main.error, exc_info=main.error)
        if failed:
            assert failed[0].error is not None, "chosen for it"
            raise failed[0].error
        values = [main.value for main in self._ended if main.completes and main.value is not None]
        return values[0] if values else None
