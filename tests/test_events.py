"""The library's events: frozen records with the topics that the documentation lists."""

from __future__ import annotations

import dataclasses
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lifecycle import events
from lifecycle.control import Pattern
from lifecycle.events import topics_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)

TOPICS: list[tuple[Any, str]] = [
    (events.SuspendEvent(), "lifecycle/suspend"),
    (events.ResumeEvent(), "lifecycle/resume"),
    (events.ShutdownEvent(), "lifecycle/shutdown"),
    (events.ShutdownEvent("manual"), "lifecycle/shutdown"),
    (events.TerminateEvent(), "lifecycle/terminate"),
    (events.ReloadEvent(), "lifecycle/reload"),
    (events.InterruptEvent(), "lifecycle/interrupt"),
    (events.ClearLineEvent(), "lifecycle/clear-line"),
    (events.SignalEvent(signal.SIGINT), "signal/interrupt"),
    (events.SignalEvent(signal.SIGTERM), "signal/terminate"),
    (events.SignalEvent(signal.SIGHUP), "signal/hangup"),
    (events.SignalEvent(signal.SIGUSR1), "signal/user1"),
    (events.SignalEvent(signal.SIGUSR2), "signal/user2"),
    (events.SignalEvent(signal.SIGWINCH), "signal/winch"),
    (events.SignalEvent(signal.SIGCHLD), "signal/chld"),
    (events.CommandEvent("deploy", ("a",)), "command/deploy"),
    (events.LineEvent("x"), "input/line"),
    (events.UnknownCommandEvent("x", ("a", "b")), "input/unknown"),
    (events.EndOfInputEvent(), "input/eof"),
    (events.TickEvent(NOW, 1), "tick/ticker"),
    (events.TickEvent(NOW, 1, "a/b"), "tick/a/b"),
    (events.FileEvent("added", Path("x")), "file/added"),
    (events.FileEvent("modified", Path("x")), "file/modified"),
    (events.FileEvent("deleted", Path("x")), "file/deleted"),
    (events.FileBatch({}), "file/batch"),
    (events.HealthEvent("db", healthy=True), "health/db/up"),
    (events.HealthEvent("db/main", healthy=False, message="no"), "health/db/main/down"),
    (events.WebhookEvent("POST", "/deploy/x", {}, {}, b"", ""), "webhook/deploy/x"),
    (events.WebhookEvent("POST", "/", {}, {}, b"", ""), "webhook"),
    (events.StatusEvent("app", "running", "failed", None), "status/app"),
    (events.StatusEvent("app/api", "running", "failed", None), "status/app/api"),
]


@pytest.mark.parametrize(("event", "topic"), TOPICS, ids=lambda value: value if isinstance(value, str) else None)
def test_an_event_has_the_topic_of_the_table(event: Any, topic: str) -> None:
    assert event.topic == topic


@pytest.mark.parametrize("event", [event for event, _ in TOPICS], ids=repr)
def test_a_class_matches_the_topics_of_all_its_events(event: Any) -> None:
    assert Pattern(topics_of(type(event))).matches(event.topic)


@pytest.mark.parametrize("event", [events.Event("a", 1), *(event for event, _ in TOPICS)], ids=repr)
def test_an_event_is_a_frozen_record_without_a_dict(event: Any) -> None:
    for name in ("topic", "data", "new"):
        with pytest.raises((dataclasses.FrozenInstanceError, TypeError, AttributeError)):
            setattr(event, name, "x")
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.topic = "x"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del event.topic
    assert not hasattr(event, "__dict__")
    assert type(event).__name__ in repr(event)


def test_every_event_of_the_table_is_tried_here() -> None:
    mentioned = {type(event).__name__ for event, _ in TOPICS} | {"Event", "Topical", "Change", "topics_of"}
    assert mentioned == set(dir(events))


def test_events_of_the_same_content_are_equal_and_those_of_different_classes_are_not() -> None:
    assert events.Event("a", 1) == events.Event("a", 1)
    assert events.Event("a") == events.Event("a", None)
    assert events.SuspendEvent() == events.SuspendEvent()
    assert len({events.SuspendEvent(), events.ResumeEvent(), events.SuspendEvent()}) == 2
    assert hash(events.CommandEvent("a", ("b",))) == hash(events.CommandEvent("a", ("b",)))


def test_a_signal_event_knows_its_name() -> None:
    assert events.SignalEvent(15).name == "SIGTERM"
    assert events.SignalEvent(signal.SIGRTMIN + 2).name == "SIGRTMIN+2"
    assert events.SignalEvent(signal.SIGRTMIN + 2).topic == "signal/rtmin+2"
    with pytest.raises(ValueError, match="999"):
        events.SignalEvent(999)


def test_an_invalid_change_is_refused() -> None:
    with pytest.raises(ValueError, match="'moved' is not a file change"):
        events.FileEvent("moved", Path("x"))  # type: ignore[arg-type]  # that is the point


def test_a_webhooks_body_is_read_as_text_and_as_json() -> None:
    event = events.WebhookEvent("POST", "/x", {}, {}, b'{"ref": "main"}', "1")
    assert event.json() == {"ref": "main"}
    assert events.WebhookEvent("POST", "/x", {}, {}, b"a\xff", "1").text() == "a\N{REPLACEMENT CHARACTER}"
    with pytest.raises(ValueError, match="Expecting value"):
        events.WebhookEvent("POST", "/x", {}, {}, b"no", "1").json()


def test_defaults_are_those_of_the_table() -> None:
    assert events.ShutdownEvent().reason == ""
    assert events.CommandEvent("a").args == ()
    assert events.TickEvent(NOW, 1).name == "ticker"
    assert events.HealthEvent("a", healthy=True).message == ""
