"""Hooks: announcements reach every receiver, and a receiver cannot stop them."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from lifecycle import hooks
from lifecycle.control import Event, NotHandled, Router
from lifecycle.testing import Clock, Recorder, running

NAMES = [
    "event_routed",
    "event_unrouted",
    "event_dropped",
    "event_merged",
    "handler_finished",
    "handler_failed",
    "source_failed",
    "webhook_refused",
    "router_started",
    "router_stopped",
    "state_changed",
    "worker_started",
    "worker_failed",
    "worker_killed",
    "restart_scheduled",
    "worker_restarted",
    "circuit_opened",
    "call_queued",
    "call_dispatched",
    "call_finished",
    "pool_saturated",
    "pool_recovered",
    "member_changed",
    "health_checked",
    "session_bound",
    "session_hit",
    "session_missed",
    "session_lost",
    "session_evicted",
    "task_started",
    "task_finished",
    "task_crashed",
    "critical_finished",
    "hook_finished",
    "signal_received",
    "forced_exit",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_hook_of_the_documentation_exists_with_its_arguments(name: str) -> None:
    hook = getattr(hooks, name)
    assert hook.name == name
    assert "``" in hook.__doc__
    assert name in hooks.__all__


def test_a_receiver_that_raises_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    hook, seen = hooks.Hook("tried", "For this test."), list[Any]()

    @hook.connect
    def fails(sender: object, *, x: int) -> None:
        raise RuntimeError("a receiver's own")

    @hook.connect
    def works(sender: object, *, x: int) -> None:
        seen.append((sender, x))

    hook.announce("me", x=1)
    assert seen == [("me", 1)]
    assert "a receiver's own" in caplog.text
    assert "hooks.tried" in caplog.text


def test_receivers_are_held_strongly_by_default() -> None:
    hook, seen = hooks.Hook("tried", "For this test."), list[str]()

    def connect() -> None:
        def weak(sender: object) -> None:
            seen.append("weak")

        hook.connect(lambda _: seen.append("strong"))
        hook.connect(weak, weak=True)

    connect()
    gc.collect()
    hook.announce("me")
    assert seen == ["strong"]


class Counting(hooks.Hook):
    """A hook that counts how often its receivers are looked up for a sender."""

    look_ups = 0

    def receivers_for(self, sender: Any) -> Any:
        self.look_ups += 1
        return super().receivers_for(sender)


@pytest.mark.parametrize("how", ["disconnected", "collected", "one sender"])
def test_receivers_are_not_looked_up_once_the_last_special_one_is_gone(how: str) -> None:
    hook, seen = Counting("tried", "For this test."), list[object]()

    def special(_sender: object) -> None:
        seen.append("special")

    hook.connect(seen.append)
    if how == "one sender":
        hook.connect(special, sender=hook)
    else:
        hook.connect(special, weak=True)
    hook.announce(hook)
    assert sorted(map(str, seen)) == sorted([str(hook), "special"])
    if how == "collected":
        del special
        gc.collect()
    else:
        hook.disconnect(special)
    hook.announce("settles")
    before = hook.look_ups
    for number in range(3):
        hook.announce(number)
    assert hook.look_ups == before
    assert seen[-3:] == [0, 1, 2]


def test_an_async_receiver_is_refused() -> None:
    async def receiver(sender: object) -> None: ...

    with pytest.raises(TypeError, match=r"hooks\.task_started does not wait"):
        hooks.task_started.connect(receiver)


def test_a_receiver_may_connect_to_one_sender_only() -> None:
    hook, seen = hooks.Hook("tried", "For this test."), list[object]()
    one, other = object(), object()
    hook.connect(seen.append, sender=one)
    hook.announce(one)
    hook.announce(other)
    assert seen == [one]


async def test_hooks_on_events_have_the_router_as_sender(clock: Clock) -> None:
    router, seen = Router(), list[Any]()
    names = [name for name in NAMES if name.startswith(("event_", "handler_"))]

    def receiver(name: str) -> Any:
        def note(sender: object, **arguments: Any) -> None:
            assert sender is router
            seen.append((name, arguments))

        return note

    receivers = {name: receiver(name) for name in names}
    for name, each in receivers.items():
        getattr(hooks, name).connect(each)

    def fails(_event: Event) -> None:
        raise ValueError

    router.handle("good", Recorder())
    router.handle("bad", fails)
    router.handle("late", Recorder(), debounce=1)
    router.handle("full", Recorder(), busy="drop", concurrency=1)
    try:
        async with running(router):
            await (await router.emit(Event("good")))
            for topic in ("bad", "late", "full", "full"):
                await router.emit(Event(topic))
            with pytest.raises(NotHandled):
                await router.emit(Event("nobody"))
            await clock.advance(2)
    finally:
        for name, each in receivers.items():
            getattr(hooks, name).disconnect(each)
    arguments = {
        "event_routed": {"event", "pattern", "delivery"},
        "event_unrouted": {"event"},
        "event_dropped": {"event", "pattern", "reason"},
        "event_merged": {"event", "pattern", "delivery"},
        "handler_finished": {"event", "pattern", "duration"},
        "handler_failed": {"event", "pattern", "error"},
    }
    assert {name: set(given) for name, given in seen} == arguments
    counts = {name: sum(each == name for each, _ in seen) for name in arguments}
    assert counts == {
        "event_routed": 5, "event_unrouted": 1, "event_dropped": 1, "event_merged": 1,
        "handler_finished": 3, "handler_failed": 1,
    }  # fmt: skip
