"""Serializers, which convert values to text for storage and back."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Protocol, cast

from lifecycle.errors import FlowError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["JSON", "Codec", "is_large", "is_plain", "keep"]


class Codec(Protocol):
    """Converts task values to text and back.

    ``encode`` must raise an error if ``decode`` would not return an equal value. The task then fails with this error.
    """

    def encode(self, value: Any) -> str:
        """Return ``value`` as text."""
        ...

    def decode(self, text: str) -> Any:
        """Return the value that ``text`` represents."""
        ...


class JSON:
    """Strict JSON. It rejects any value that would not decode to an equal value, except that tuples become lists."""

    def encode(self, value: Any) -> str:
        """Return ``value`` as text.

        Raises:
            FlowError: if JSON cannot represent the value. The error shows the invalid part and its location.
        """
        try:
            text = "".join(_pieces(value)) if is_large(value) else _dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise FlowError(f"{_found(value) or _short(value)} cannot be stored as JSON: {error}; {_ADVICE}") from error
        if type(value) not in _PLAIN and not _comes_back(value):
            raise FlowError(f"{_found(value)} would change when stored as JSON; {_ADVICE}")
        return text

    def decode(self, text: str) -> Any:
        """Return the value that ``text`` represents.

        Raises:
            FlowError: if ``text`` is not JSON.
        """
        try:
            return json.loads(text)
        except ValueError as error:
            raise FlowError(
                f"{_short(text)} is not JSON ({error}); the stored text is damaged or was written by a different codec"
            ) from error


_ADVICE = "return plain data, or pass Flows a codec that supports it"
#: The maximum number of characters of a value to show in errors.
_SHORT = 60
#: The number of characters that can be encoded in a few milliseconds, and the estimated overhead per value in
#: characters.
_LARGE, _PER_VALUE = 256 * 1024, 16
#: The encoder rejects most values that are nested more deeply, and all that contain themselves.
_DEEPEST = 1000
_PLAIN = (int, str, float, bool, type(None))
_KNOWN = (*_PLAIN, list, tuple)
_dumps = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def _found(value: Any) -> str:
    """Return the part of ``value`` that JSON cannot represent, or an empty string."""
    try:
        return _where(value)
    except RecursionError:
        return "the value, which is nested too deeply or contains itself,"


def _where(value: Any, path: str = "the value") -> str:
    """Return the first part of ``value`` that JSON cannot represent, or an empty string."""
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


def _walk(value: Any, deepest: float = math.inf) -> Iterator[object]:
    """Yield ``value`` and everything in its lists, tuples and dicts. Stop at a part that is nested too deeply."""
    open_ones: list[Iterator[object]] = [iter((value,))]
    while 0 < len(open_ones) <= deepest:
        for each in open_ones[-1]:
            yield each
            if type(each) in (list, tuple):
                open_ones.append(iter(cast("list[object]", each)))
                break
            if type(each) is dict:
                open_ones.append(iter(cast("Mapping[object, object]", each).values()))
                break
        else:
            open_ones.pop()


def _comes_back(value: Any) -> bool:
    """Return whether JSON can represent all of ``value``, which must not contain itself or be nested too deeply."""
    return all(
        all(type(key) is str for key in cast("Mapping[object, object]", each))
        if type(each) is dict
        else type(each) in _KNOWN
        for each in _walk(value)
    )


def _pieces(value: Any) -> Iterator[str]:
    """Yield the text of ``value`` in pieces, so that other threads can run in between."""
    if not is_large(value):
        yield _dumps(value)
    elif type(value) in (list, tuple):
        yield "["
        yield from _halves(cast("list[Any]", value))
        yield "]"
    elif type(value) is dict:
        yield "{"
        for place, (key, each) in enumerate(cast("Mapping[Any, Any]", value).items()):
            # Let the encoder convert keys that are not strings.
            yield f"{',' if place else ''}{_dumps({key: 0})[1:-2]}"
            yield from _pieces(each)
        yield "}"
    else:
        yield _dumps(value)


def _halves(values: Sequence[Any]) -> Iterator[str]:
    """Yield the texts of ``values``, separated by commas. There must be at least one value."""
    if len(values) == 1:
        yield from _pieces(values[0])
    elif not is_large(values):
        yield _dumps(values)[1:-1]
    else:
        yield from _halves(values[: len(values) // 2])
        yield ","
        yield from _halves(values[len(values) // 2 :])


def is_large(value: Any) -> bool:
    """Return whether encoding ``value`` would block the loop for too long."""
    if type(value) in _PLAIN:
        return type(value) is str and len(value) > _LARGE
    size = 0
    for each in _walk(value, _DEEPEST):
        size += len(each) + _PER_VALUE if isinstance(each, str) else _PER_VALUE
        if size > _LARGE:
            return True
    return False


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # such as for an integer with too many digits; show its type instead
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


def is_plain(value: Any) -> bool:
    """Return whether ``value`` is immutable and therefore does not need to be copied."""
    return type(value) in _PLAIN


def keep(codec: Codec, value: Any) -> tuple[str, Any]:
    """Return the text of ``value``, and the value decoded from it, as tasks would receive it after a crash."""
    text = codec.encode(value)
    if is_plain(value):
        return text, value
    return text, codec.decode(text)
