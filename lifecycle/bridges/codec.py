"""Events as CloudEvents 1.0: in binary mode on the bus, as structured JSON in files, logs and webhooks.

In binary mode the attributes are headers that begin with ``ce-`` and the body is the data, whose type is the attribute
``datacontenttype``, as the binding for NATS has it. ``subject`` is the topic, ``type`` the class of the event.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote

from lifecycle.bridges.events import BusEvent
from lifecycle.bridges.payloads import as_json, payload_of
from lifecycle.errors import Unpublishable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lifecycle.events import Topical

__all__ = ["from_binary", "from_json", "to_binary", "to_json"]

JSON, BYTES, STRUCTURED = "application/json", "application/octet-stream", "application/cloudevents"

#: Characters of an id.
_LONGEST_ID = 1024

#: What stands in a header as it is; the rest is percent-encoded.
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_IS_SAFE = re.compile(r"[!#$&-~]*").fullmatch

#: Attributes that have a field of their own in a `BusEvent`.
_KNOWN = {"specversion", "id", "source", "type", "subject", "time", "datacontenttype"}


def _attributes_of(event: Topical, source: str) -> dict[str, str]:
    """The attributes that every event has; an ``id`` is made for one that has none.

    Raises:
        Unpublishable: for an id of more than 1,024 characters.
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
        raise Unpublishable(f"the id {own[:40]!r}… has {len(own):,} characters, and {_LONGEST_ID:,} is the most")
    return own


def _time_of(event: Topical) -> str:
    own = getattr(event, "time", None)
    at = own if isinstance(own, datetime) and own.tzinfo else datetime.now(UTC)
    return at.isoformat().replace("+00:00", "Z")


@lru_cache(4096)
def _fixed_headers(topic: str, type: str, source: str) -> dict[str, str]:  # noqa: A002  # the attribute's name
    """What is the same for every event of a topic and class."""
    return {
        "ce-specversion": "1.0",
        "ce-source": _header(source),
        "ce-type": _header(type),
        "ce-subject": _header(topic),
    }


def to_binary(event: Topical, source: str) -> tuple[dict[str, str], bytes]:
    """Headers and body of ``event`` for the bus.

    Raises:
        Unpublishable: for data that is no JSON.
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
    """The event that a message of the bus carries, in binary mode or structured; ``id`` is for one that has none.

    Raises:
        ValueError: for a body that is not what its type says.
    """
    attributes: dict[str, str] = {}
    names: dict[str, str] = {}
    for each, value in headers.items():
        name = each.lower()
        if name.startswith("ce-"):
            attributes[name[3:]] = unquote(value)
        elif not name.startswith("nats-"):
            # Why an event is a dead letter is text of any kind, written like an attribute.
            names[name] = unquote(value) if name.startswith("dead-") else value
    kind = names.get("content-type", "")
    if kind.startswith(STRUCTURED):
        return _from_structured(body, topic, attempt, names)
    kind = attributes.get("datacontenttype", kind)
    attributes.setdefault("id", id)
    return _event(topic, attributes, _data(body, kind), attempt, names)


def to_json(event: Topical, *, source: str = "lifecycle") -> str:
    """``event`` as one line of structured JSON; bytes are in it as ``data_base64``.

    Raises:
        Unpublishable: for data that is no JSON.
    """
    record: dict[str, Any] = {**_attributes_of(event, source)}
    data = payload_of(event)
    if isinstance(data, bytes):
        record |= {"datacontenttype": BYTES, "data_base64": base64.b64encode(data).decode()}
    elif data is not None:
        record |= {"datacontenttype": JSON, "data": data}
    return as_json(event, record)


def from_json(text: str | bytes) -> BusEvent:
    """The event that `to_json` or another program wrote; without a ``subject`` its type is its topic.

    Raises:
        ValueError: for what is no CloudEvent 1.0.
    """
    return _from_structured(text, "", 1, {})


def _from_structured(text: str | bytes, topic: str, attempt: int, headers: dict[str, str]) -> BusEvent:
    read = _loads(text)
    record = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
    if record.get("specversion") != "1.0":
        raise ValueError(f"{text[:80]!r} is no CloudEvent: a JSON object with specversion 1.0")
    data: Any = record.pop("data", None)
    if "data_base64" in record:
        data = base64.b64decode(str(record.pop("data_base64")), validate=True)
    attributes = {name: value if isinstance(value, str) else json.dumps(value) for name, value in record.items()}
    topic = topic or attributes.get("subject") or attributes.get("type", "")
    if not topic or not attributes.get("id"):
        raise ValueError(f"{text[:80]!r} is no CloudEvent: it has no id, or neither subject nor type")
    return _event(topic, attributes, data, attempt, headers)


def _event(topic: str, attributes: dict[str, str], data: Any, attempt: int, headers: dict[str, str]) -> BusEvent:
    """A record; extension attributes are headers, as trace contexts in structured mode are."""
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
    """What the type of the data makes of the body: JSON, text, or bytes as they are."""
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
        raise ValueError(f"the JSON {text[:20]!r}… is nested too deep") from None


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
        raise Unpublishable(f"{value[:80]!r} holds half a surrogate pair, which no other program could read") from None
