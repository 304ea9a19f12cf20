"""How values become text that a store can keep, and values again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol, cast

from lifecycle.errors import FlowError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["JSON", "Codec", "is_large", "is_plain", "keep"]


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
            text = "".join(_pieces(value)) if is_large(value) else _dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise FlowError(f"{_found(value) or _short(value)} cannot be kept as JSON: {error}; {_ADVICE}") from error
        if type(value) not in _PLAIN and not _comes_back(value):
            raise FlowError(f"{_found(value)} would not come back the same from JSON; {_ADVICE}")
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
#: Characters that are encoded in some milliseconds, and those that any value is counted for.
_MANY, _EACH = 256 * 1024, 16
_END: Any = object()
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
        parts: Iterable[tuple[Any, Any]] = enumerate(cast("list[Any]", value))
    elif type(value) is dict:
        named = cast("Mapping[Any, Any]", value)
        odd = next((key for key in named if type(key) is not str), None)
        if odd is not None:
            return f"the key {_short(odd)} of {path}"
        parts = named.items()
    else:
        return f"{path}, {_short(value)},"
    return next(filter(None, (_where(each, f"{path}[{place!r}]") for place, each in parts)), "")


def _comes_back(value: Any) -> bool:
    """Whether JSON knows all of ``value``, which neither contains itself nor is too deep."""
    left: list[Iterator[object]] = [iter((value,))]
    while left:
        each: object = next(left[-1], _END)
        kind = type(each)
        if each is _END:
            left.pop()
        elif kind in (list, tuple):
            left.append(iter(cast("list[Any]", each)))
        elif kind is dict:
            named = cast("Mapping[Any, Any]", each)
            if any(type(key) is not str for key in named):
                return False
            left.append(iter(named.values()))
        elif kind not in _PLAIN:
            return False
    return True


def _pieces(value: Any) -> Iterator[str]:
    """The text of ``value`` in pieces, between which other threads have their turn."""
    if not is_large(value):
        yield _dumps(value)
    elif type(value) in (list, tuple):
        yield "["
        yield from _halves(cast("list[Any]", value))
        yield "]"
    elif type(value) is dict:
        yield "{"
        for place, (key, each) in enumerate(cast("Mapping[Any, Any]", value).items()):
            # The encoder writes the key, whatever it is.
            yield f"{',' if place else ''}{_dumps({key: 0})[1:-2]}"
            yield from _pieces(each)
        yield "}"
    else:
        yield _dumps(value)


def _halves(values: Sequence[Any]) -> Iterator[str]:
    """The texts of ``values``, of which there are some, with commas between them."""
    if len(values) == 1:
        yield from _pieces(values[0])
    elif not is_large(values):
        yield _dumps(values)[1:-1]
    else:
        yield from _halves(values[: len(values) // 2])
        yield ","
        yield from _halves(values[len(values) // 2 :])


def is_large(value: Any) -> bool:
    """Whether to make text of ``value`` takes so long that the loop should not wait for it."""
    if type(value) in _PLAIN:
        return type(value) is str and len(value) > _MANY
    left: list[Iterator[object]] = [iter((value,))]
    seen = 0
    while left:
        each: object = next(left[-1], _END)
        kind = type(each)
        if each is _END:
            left.pop()
        elif kind in (list, tuple):
            left.append(iter(cast("list[Any]", each)))
        elif kind is dict:
            left.append(iter(cast("Mapping[Any, Any]", each).values()))
        seen += len(cast("str", each)) if kind is str else _EACH
        if seen > _MANY:
            return True
    return False


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
