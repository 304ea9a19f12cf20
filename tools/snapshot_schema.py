"""Generate docs/reference/snapshot.schema.json from a snapshot's records: ``python -m tools.snapshot_schema``."""

from __future__ import annotations

import dataclasses
import inspect
import json
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from lifecycle.observe import Snapshot

__all__ = ["PAGE", "snapshot_schema"]

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "snapshot.schema.json"

_Schema = dict[str, Any]


def snapshot_schema() -> _Schema:
    """Return the JSON Schema (draft 2020-12) of the result of `Snapshot.to_dict`."""
    definitions: dict[str, _Schema] = {}
    root = _of(Snapshot, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A snapshot of a program under lifecycle-control",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


_PLAIN: dict[Any, _Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    NoneType: {"type": "null"},
    Any: {},
}


def _of(hint: Any, definitions: dict[str, _Schema]) -> _Schema:
    """Return the schema for a type, and add the schemas of its records to ``definitions``."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if origin in (Union, UnionType):
        return {"anyOf": [_of(each, definitions) for each in args]}
    if origin is tuple:
        return {"type": "array", "items": _of(args[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(args[1], definitions)}
    if issubclass(hint, Enum):
        return {"enum": [each.value for each in hint]}
    if hint.__name__ not in definitions:
        # Register the record before its fields, because a record may contain itself.
        definitions[hint.__name__] = {}
        definitions[hint.__name__] = _of_record(hint, definitions)
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _of_record(kind: type, definitions: dict[str, _Schema]) -> _Schema:
    hints = get_type_hints(kind)
    names = [each.name for each in dataclasses.fields(kind)]
    return {
        "type": "object",
        "description": (inspect.getdoc(kind) or "").partition("\n")[0],
        "properties": {name: _of(hints[name], definitions) for name in names},
        "required": names,
        "additionalProperties": False,
    }


if __name__ == "__main__":
    PAGE.write_text(json.dumps(snapshot_schema(), indent=2) + "\n", encoding="utf-8")
