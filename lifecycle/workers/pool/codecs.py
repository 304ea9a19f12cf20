"""How values become bytes: one codec for a whole pool, which encodes whole frames.

What a codec cannot carry is refused where it is to be sent, with TypeError or ValueError, and nothing is sent. This is
imported in members too: no import here that one codec alone needs.
"""

from __future__ import annotations

import sys

# Checkers know the name; see lifecycle._lazy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["CODECS", "Codec", "codec"]


class Codec:
    """A way to write values as bytes.

    Args:
        name: what it is called: ``"msgpack"``, ``"json"`` or ``"pickle"``.
        dumps: makes bytes of a value; raises TypeError or ValueError for what it cannot carry.
        loads: makes a value of bytes; raises ValueError for what it cannot read.
        sealed: whether what a caller or a function gave is made bytes of its own within a frame: then one that cannot
            be read there (its class cannot be imported) spoils one call, and not the frame, of which nothing is known.
    """

    __slots__ = ("dumps", "loads", "name", "seal", "unseal")

    def __init__(
        self, name: str, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any], *, sealed: bool = False
    ) -> None:
        self.name: str = name
        self.dumps: Callable[[Any], bytes] = dumps
        self.loads: Callable[[bytes], Any] = loads
        self.seal: Callable[[Any], Any] = dumps if sealed else _as_it_is
        self.unseal: Callable[[Any], Any] = loads if sealed else _as_it_is

    def __repr__(self) -> str:
        return f"Codec({self.name!r})"


def _as_it_is(value: Any) -> Any:
    return value


def codec(name: str) -> Codec:
    """The codec of that name.

    Raises:
        ValueError: for a name that is none.
        ModuleNotFoundError: if what it needs is not installed; the message says what to install.
    """
    if name not in CODECS:
        raise ValueError(f"codec={name!r} is none; give one of {', '.join(map(repr, CODECS))}")
    return CODECS[name]()


def _msgpack() -> Codec:
    try:
        msgpack = _import_msgpack()
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "codec='msgpack' needs msgspec, which is not installed; "
            "install lifecycle-control[pool], or give codec='json' or codec='pickle'",
            name=error.name,
        ) from error
    encode = msgpack.Encoder().encode
    decode = msgpack.Decoder().decode

    def dumps(value: object) -> bytes:
        try:
            return bytes(encode(value))
        except TypeError as error:
            raise TypeError(f"msgpack cannot carry it: {error}; {_PLAIN}") from error
        except (ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"msgpack cannot carry it: {error}") from error

    def loads(data: bytes) -> Any:
        try:
            return decode(data)
        except RecursionError as error:
            raise ValueError(f"msgpack cannot read it: {error}") from error

    return Codec("msgpack", dumps, loads)


def _import_msgpack() -> Any:
    """Import msgspec without the typing_extensions that it asks for and does not need.

    Those would slow the start of each member, and cost it memory.
    """
    hidden = "typing_extensions" not in sys.modules and "msgspec" not in sys.modules
    if hidden:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # what cannot be imported
    try:
        from msgspec import msgpack  # only where it is used
    finally:
        if hidden:
            del sys.modules["typing_extensions"]
    return msgpack


def _json() -> Codec:
    import json  # only where it is used

    # Text that is no Unicode (a lone surrogate) is escaped; what is no number in JSON is refused.
    encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

    def dumps(value: object) -> bytes:
        try:
            return encode(value).encode()
        except TypeError as error:
            raise TypeError(f"json cannot carry it: {error}; {_PLAIN}") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"json cannot carry it: {error}") from error

    def loads(data: bytes) -> Any:
        try:
            return json.loads(data)
        except RecursionError as error:
            raise ValueError(f"json cannot read it: {error}") from error

    return Codec("json", dumps, loads)


def _pickle() -> Codec:
    import pickle  # only where somebody chose it

    def dumps(value: object) -> bytes:
        try:
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        # A __reduce__ may raise what it likes.
        except Exception as error:
            raise TypeError(f"pickle cannot carry it: {error}") from error

    def loads(data: bytes) -> Any:
        try:
            return pickle.loads(data)  # noqa: S301  # somebody chose it
        except Exception as error:
            raise ValueError(f"pickle cannot read it: {type(error).__name__}: {error}") from error

    return Codec("pickle", dumps, loads, sealed=True)


#: What to do about a value that a codec has no way to write.
_PLAIN = "give numbers, text, lists and dicts of them, or have the pool use codec='pickle'"
#: What makes each codec.
CODECS = {"msgpack": _msgpack, "json": _json, "pickle": _pickle}
