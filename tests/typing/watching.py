"""User code that observes a program, and test helpers."""

from typing import Any, assert_type

from lifecycle import Event, Router, hooks
from lifecycle.control import Delivery
from lifecycle.observe import (
    ControlSocket,
    Dashboard,
    Entry,
    EventLog,
    JsonFormatter,
    OpenTelemetryTraces,
    PrometheusMetrics,
    Snapshot,
    Update,
    mermaid,
    snapshot,
    watch,
)
from lifecycle.testing import Clock, FakeSignals, ManualSource, Recorder, VirtualLoop, running

router = Router()


async def updates() -> None:
    async with watch(router, interval=0.5) as changes:
        async for update in changes:
            assert_type(update, Update)
            assert_type(update.snapshot, Snapshot)
            for name, node in update.nodes.items():
                assert_type(name, str)
                assert_type(node, dict[str, Any] | None)
    assert_type(snapshot(router), Snapshot)
    assert_type(mermaid.system(router.state()), str)
    # The changes are an async iterator, not a list.
    watch()[0]  # type: ignore[index]  # pyright: ignore[reportIndexIssue]


async def observers() -> None:
    async with EventLog() as log, ControlSocket("mail"), Dashboard(port=8080) as page:
        assert_type(log.entries("mail/*", limit=3), list[Entry])
        assert_type(page.url, str)
    async with PrometheusMetrics(), OpenTelemetryTraces():
        pass
    JsonFormatter()
    # A port is a number.
    Dashboard(port="8080")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def receiver_(_sender: object, *, event: Event, **_: object) -> None: ...


hooks.event_routed.connect(receiver_)
# This hook does not exist.
hooks.event_sent.connect(receiver_)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
# A receiver must be callable.
hooks.event_routed.connect("told")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


async def test_of_a_user(clock: Clock) -> None:
    source = ManualSource()
    seen = Recorder()
    router.add_source(source)
    router.handle("a", seen)
    async with running(router) as started:
        assert_type(started, Router)
        assert_type(await source.send(Event("a")), Delivery)
        await clock.advance(3)
        await clock.settle()
    assert_type(clock.time(), float)
    assert_type(seen.topics, list[str])
    assert_type(seen.events, list[Any])
    with FakeSignals(terminal=True) as signals:
        signals.send()
    VirtualLoop().close()
    # The source sends events, not topics.
    await source.send("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # `running` must be entered with ``async with``.
    with running(router):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
