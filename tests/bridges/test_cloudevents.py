"""Events as CloudEvents: a round trip preserves them, and the ``cloudevents`` package uses the same format."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from cloudevents.core.bindings.http import (
    HTTPMessage,
    from_structured,
    to_structured,
)
from cloudevents.core.bindings.http import (
    from_binary as oracle_from_binary,
)
from cloudevents.core.bindings.http import (
    to_binary as oracle_to_binary,
)
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.bridges import BusEvent, from_json, to_json
from lifecycle.bridges.cloudevents import from_binary, to_binary
from lifecycle.control import Event, FileEvent, WebhookEvent
from lifecycle.errors import Unpublishable

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
DATA = JSON | st.binary()
TOPICS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
TIMES = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]))


@dataclass(frozen=True)
class Mail:
    """A custom event."""

    id: str
    data: Any
    time: datetime
    topic: str = "mail/new"


@given(TOPICS, DATA)
def test_an_event_comes_back_from_headers_and_body(topic: str, data: Any) -> None:
    headers, body = to_binary(Event(topic, data), "/here/group")
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    back = from_binary(topic, headers, body, attempt=3)
    assert (back.topic, back.data, back.attempt, back.source, back.type) == (topic, data, 3, "/here/group", "Event")
    assert back.time is not None
    assert abs(datetime.now(UTC) - back.time) < timedelta(minutes=5)
    assert uuid.UUID(back.id).version == 4


@given(TOPICS, DATA)
def test_an_event_comes_back_from_one_line_of_json(topic: str, data: Any) -> None:
    text = to_json(Event(topic, data))
    assert "\n" not in text
    back = from_json(text)
    assert (back.topic, back.data, back.attempt) == (topic, data, 1)


@given(IDS, TOPICS, DATA, TIMES)
def test_the_reference_library_reads_sent_events(name: str, topic: str, data: Any, time: datetime) -> None:
    headers, body = to_binary(Mail(name, data, time, topic), "/here/group")
    # The package's HTTP binding uses a different name for this one attribute.
    kind = headers.pop("ce-datacontenttype", None)
    read = oracle_from_binary(HTTPMessage(headers | ({"content-type": kind} if kind else {}), body), JSONFormat())
    attributes = read.get_attributes()
    assert attributes["id"] == name
    assert (attributes["subject"], attributes["type"], attributes["source"]) == (topic, "Mail", "/here/group")
    assert attributes["time"] == time
    got = read.get_data()
    # The package reads bytes as text if possible, and an empty body as no data.
    assert (got if not isinstance(data, bytes) else got.encode() if isinstance(got, str) else got or b"") == data


@given(IDS, TOPICS, DATA, TIMES)
def test_the_reference_library_reads_written_events(name: str, topic: str, data: Any, time: datetime) -> None:
    message = HTTPMessage({}, to_json(Mail(name, data, time, topic)).encode())
    read = from_structured(message, JSONFormat())
    attributes = read.get_attributes()
    assert (attributes["id"], attributes["subject"], attributes["time"]) == (name, topic, time)
    assert read.get_data() == data


@given(IDS, TOPICS, st.dictionaries(st.text(), JSON), TIMES)
def test_events_of_the_reference_library_are_read(name: str, topic: str, data: Any, time: datetime) -> None:
    attributes = {"id": name, "source": "/there", "type": "t", "subject": topic, "time": time, "specversion": "1.0"}
    event = CloudEvent({**attributes, "datacontenttype": "application/json", "partitionkey": "k 1"}, data)
    written, structured = oracle_to_binary(event, JSONFormat()), to_structured(event, JSONFormat())
    for back in (
        from_binary("of/the/subject", written.headers, written.body),
        from_binary("of/the/subject", structured.headers, structured.body),
        from_json(structured.body),
    ):
        assert (back.id, back.source, back.type, back.data, back.time) == (name, "/there", "t", data, time)
        assert back.headers["partitionkey"] == "k 1"
    assert from_json(structured.body).topic == topic


def test_headers_keep_the_trace_context_and_drop_those_of_the_server() -> None:
    headers, body = to_binary(Event("a"), "/x")
    back = from_binary("a", {**headers, "Traceparent": "00-1-2-01", "Nats-Msg-Id": "x"}, body)
    assert dict(back.headers) == {"traceparent": "00-1-2-01"}
    with pytest.raises(TypeError):
        back.headers["a"] = "b"  # type: ignore[index]


def test_a_message_of_a_program_that_knows_no_cloudevents_is_an_event() -> None:
    back = from_binary("plain", {}, b"\xff\x00", id="EVENTS/7", attempt=2)
    assert back == BusEvent("plain", b"\xff\x00", "EVENTS/7", attempt=2)
    assert from_binary("plain", {"Content-Type": "text/plain; charset=utf-8"}, "ü".encode()).data == "ü"
    assert from_binary("plain", {"content-type": "application/x+json"}, b"[1]").data == [1]
    assert from_binary("plain", {"ce-time": "yesterday"}, b"").time is None


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"ce-datacontenttype": "application/json"}, b"{"),
        ({"ce-datacontenttype": "application/json"}, b"\xff"),
        ({"ce-datacontenttype": "text/plain"}, b"\xff"),
        ({"content-type": "application/cloudevents+json"}, b"[]"),
        ({"content-type": "application/cloudevents+json"}, b'{"specversion": "0.3"}'),
        ({"content-type": "application/cloudevents+json"}, b'{"specversion": "1.0"}'),
        ({"content-type": "application/cloudevents+json"}, b'{"specversion": "1.0", "id": "1", "data_base64": "?"}'),
        ({"content-type": "application/cloudevents+json"}, b'{"specversion": "1.0", "id": "1", "data_base64": 1}'),
    ],
)
def test_a_body_that_does_not_match_its_content_type_is_refused(headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(ValueError):  # the reader interprets it
        from_binary("a", headers, body)


@given(st.binary() | st.text().map(str.encode) | JSON.map(lambda data: json.dumps(data).encode()))
def test_any_file_is_read_as_an_event_or_refused(text: bytes) -> None:
    with suppress(ValueError):
        assert from_json(text).topic


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int


class Struct(msgspec.Struct):
    topic: str
    name: str


class Plain:
    def __init__(self) -> None:
        self.topic = "plain"
        self.number = 1
        self._hidden = object()


WHEN = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (Event("a", {"path": Path("/x"), "when": WHEN}), {"path": "/x", "when": WHEN.isoformat()}),
        (Event("a", [Colour.RED, b"\x00", uuid.UUID(int=1), {1}]), ["red", "AA==", str(uuid.UUID(int=1)), [1]]),
        (Event("a", [Point(1)]), [[1]]),
        (Event("a", Mail("1", 2, WHEN)), {"id": "1", "data": 2, "time": WHEN.isoformat(), "topic": "mail/new"}),
        (FileEvent("added", Path("a.py")), {"change": "added", "path": "a.py"}),
        (Struct("a", "x"), {"name": "x"}),
        (Plain(), {"number": 1}),
        (
            WebhookEvent("POST", "/x", {"a": "b"}, {}, b"body", "id-1"),
            {"method": "POST", "path": "/x", "headers": {"a": "b"}, "query": {}, "body": "Ym9keQ==", "id": "id-1"},
        ),
    ],
)
def test_records_of_any_make_are_their_fields(event: Any, data: Any) -> None:
    assert from_binary(event.topic, *to_binary(event, "/x")).data == data


def test_the_id_and_the_time_of_an_event_are_kept() -> None:
    event = Mail("order 7\n", None, datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    back = from_binary("mail/new", *to_binary(event, "/x"))
    assert (back.id, back.time, back.data) == ("order 7\n", event.time, None)


@pytest.mark.parametrize("data", [object(), float("nan"), {"a": {1: object()}}, Event, 1j])
def test_data_that_is_no_json_is_refused_with_the_topic(data: Any) -> None:
    with pytest.raises(Unpublishable, match="the data of 'a' cannot be encoded"):
        to_binary(Event("a", data), "/x")


def test_data_that_holds_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(Unpublishable, match="cannot be encoded"):
        to_json(Event("a", circle))


def test_an_id_without_end_and_halves_of_characters_are_refused() -> None:
    with pytest.raises(Unpublishable, match=r"1,025 characters"):
        to_binary(Mail("x" * 1025, None, datetime.now(UTC)), "/x")
    with pytest.raises(Unpublishable, match="surrogate"):
        to_binary(Mail("\ud800", None, datetime.now(UTC)), "/x")


def test_null_means_missing() -> None:
    event = from_json('{"specversion": "1.0", "id": "1", "type": "T", "subject": null, "data_base64": null, "x": null}')
    assert (event.topic, event.data, dict(event.headers)) == ("T", None, {})


@pytest.mark.parametrize("encoded", ["1234", "[]", "true", '"?"'])
def test_data_that_is_not_base64_is_refused(encoded: str) -> None:
    with pytest.raises(ValueError, match=r"data_base64|base64"):
        from_json(f'{{"specversion": "1.0", "id": "1", "type": "T", "data_base64": {encoded}}}')
