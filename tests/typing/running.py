"""User code with programs, their background tasks, and their sources."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, timedelta
from functools import partial
from pathlib import Path
from typing import Self, assert_type

from lifecycle import (
    BaseSource,
    CommandEvent,
    Delivery,
    Event,
    FileWatchSource,
    GitHub,
    Group,
    HealthCheckSource,
    InputSource,
    Lifetime,
    Limits,
    PromptSource,
    QueueSource,
    Reason,
    Router,
    ScheduleSource,
    SignalSource,
    TickerSource,
    WebhookEvent,
    WebhookSource,
    current,
    do,
    do_detached,
    go,
    lifetime,
    new_interactive_router,
    on_shutdown,
    read_line,
    run,
    shutdown,
    sleep,
)
from lifecycle.backoff import Backoff
from lifecycle.control import Debounce, Emit
from lifecycle.handlers import SuspendHandler
from lifecycle.runtime import Health, LifetimeState
from lifecycle.sources import Source
from lifecycle.workers import TaskWorker

router = Router()

# -- run --------------------------------------------------------------------------------------------------------------


async def main() -> int:
    return 0


async def with_arguments(port: int, *, host: str = "") -> None: ...


def plain() -> None: ...


class Server:
    """Any object with ``async def run()``."""

    async def run(self) -> None: ...


run(main)
run(Server(), router, TaskWorker("job", main), main, force_exit=2, exit_timeout=10)
run(partial(with_arguments, 80, host="here"))

# Unlike `asyncio.run`, `run` takes a function, not a coroutine.
run(main())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A main is called without arguments.
run(with_arguments)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A main must be async.
run(plain)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A main must be an instance, not a class.
run(Server)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# No such setting exists.
run(main, timeout=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


class WebServer:
    started = False
    should_exit = False

    async def serve(self, sockets: list[str] | None = None) -> None: ...

    def run(self) -> None: ...


run(router, WebServer())
run(router, WebServer().serve)

# -- in a lifetime ----------------------------------------------------------------------------------------------------


def add(a: int, b: int) -> int:
    return a + b


async def fetch(url: str) -> bytes:
    return url.encode()


@on_shutdown
async def clean_up() -> bool:
    return True


async def lives() -> None:
    async with lifetime(router, main, signals=False, on_stop=plain) as life:
        assert_type(life.health(), Health)
        assert_type(life.health().ready, bool)
        assert_type(life.health().components["x"].message, str)
        assert_type(life, Lifetime)
        assert_type(life.reason, Reason)
        assert_type(life.signum, int | None)
        assert_type(life.state(), LifetimeState)
        life.on_shutdown(plain)
    assert_type(current().stopping, bool)
    assert_type(go(fetch, "a"), asyncio.Task[bytes])
    assert_type(current().go(add, 1, 2, name="sum"), asyncio.Task[int])
    assert_type(await do(fetch, "a"), bytes)
    assert_type(await do(add, 1, 2), int)
    assert_type(await do_detached(fetch, "a"), bytes)
    async with Group(limit=3) as group:
        assert_type(await group.go(fetch, "a"), asyncio.Task[bytes])
    assert_type(await sleep(3), None)
    assert_type(await clean_up(), bool)
    shutdown(Reason.CANCEL)
    # `go` takes a function, not a coroutine.
    go(fetch("a"))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    # A hook must take no arguments.
    on_shutdown(fetch)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    # A reason is a string.
    shutdown(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # A lifetime must be entered with ``async with``.
    with lifetime():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass


async def lines(stream: asyncio.StreamReader) -> None:
    assert_type(await read_line(stream), bytes)
    # This is not a valid mode.
    await read_line(stream, mode="loose")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# -- sources ----------------------------------------------------------------------------------------------------------


async def numbers() -> AsyncIterator[Event]:
    yield Event("number", 1)


async def texts() -> AsyncIterator[str]:
    yield "a"


class Listening:
    """A source that pushes events and is entered before it runs."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def run(self, emit: Emit) -> None:
        assert_type(await emit(Event("a")), Delivery)
        # Emitted objects need a topic.
        await emit("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Clicks(Source):
    """A source that overrides a default."""

    async def run(self, emit: Emit) -> None:
        assert_type(self.paused, bool)
        await (await emit(Event("click")))

    def close(self) -> None: ...

    def use_router(self, given: Router) -> None:
        given.handle("clicks", print)


class Deaf:
    """An object that is not a source, because its ``run`` does not take a function that emits events."""

    async def run(self) -> None: ...


class Mailbox(BaseSource):
    """A source into which other code pushes events."""

    async def take(self, text: str) -> None:
        await self.emit(Event("mail", text))
        assert_type(self.try_emit(Event("mail", text)), bool)
        self.emit_threadsafe(Event("mail", text))


queue: asyncio.Queue[Event | None] = asyncio.Queue()

router.add_source(numbers)
router.add_source(numbers())
router.add_source(Listening(), restart="never")
router.add_source(Mailbox("mail", buffer=3))
router.add_source(Clicks())
router.add_source(QueueSource(queue))
router.add_source(TickerSource(1.5, immediate=True))
router.add_source(ScheduleSource("@daily", timezone=UTC, catch_up="once", jitter=timedelta(minutes=1)))
router.handle("durations", print, debounce=timedelta(seconds=1))
assert_type(Debounce(timedelta(seconds=1), max_wait=2).max_wait, float | None)
assert_type(Backoff(initial=timedelta(seconds=1)).initial, float)
Backoff(initial="1 s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
router.add_source(SignalSource())
router.add_source(InputSource())
router.add_source(PromptSource(prompt="? "))
router.add_source(FileWatchSource("src", Path("docs"), include=["*.py"]))
router.add_source(HealthCheckSource("db", main, trigger="level"))
router.add_source(WebhookSource(port=8080, verify=GitHub("secret"), limits=Limits(rate=None)))

# A source's events must have topics.
router.add_source(texts)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A source must be an instance, not a class.
router.add_source(Listening)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A source must accept a function that emits events.
router.add_source(Deaf())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# This is not a valid value of restart.
router.add_source(numbers, restart="always")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A check must be a function.
HealthCheckSource("db", True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# This is not a valid value of catch_up.
ScheduleSource("@daily", catch_up="some")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# This is not a valid trigger.
HealthCheckSource("db", main, trigger="rise")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A verifier is a signature scheme, not a secret.
WebhookSource(verify="secret")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# Paths are separate arguments, not a list.
FileWatchSource(["src", "docs"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@router.on(WebhookEvent)
async def hooked(event: WebhookEvent) -> None:
    assert_type(event.body, bytes)
    assert_type(event.text(), str)
    assert_type(event.headers["content-type"], str)


# -- at a prompt ------------------------------------------------------------------------------------------------------


class Engine:
    """An object with the methods to suspend and resume it."""

    async def suspend(self) -> None: ...

    def resume(self) -> None: ...


repl = new_interactive_router(suspend=Engine(), commands={"deploy": hooked}, prompt="> ")
new_interactive_router(suspend=SuspendHandler(timeout=3), shutdown=plain)
assert_type(repl, Router)


@repl.command
async def greet(event: CommandEvent) -> str:
    return event.args[0]


async def greets(event: CommandEvent) -> None:
    assert_type(await greet(event), str)


# An object with ``suspend`` also needs ``resume``.
new_interactive_router(suspend=Deaf())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A command needs a handler.
new_interactive_router(commands=["deploy"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
