"""How values become text that a store can keep, and values again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol, cast

from lifecycle.errors import FlowError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JSON", "Codec", "is_plain", "keep"]


class Codec(Protocol):
    """Turns what tasks give and take into text, and back.

    ``encode`` raises where ``decode`` would not give the same back; what it raises becomes the failure of the task.
    """

    def encode(self, value: Any) -> str:
        """The text of ``value``."""
        ...

    def decode(self, text: str) -> Any:
        """The value of ``text``."""
        ...


class JSON:
    """JSON, strictly: what would come back as something else is refused, except that a tuple becomes a list."""

    def encode(self, value: Any) -> str:
        """The text of ``value``.

        Raises:
            FlowError: saying what cannot be kept, and where in the value it is.
        """
        try:
            text = _dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise FlowError(f"{_found(value) or _short(value)} cannot be kept as JSON: {error}; {_ADVICE}") from error
        if type(value) not in _PLAIN and (found := _found(value)):
            raise FlowError(f"{found} would not come back the same from JSON; {_ADVICE}")
        return text

    def decode(self, text: str) -> Any:
        """The value of ``text``.

        Raises:
            FlowError: for what is no JSON.
        """
        try:
            return json.loads(text)
        except ValueError as error:
            raise FlowError(
                f"{_short(text)} is no JSON ({error}); what is kept was damaged, or by another codec"
            ) from (error)


_ADVICE = "return plain data, or give Flows(codec=...) one that knows it"
#: Characters of a value that an error shows.
_SHORT = 60
_PLAIN = (int, str, float, bool, type(None))
_dumps = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def _found(value: Any) -> str:
    """What of ``value`` JSON does not know; empty if there is nothing."""
    try:
        return _where(value)
    except RecursionError:
        return "the value, which is too deep or contains itself,"


def _where(value: Any, path: str = "the value") -> str:
    """The first part of ``value`` that JSON does not know; empty if there is none."""
    if type(value) in _PLAIN:
        return ""
    if type(value) in (list, tuple):
        parts = [(each, f"{path}[{place}]") for place, each in enumerate(cast("list[Any]", value))]
    elif type(value) is dict:
        named = cast("Mapping[Any, Any]", value)
        odd = next((key for key in named if type(key) is not str), None)
        if odd is not None:
            return f"the key {_short(odd)} of {path}"
        parts = [(each, f"{path}[{key!r}]") for key, each in named.items()]
    else:
        return f"{path}, {_short(value)},"
    return next(filter(None, (_where(each, where) for each, where in parts)), "")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # such as an integer with too many digits; the type has to do
        return f"something of type {type(value).__name__}"
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


def is_plain(value: Any) -> bool:
    """Whether nobody can change ``value``, and it is the same for all who have it."""
    return type(value) in _PLAIN


def keep(codec: Codec, value: Any) -> tuple[str, Any]:
    """The text of ``value`` and what it will be for who reads it, now as after a crash."""
    text = codec.encode(value)
    if is_plain(value):
        return text, value
    return text, codec.decode(text)
