"""The program's flows and jobs in one SQLite file. Old flows are removed, so that the file stays small."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from lifecycle import Backoff
from lifecycle.flows import Flows, JobQueue, Options, Times, current_task, linear, send, task, unordered

if TYPE_CHECKING:
    from lifecycle.flows.definition import Flow
    from tests.soak.notes import Notes

__all__ = ["ENDS", "FILE", "KEEP", "FlowJobs", "end_of_deploy"]

#: The name of the database file.
FILE = "flows.db"
#: The number of seconds for which finished flows are kept.
KEEP = 90.0
#: The number of seconds at the start of a run during which no flow is removed, because webhooks may still be repeated.
_BEGIN = 20.0
ENDS = ("SUCCESS", "FAILURE", "REVERTED")

#: Deployments whose number is a multiple of the first value are reverted. Multiples of the second fail once and are
#: retried.
_BROKEN, _FLAKY = 5, 7


def end_of_deploy(number: int) -> str:
    """Return the expected final state of a deployment."""
    return "REVERTED" if number % _BROKEN == 0 else "SUCCESS"


class FlowJobs:
    """The flows and the job queue, which exist while this component runs."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.flows = Flows(notes.directory / FILE, options=Options(concurrency=2), stop_timeout=2.0)
        self.queue = JobQueue(self.flows, backoff=Backoff(initial=0.1, maximum=1.0))
        self.deploy, self.job = self._deploy(), self._job()
        self._up = asyncio.Event()

    # -- as a main -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Resume unfinished flows, and run new flows and jobs until cancelled."""
        async with self.flows:
            await self.flows.recover(self.deploy)
            self._up.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.queue.work({"job": self.job}, concurrency=4))
                group.create_task(self._forget())

    async def wait_running(self) -> None:
        """Wait until this component has started and has recovered unfinished flows."""
        await self._up.wait()

    async def _forget(self) -> None:
        await asyncio.sleep(_BEGIN)
        while True:
            await asyncio.sleep(1.0)
            await self.queue.purge(older_than=KEEP)
            for row in await self.flows.store.flows(name="deploy", states=ENDS):
                if row.at < time.time() - KEEP:
                    await self.flows.store.delete(row.id)

    # -- for handlers ----------------------------------------------------------------------------------------------

    async def deployed(self, number: int) -> None:
        """Run the deployment once, and return when its flow has finished."""
        run = self.flows.start(self.deploy, id=f"deploy-{number}", number=number)
        try:
            await run
        except asyncio.CancelledError:
            raise
        except Exception:  # only the final state matters
            if run.state not in ENDS:
                raise
        self._notes.note("deployed", number, str(run.state))

    async def posted(self, number: int) -> None:
        """Enqueue a job once, and return when the job is stored."""
        priority = ("high", "normal", "low")[number % 3]
        await self.queue.enqueue("job", id=f"job-{number}", priority=priority, number=number)
        self._notes.note("posted", number)

    # -- the flows -------------------------------------------------------------------------------------------------

    async def _effect(self) -> None:
        """Record a side effect."""
        self._notes.note("effect", current_task().flow, current_task().key)
        await asyncio.sleep(random.random() * 0.03)

    def _deploy(self) -> Flow:
        @task
        async def fetch(number: int) -> int:
            await self._effect()
            return number

        @fetch.revert
        async def unfetch() -> None:
            self._notes.note("reverted", current_task().flow)

        @task
        async def build(number: int) -> str:
            # Fail before the effect is recorded, because the next attempt has the same key.
            if number % _FLAKY == 0 and current_task().attempt == 1:
                raise OSError(f"{number} cannot be built just now")
            await self._effect()
            return f"app-{number}"

        @task
        async def lint(build: str) -> None:
            del build
            await self._effect()

        @task
        async def check(build: str) -> None:
            del build
            await self._effect()

        @task
        async def switch(number: int) -> None:
            await self._effect()
            if number % _BROKEN == 0:
                raise RuntimeError(f"{number} does not answer")

        built = linear("built", build, retry=Times(3))
        return linear("deploy", fetch, built, unordered("checks", lint, check), switch)

    def _job(self) -> Flow:
        @task
        async def prepare(number: int) -> int:
            await self._effect()
            return number

        @task
        async def perform(number: int, prepare: int) -> None:
            await self._effect()
            if prepare != number:
                self._notes.wrong(f"the job {number} was prepared for {prepare}")
            send("job/done", {"number": number})

        return linear("job", prepare, perform)
