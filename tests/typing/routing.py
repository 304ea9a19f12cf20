"""User code with events, handlers, middleware and deliveries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_type

from lifecycle import (
    CommandEvent,
    Debounce,
    Delivery,
    Event,
    FileBatch,
    FileEvent,
    LineEvent,
    NotHandled,
    Router,
    SuspendEvent,
    debounce,
    delivery,
    log,
    merge_files,
    once,
    recover,
    timeout,
)
from lifecycle.control import AsyncHandler, Busy, Command, Observation, Route, RouteInfo, Subscription, Topical
from lifecycle.control.router import add_relay, call_directly
from lifecycle.errors import LaneFull

router = Router("mail", buffer=10)


@dataclass(frozen=True, slots=True)
class MailEvent:
    """A custom event: any object with a topic."""

    sender: str
    topic: str = field(default="mail/new", init=False)


class OrderEvent(Event):
    """An event that inherits from `Event`."""

    topics = "order/*"


# -- decorators return the function unchanged ---------------------------------------------------------------------


@router.on("file/*", debounce=0.2, busy="restart")
async def build(event: FileEvent) -> int:
    return len(event.path.parts)


@router.on(MailEvent, lane="mail", middleware=[once, timeout(5)])
def answer(event: MailEvent) -> str:
    return event.sender


@router.on(OrderEvent, debounce=Debounce(1, max_wait=5, merge=merge_files), busy=Busy.DROP)
async def order(event: OrderEvent) -> None: ...


@router.on("order/*", lane=lambda event: event.topic, concurrency=4)
async def by_key(event: OrderEvent) -> None: ...


@router.on("device/{name}/temp", lane=lambda event: event.topic)
async def temperature(event: Event, name: str) -> None: ...


@router.command
async def deploy(event: CommandEvent) -> None:
    """Deploy the branch."""


@router.fallback
async def nobody(event: Topical) -> bytes:
    return event.topic.encode()


async def decorated(file: FileEvent, mail: MailEvent, command: CommandEvent) -> None:
    assert_type(await build(file), int)
    assert_type(answer(mail), str)
    assert_type(await deploy(command), None)
    assert_type(await nobody(mail), bytes)
    # This handler of file events would receive mail.
    await build(mail)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # A handler takes exactly one event.
    answer(mail, mail)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


class Counter:
    """A callable object."""

    def __call__(self, event: Topical) -> None: ...

    async def on_line(self, event: LineEvent) -> None: ...

    async def on_device(self, event: Event, *, name: str) -> None: ...


assert_type(router.handle("a/**", Counter()), Route)
assert_type(router.handle("input/line", Counter().on_line), Route)
assert_type(router.handle("device/{name}", Counter().on_device), Route)
assert_type(router.handle("device/{name}/temp", temperature), Route)
assert_type(router.observe("device/{name}/{rest:**}", temperature), Observation)
assert_type(router.observe("device/{name}/temp", temperature), Observation)
assert_type(router.command("deploy", deploy, help="bring it out"), Route)
assert_type(router.observe(FileEvent, print), Observation)
assert_type(router.observe(FileEvent, print, debounce=1, busy="drop"), Observation)
assert_type(list(router.commands), list[Command])
assert_type(router.routes(), list[RouteInfo])
assert_type(router.explain("mail/new")[0].pattern, str)

# An int has no topic, so its class is not an event class.
router.handle(int, print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A custom class without a topic is not an event class either.
router.on(Counter)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# This is not a valid value of busy.
router.handle("a", print, busy="wait")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# No such setting exists.
router.on("a", debounced=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
# A handler must accept the event.
router.handle("device/{name}", lambda: None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# Only a route passes values for the names in its pattern.
debounce(temperature, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
router.handle("a", "print")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# Settings are keyword arguments.
router.handle("a", print, 0.2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
# A command's name is a string.
router.command(7)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
# A relay returns whether the event is passed on.
add_relay(router, "a", build)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# -- events and their deliveries ----------------------------------------------------------------------------------


async def deliveries(mail: MailEvent) -> None:
    assert_type(await router.emit(mail), Delivery)
    assert_type(router.emit_nowait(SuspendEvent()), Delivery)
    sent = await router.emit(Event("a", {"n": 1}))
    assert_type(await sent, Any)
    assert_type(sent.event, Topical)
    assert_type((sent.id, sent.attempt), tuple[int, int])
    assert_type(sent.parent, Delivery | None)
    assert_type(delivery().error, BaseException | None)
    assert_type(delivery().params, Mapping[str, str])
    # The parameters are read-only.
    delivery().params["name"] = "1"  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
    assert_type(await call_directly(router, mail), None)
    try:
        router.emit_nowait(mail)
    except LaneFull as full:
        assert_type(full, LaneFull)
    except NotHandled as passed:
        assert_type(passed, NotHandled)
    # A string has no topic, so it is not an event.
    await router.emit("mail/new")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # An event class is not an event. Only an instance is.
    await router.emit(FileEvent)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # Events are immutable.
    mail.sender = "me"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


async def subscriptions() -> None:
    async with router.subscribe("file/*", maxsize=5) as events:
        assert_type(events, Subscription)
        async for event in events:
            # A pattern does not determine the class of its events, so the code must check it.
            assert_type(event, Topical)
            if isinstance(event, FileEvent):
                assert_type(event.path.name, str)
        assert_type(events.dropped, int)
    # A subscription must be entered with ``async with``.
    with router.subscribe("a"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass


# -- middleware ---------------------------------------------------------------------------------------------------


def measured(handler: AsyncHandler) -> AsyncHandler:
    async def call(event: Topical) -> Any:
        return await handler(event)

    return call


router.use(once, recover(), log(), timeout(3), measured)
router.use(recover, log, once, timeout, recover(handler=print))


@once
async def first(event: FileEvent) -> None: ...


@timeout(3)
def slow(event: MailEvent) -> None: ...


async def wrapped(file: FileEvent, mail: MailEvent) -> None:
    await first(file)
    await slow(mail)
    # A wrapped handler accepts the same events.
    await first(mail)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await slow(file)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # A wrapped handler must be awaited, and returns None.
    slow(mail).upper()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


# -- debouncing without a router ------------------------------------------------------------------------------------

settled = debounce(build, 0.2, max_wait=2, key=lambda event: event.path)
router.handle("file/*", settled)


async def windows(file: FileEvent, batch: FileBatch) -> None:
    assert_type(await settled(file), None)
    assert_type(await settled.flush(), None)
    assert_type(merge_files(batch, file), FileBatch)
    # A debounce needs a duration.
    debounce(build)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
