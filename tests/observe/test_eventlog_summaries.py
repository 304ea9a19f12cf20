"""Summaries of events in the log: enough to recognise an event, without its payload or secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from lifecycle.events import (
    CommandEvent,
    Event,
    FileBatch,
    FileEvent,
    HealthEvent,
    LineEvent,
    SuspendEvent,
    TickEvent,
    WebhookEvent,
)
from lifecycle.observe.eventlog.summaries import digest, summary


class Colour(Enum):
    RED = 1


class Silent:
    topic = "a"

    def __repr__(self) -> str:
        raise RuntimeError("never shown")

    __str__ = __repr__


@dataclass(frozen=True)
class Order:
    number: str
    colour: Colour = Colour.RED
    card: str = field(default="4111", repr=False)
    api_key: str = "abc"
    notes: Any = None
    topic: str = "order/new"


@dataclass
class Broken:
    topic: str = "a"
    value: int = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "value":
            raise RuntimeError("not today")
        return super().__getattribute__(name)


class Number(int):
    def __repr__(self) -> str:
        raise RuntimeError("never called")

    bit_length = __repr__  # type: ignore[assignment]


SUMMARIES = {
    "nothing": (Event("a"), ""),
    "number": (Event("a", 3), "3"),
    "text": (Event("a", "it's"), '"it\'s"'),
    "mapping": (Event("a", {"n": 1, "t": [1, 2], 3: None}), "{n: 1, t: list of 2, int: None}"),
    "much": (Event("a", dict.fromkeys(range(20))), "{int: None, …: +12}"),
    "bytes": (Event("a", b"hidden"), "6 bytes"),
    "large": (Event("a", 10**6000), "a large int"),
    "long": (Event("a", "x" * 10**6), f"'{'x' * 59}…'"),
    "object": (Event("a", Silent()), "Silent"),
    "strange number": (Event("a", Number()), "Number"),
    "own class": (Silent(), "Silent()"),
    "broken": (Broken(), "Broken()"),
    "word": (SuspendEvent(), "SuspendEvent()"),
    "record": (Order("A-1"), "Order(number='A-1', colour=RED, api_key=***, notes=None)"),
    "nested": (Order("A-1", notes={"secret": 1}), "Order(number='A-1', colour=RED, api_key=***, notes=dict of 1)"),
    "command": (CommandEvent("deploy", ("prod", "--token=abc")), "CommandEvent('prod --token=***')"),
    "line": (LineEvent("hunter2"), "LineEvent(7 characters)"),
    "file": (FileEvent("added", Path("a/b.py")), "FileEvent(change='added', path='a/b.py')"),
    "batch": (FileBatch({Path("a"): "added"}), "FileBatch(a added)"),
    "files": (FileBatch({Path(c): "added" for c in "abcde"}), "FileBatch(a added, b added, c added (+2))"),
    "health": (HealthEvent("db", healthy=True), "HealthEvent(name='db', healthy=True, message='')"),
    "tick": (
        TickEvent(datetime(2026, 1, 2, tzinfo=UTC), 3),
        "TickEvent(time=2026-01-02T00:00:00+00:00, count=3, name='ticker')",
    ),
}


@pytest.mark.parametrize(("event", "expected"), SUMMARIES.values(), ids=SUMMARIES)
def test_a_summary_shows_the_class_and_small_values(event: Any, expected: str) -> None:
    assert summary(digest(event)) == expected


SECRETS = [
    Event("login", {"password": "hunter2"}),
    Event("login", {"user": "bob", "Auth-Token": "hunter2"}),
    Event("auth/token", "hunter2"),
    Event("a", "password=hunter2"),
    Event("a", "Authorization: Bearer hunter2"),
    Event("a", '{"api_key": "hunter2"}'),
    Event("a", "postgres://bob:hunter2@db/shop"),
    Event("a", "Authorization: Basic hunter2"),
    Event("a", {"authorization": "hunter2"}),
    Event("a", "postgresql://the_service_of_the_shop:hunter2" + "x" * 60 + "@db/shop"),
    Event("a", {"deep": {"anything": "hunter2"}}),
    Event("a", ["hunter2"]),
    LineEvent("hunter2"),
    CommandEvent("login", ("--password", "hunter2")),
    WebhookEvent("POST", "/a", {"authorization": "hunter2"}, {"token": "hunter2"}, b"hunter2", "1"),
]


@pytest.mark.parametrize("event", SECRETS, ids=str)
def test_a_summary_shows_no_secrets(event: Any) -> None:
    assert "hunter2" not in summary(digest(event))


def test_values_that_are_not_secret_are_shown() -> None:
    assert (
        summary(digest(Event("a", {"author": "bob", "at": "http://h:80/a"}))) == "{author: 'bob', at: 'http://h:80/a'}"
    )


def test_it_is_bounded_whatever_the_event_holds() -> None:
    wide = Event("a", {"k" * 10**6 + str(number): "v" * 10**6 for number in range(20)})
    assert len(summary(digest(wide))) <= 240
    assert len(str(digest(wide))) < 2000, "the digest is too large"
