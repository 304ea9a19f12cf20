"""What of an event goes out as its data, and how Python's values become JSON."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import date, time
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from uuid import UUID

from lifecycle.errors import Unpublishable
from lifecycle.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.events import Topical

__all__ = ["as_json", "payload_of"]

#: Fields that travel beside the data.
_ENVELOPE = {"topic", "data", "id", "source", "type", "time", "attempt", "headers"}


def payload_of(event: Topical) -> Any:
    """The data of ``event``: its ``data`` where it has nothing else to tell, else its fields."""
    if type(event) is Event:
        return event.data
    fields = _fields(event)
    if "data" in fields and _ENVELOPE.issuperset(fields):
        return fields["data"]
    return {name: value for name, value in fields.items() if name != "topic"} or None


def as_json(event: Topical, value: Any) -> str:
    """``value`` as JSON, compact.

    Records become objects; paths, dates, enums and UUIDs the text that one writes for them; bytes base64.

    Raises:
        Unpublishable: naming the event, for what has no JSON.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unpublishable(
            f"the data of {event.topic!r} is no JSON: {error}; send what JSON knows, records of it, or bytes"
        ) from None


def _fields(record: Any) -> Mapping[str, Any]:
    """What a record of any make consists of."""
    if dataclasses.is_dataclass(record):
        return {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
    for names in (getattr(record, "__struct_fields__", None), getattr(record, "_fields", None)):
        if names is not None:
            return {name: getattr(record, name) for name in names}
    own: dict[str, Any] = getattr(record, "__dict__", {})
    return {name: value for name, value in own.items() if not name.startswith("_")}


def _plain(value: Any) -> Any:
    """What the encoder does not know as something that it knows."""
    for kinds, convert in _CONVERTERS:
        if isinstance(value, kinds):
            return convert(value)
    if not isinstance(value, type) and (fields := _fields(value)):
        return fields
    raise TypeError(f"{value!r} has none")


_CONVERTERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    ((bytes, bytearray, memoryview), lambda value: base64.b64encode(value).decode()),
    ((date, time), lambda value: value.isoformat()),
    (Enum, lambda value: value.value),
    ((PurePath, UUID), str),
    (Mapping, dict),
    (AbstractSet, list),
)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode
