"""Events as CloudEvents 1.0: in binary mode on the bus, and as structured JSON in files, logs and webhooks.

In binary mode, the attributes are headers that begin with ``ce-``, and the body is the data. The attribute
``datacontenttype`` is the content type of the data, as in the NATS protocol binding. ``subject`` is the topic, and
``type`` is the event's class.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import uuid
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote
from uuid import UUID

from lifecycle.bridges.events import BusEvent
from lifecycle.errors import Unpublishable
from lifecycle.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.events import Topical

__all__ = ["as_json", "from_binary", "from_json", "payload_of", "to_binary", "to_json"]


JSON, BYTES, STRUCTURED = "application/json", "application/octet-stream", "application/cloudevents"

#: The maximum number of characters in an id.
_LONGEST_ID = 1024

#: The characters that are valid in a header value. All others are percent-encoded.
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')

_IS_SAFE = re.compile(r"[!#$&-~]*").fullmatch

#: The attributes that have their own field in `BusEvent`.
_KNOWN = {"specversion", "id", "source", "type", "subject", "time", "datacontenttype"}


def _attributes_of(event: Topical, source: str) -> dict[str, str]:
    """Return the attributes that all events have. If ``event`` has no ``id``, generate a new id.

    Raises:
        Unpublishable: if the id is longer than 1,024 characters.
    """
    return {
        "specversion": "1.0",
        "id": _id_of(event),
        "source": source,
        "type": type(event).__name__,
        "subject": event.topic,
        "time": _time_of(event),
    }


def _id_of(event: Topical) -> str:
    own = getattr(event, "id", None)
    if not isinstance(own, str) or not own:
        return uuid.uuid4().hex
    if len(own) > _LONGEST_ID:
        raise Unpublishable(f"the id {own[:40]!r}… has {len(own):,} characters; the maximum is {_LONGEST_ID:,}")
    return own


def _time_of(event: Topical) -> str:
    own = getattr(event, "time", None)
    at = own if isinstance(own, datetime) and own.tzinfo else datetime.now(UTC)
    return at.isoformat().replace("+00:00", "Z")


@lru_cache(4096)
def _fixed_headers(topic: str, type: str, source: str) -> dict[str, str]:  # noqa: A002  # the attribute's name
    """Return the headers that all events with the same topic and class share."""
    return {
        "ce-specversion": "1.0",
        "ce-source": _header(source),
        "ce-type": _header(type),
        "ce-subject": _header(topic),
    }


def to_binary(event: Topical, source: str) -> tuple[dict[str, str], bytes]:
    """Return the headers and body for sending ``event`` to the bus.

    Raises:
        Unpublishable: if the data cannot be encoded as JSON.
    """
    headers = _fixed_headers(event.topic, type(event).__name__, source).copy()
    headers["ce-id"], headers["ce-time"] = _header(_id_of(event)), _time_of(event)
    data = payload_of(event)
    if isinstance(data, bytes):
        headers["ce-datacontenttype"], body = BYTES, data
    elif data is None:
        body = b""
    else:
        headers["ce-datacontenttype"], body = JSON, as_json(event, data).encode()
    return headers, body


def from_binary(topic: str, headers: Mapping[str, str], body: bytes, *, id: str = "", attempt: int = 1) -> BusEvent:  # noqa: A002  # the attribute's name
    """Return the event in a bus message, which may be in binary or structured mode. ``id`` is the default id.

    Raises:
        ValueError: if the body does not match its content type.
    """
    attributes: dict[str, str] = {}
    names: dict[str, str] = {}
    for each, value in headers.items():
        name = each.lower()
        if name.startswith("ce-"):
            attributes[name[3:]] = unquote(value)
        elif not name.startswith("nats-"):
            # The reason for a dead letter is free text, which is encoded like an attribute.
            names[name] = unquote(value) if name.startswith("dead-") else value
    kind = names.get("content-type", "")
    if kind.startswith(STRUCTURED):
        return _from_structured(body, topic, attempt, names)
    kind = attributes.get("datacontenttype", kind)
    attributes.setdefault("id", id)
    return _event(topic, attributes, _data(body, kind), attempt, names)


def to_json(event: Topical, *, source: str = "lifecycle") -> str:
    """Return ``event`` as one line of structured JSON. Bytes are encoded as ``data_base64``.

    Raises:
        Unpublishable: if the data cannot be encoded as JSON.
    """
    record: dict[str, Any] = {**_attributes_of(event, source)}
    data = payload_of(event)
    if isinstance(data, bytes):
        record |= {"datacontenttype": BYTES, "data_base64": base64.b64encode(data).decode()}
    elif data is not None:
        record |= {"datacontenttype": JSON, "data": data}
    return as_json(event, record)


def from_json(text: str | bytes) -> BusEvent:
    """Return the event that `to_json` or another program has encoded as the JSON ``text``.

    The topic is the ``subject``, or the ``type`` if there is no subject.

    Raises:
        ValueError: if ``text`` is not a CloudEvent 1.0.
    """
    return _from_structured(text, "", 1, {})


def _from_structured(text: str | bytes, topic: str, attempt: int, headers: dict[str, str]) -> BusEvent:
    read = _loads(text)
    fields = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
    # CloudEvents defines that null means the same as a missing attribute.
    record = {name: value for name, value in fields.items() if value is not None}
    if record.get("specversion") != "1.0":
        raise ValueError(f"{text[:80]!r} is not a CloudEvent; expected a JSON object with specversion 1.0")
    data: Any = record.pop("data", None)
    if "data_base64" in record:
        encoded = record.pop("data_base64")
        if not isinstance(encoded, str):
            raise ValueError(f"data_base64 must be a string, got {encoded!r:.80}")
        data = base64.b64decode(encoded, validate=True)
    attributes = {name: value if isinstance(value, str) else json.dumps(value) for name, value in record.items()}
    topic = topic or attributes.get("subject") or attributes.get("type", "")
    if not topic or not attributes.get("id"):
        raise ValueError(f"{text[:80]!r} is not a CloudEvent: it needs an id, and a subject or a type")
    return _event(topic, attributes, data, attempt, headers)


def _event(topic: str, attributes: dict[str, str], data: Any, attempt: int, headers: dict[str, str]) -> BusEvent:
    """Return a `BusEvent`. Extension attributes, such as a trace context in structured mode, become headers."""
    headers |= {name: attributes[name] for name in attributes.keys() - _KNOWN}
    return BusEvent(
        topic,
        data,
        attributes.get("id", ""),
        attributes.get("source", ""),
        attributes.get("type", ""),
        _time(attributes.get("time", "")),
        attempt,
        MappingProxyType(headers),
    )


def _data(body: bytes, kind: str) -> Any:
    """Decode the body according to its content type: as JSON, as text, or unchanged as bytes."""
    if kind == JSON:
        return _loads(body)
    kind = kind.partition(";")[0].strip().lower()
    if not kind:
        return body or None
    if kind == JSON or kind.endswith("+json"):
        return _loads(body)
    return body.decode() if kind.startswith("text/") else body


def _loads(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"the JSON {text[:20]!r}… is nested too deeply") from None


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def _header(value: str) -> str:
    if _IS_SAFE(value):
        return value
    try:
        return quote(value, safe=_SAFE)
    except UnicodeEncodeError:
        raise Unpublishable(
            f"{value[:80]!r} contains half a surrogate pair, which cannot be encoded as UTF-8"
        ) from None


#: The fields that are sent as attributes rather than as data.
_ENVELOPE = {"topic", "data", "id", "source", "type", "time", "attempt", "headers"}


def payload_of(event: Topical) -> Any:
    """Return the ``data`` of ``event``, or all of its fields if there are others to send."""
    if type(event) is Event:
        return event.data
    fields = _fields(event)
    if "data" in fields and _ENVELOPE.issuperset(fields):
        return fields["data"]
    return {name: value for name, value in fields.items() if name != "topic"} or None


def as_json(event: Topical, value: Any) -> str:
    """Return ``value`` as compact JSON.

    Records become objects. Paths, dates, enums and UUIDs are written in their standard text form, and bytes as base64.

    Raises:
        Unpublishable: if JSON cannot represent the value. The error names the event.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unpublishable(
            f"the data of {event.topic!r} cannot be encoded: {error}; send JSON values, records of them, or bytes"
        ) from None


def _fields(record: Any) -> Mapping[str, Any]:
    """Return the fields of a record: a dataclass, a named tuple, or an object with attributes."""
    if dataclasses.is_dataclass(record):
        return {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
    for names in (getattr(record, "__struct_fields__", None), getattr(record, "_fields", None)):
        if names is not None:
            return {name: getattr(record, name) for name in names}
    own: dict[str, Any] = getattr(record, "__dict__", {})
    return {name: value for name, value in own.items() if not name.startswith("_")}


def _plain(value: Any) -> Any:
    """Convert a value that the JSON encoder does not support by itself."""
    for kinds, convert in _CONVERTERS:
        if isinstance(value, kinds):
            return convert(value)
    if not isinstance(value, type) and (fields := _fields(value)):
        return fields
    raise TypeError(f"{value!r} has no JSON representation")


_CONVERTERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    ((bytes, bytearray, memoryview), lambda value: base64.b64encode(value).decode()),
    ((date, time), lambda value: value.isoformat()),
    (Enum, lambda value: value.value),
    ((PurePath, UUID), str),
    (Mapping, dict),
    (AbstractSet, list),
)

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode
