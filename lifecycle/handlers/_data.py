"""An event as data: what leaves the process, or is kept, carries no objects."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from lifecycle.events import Topical

__all__ = ["as_data"]


def as_data(event: Topical) -> dict[str, Any]:
    """The fields of ``event`` and its topic by their names, with paths as text; no codec but pickle's carries them."""
    values = {name: _without_paths(getattr(event, name)) for name in _names(event)}
    return values | {"topic": event.topic}


def _names(event: object) -> list[str]:
    if is_dataclass(event):
        return [each.name for each in fields(event)]
    return [name for name in getattr(event, "__dict__", ()) if not name.startswith("_")]


def _without_paths(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {_without_paths(key): _without_paths(each) for key, each in items}
    return value
