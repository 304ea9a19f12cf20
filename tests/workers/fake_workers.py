"""Fake workers whose behaviour a test controls, in virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lifecycle.workers import Backoff, BaseWorker, End, Spec

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from lifecycle.workers import Supervisor

AT_ONCE = Backoff(initial=0, jitter=0)
STEADY = Backoff(jitter=0)


class FakeWorker(BaseWorker):
    """One worker of `Fakes`."""

    def __init__(self, fakes: Fakes, name: str, number: int) -> None:
        super().__init__(name)
        self.fakes = fakes
        self.number = number
        #: The environment variables of the worker.
        self.env: dict[str, str] = {}
        self.life: asyncio.Future[End | None] = asyncio.get_running_loop().create_future()

    def set_env(self, name: str, value: str) -> None:
        super().set_env(name, value)
        self.env[name] = value

    async def _launch(self) -> Awaitable[End | None]:
        if (error := self.fakes.fails.get((self.name, self.number))) is not None:
            self.fakes.log.append(f"{self.name} cannot")
            raise error
        if self.name in self.fakes.hangs:
            self.fakes.log.append(f"{self.name} hangs")
            await asyncio.Event().wait()
        self.fakes.log.append(f"{self.name} up")
        return self.life

    async def _terminate(self, *, force: bool) -> None:
        if force:
            self.end()
        elif self.name not in self.fakes.ignores_stop:
            asyncio.get_running_loop().call_later(self.fakes.stop_times.get(self.name, 0), self.end)

    async def suspend(self) -> None:
        if error := self.fakes.unsuspendable.get(self.name):
            raise error
        self._machine.to("suspended")  # type: ignore[arg-type]
        self.fakes.log.append(f"{self.name} suspended")

    async def resume(self) -> None:
        if error := self.fakes.unresumable.get(self.name):
            raise error
        self._machine.to("running")  # type: ignore[arg-type]
        self.fakes.log.append(f"{self.name} resumed")

    def end(self, error: BaseException | None = None, *, exit_code: int | None = None) -> None:
        if not self.life.done():
            self.fakes.log.append(f"{self.name} down")
            self.life.set_result(End(error=error, exit_code=exit_code))


class Fakes:
    """Creates fake workers, stores them by name, and logs their events."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.made: dict[str, list[FakeWorker]] = {}
        #: Workers by name and start number, counted from 1.
        self.fails: dict[tuple[str, int], BaseException] = {}
        self.hangs: set[str] = set()
        self.ignores_stop: set[str] = set()
        self.stop_times: dict[str, float] = {}
        self.unsuspendable: dict[str, Exception] = {}
        self.unresumable: dict[str, Exception] = {}

    def spec(self, name: str, **settings: Any) -> Spec:
        def make() -> FakeWorker:
            made = self.made.setdefault(name, [])
            made.append(FakeWorker(self, name, len(made) + 1))
            return made[-1]

        return Spec(name, make, **{"backoff": AT_ONCE, **settings})

    def specs(self, names: str, **settings: Any) -> list[Spec]:
        return [self.spec(name, **settings) for name in names.split()]

    def __getitem__(self, name: str) -> FakeWorker:
        return self.made[name][-1]

    def crash(self, name: str, error: BaseException | None = None) -> None:
        self[name].end(error or ValueError(f"{name} broke"))

    def take_log(self) -> list[str]:
        """Return the log since the last call, and clear it."""
        log, self.log = self.log, []
        return log


def statuses(supervisor: Supervisor) -> dict[str, str]:
    """Return the status of each child by name, in start order."""
    return {child.name: str(child.status) for child in supervisor.workers()}
