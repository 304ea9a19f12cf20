"""Every source works again if its router runs again, in the same event loop or in another one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from lifecycle.control import Event, Router
from lifecycle.sources import (
    BaseSource,
    FileWatchSource,
    HealthCheckSource,
    Inbox,
    InputSource,
    PromptSource,
    QueueSource,
    ScheduleSource,
    SignalSource,
    TickerSource,
    WebhookSource,
)
from lifecycle.testing import ManualSource, Recorder, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

LIMIT = 20.0


class Case:
    """A source, and a way to make it emit an event."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tmp_path = tmp_path
        self.monkeypatch = monkeypatch
        self.source: Any
        self.poke: Callable[[], Awaitable[object]] = self.nothing

    async def nothing(self) -> None:
        """The source emits an event at its start."""

    def generator(self) -> None:
        async def source() -> AsyncIterator[Event]:
            yield Event("a")
            await asyncio.Event().wait()

        self.source = source

    def object(self) -> None:
        class Once:
            async def __aenter__(self) -> None: ...

            async def __aexit__(self, *_: object) -> None: ...

            async def run(self, emit: Any) -> None:
                await emit(Event("a"))
                await asyncio.Event().wait()

        self.source = Once()

    def base(self) -> None:
        self.source = source = BaseSource("pushed")
        self.poke = lambda: source.emit(Event("a"))

    def manual(self) -> None:
        self.source = source = ManualSource()
        self.poke = lambda: source.send(Event("a"))

    def ticker(self) -> None:
        self.source = TickerSource(0.01)

    def schedule(self) -> None:
        self.source = ScheduleSource("* * * * * *", state=self.tmp_path / "state")

    def health(self) -> None:
        self.source = HealthCheckSource("disk", lambda: True, interval=60)

    def signals(self) -> None:
        self.source = SignalSource(signal.SIGUSR1)

        async def kill() -> None:
            os.kill(os.getpid(), signal.SIGUSR1)

        self.poke = kill

    def files(self) -> None:
        self.source = FileWatchSource(self.tmp_path)

        async def write() -> None:
            (self.tmp_path / os.urandom(4).hex()).write_text("x")

        self.poke = write

    def webhook(self, **settings: Any) -> None:
        self.source = source = WebhookSource(port=0, **settings)

        async def post() -> None:
            async with aiohttp.ClientSession() as client, client.post(f"{source.url}/a", data=b"x") as answer:
                assert answer.status == 202

        self.poke = post

    def inbox(self) -> None:
        self.webhook(inbox=Inbox(self.tmp_path / "inbox.db"))

    def input(self) -> None:
        self.source = InputSource(stream=self._pipe())

    def prompt(self) -> None:
        self.monkeypatch.setattr(sys, "stdin", self._pipe())
        self.source = PromptSource()

    def _pipe(self) -> Any:
        read, write = os.pipe()
        self.files_to_close = [os.fdopen(read), os.fdopen(write, "wb", buffering=0)]

        async def type_line() -> None:
            self.files_to_close[1].write(b"suspend\n")

        self.poke = type_line
        return self.files_to_close[0]

    files_to_close: tuple[Any, ...] | list[Any] = ()


SOURCES = (
    "generator object base manual ticker schedule health signals files webhook inbox input prompt".split()  # noqa: SIM905  # shorter
)


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    case = Case(tmp_path, monkeypatch)
    getattr(case, request.param)()
    yield case
    for file in case.files_to_close:
        file.close()


@contextlib.asynccontextmanager
async def cancelled(router: Router) -> AsyncIterator[None]:
    """Run the router during a block, then cancel it."""
    task = asyncio.create_task(router.run())
    await router.wait_running()
    yield
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("case", SOURCES, indirect=True)
@pytest.mark.parametrize("use", [running, cancelled])
def test_a_source_runs_again_in_the_same_loop_and_in_another(case: Case, use: Any) -> None:
    router, seen = Router(), Recorder()
    router.handle("**", seen)
    router.add_source(case.source)

    async def run() -> None:
        before = len(seen.events)
        async with asyncio.timeout(LIMIT), use(router):
            await case.poke()
            while len(seen.events) == before:
                await asyncio.sleep(0.001)

    async def run_twice() -> None:
        await run()
        await run()

    asyncio.run(run_twice())
    asyncio.run(run())
    assert not [each for each in router.sources() if each.failures]


@pytest.mark.parametrize("use", [running, cancelled])
async def test_a_queue_is_read_again_in_its_loop(use: Any) -> None:
    """An `asyncio.Queue` belongs to one event loop."""
    queue = asyncio.Queue[Event]()
    router, seen = Router(), Recorder()
    router.handle("**", seen)
    router.add_source(QueueSource(queue))
    for number in range(3):
        async with asyncio.timeout(LIMIT), use(router):
            queue.put_nowait(Event("a", number))
            await queue.join()
            while len(seen.events) == number:
                await asyncio.sleep(0)
    assert [event.data for event in seen.events] == [0, 1, 2]
