"""How values become bytes: one codec for a whole pool, which encodes whole frames.

A codec carries a value as it is, or refuses it where it is to be sent, with TypeError or ValueError; then nothing is
sent. Workers import this module too, so it imports a library only in the codec that needs it.
"""

from __future__ import annotations

import _thread
import gc
from itertools import islice

# Checkers know the name; see lifecycle._lazy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = ["CODECS", "INERT", "LARGE", "Codec", "codec", "size_of"]

#: Bytes from which on a value is encoded and decoded in a thread.
LARGE = 256 * 1024


class Codec:
    """A way to write values as bytes.

    Arguments and results are *sealed* before they are put into a frame: checked, or made bytes of their own, so that
    one that cannot be read (its class cannot be imported) fails one call, and not the frame with all that it says.

    Args:
        name: ``"pickle"``, ``"msgpack"`` or ``"json"``.
        dumps: makes bytes of a frame; raises TypeError or ValueError for a value that it cannot carry.
        loads: makes a frame of bytes; raises ValueError for what it cannot read.
        seal: checks or encodes a value of a caller or a function; raises TypeError for one that would be altered.
        unseal: gives that value again.
        seal_in_thread: `seal` for a large value, which lets other threads run meanwhile.
        unseal_in_thread: `unseal`, in the same way.
    """

    __slots__ = ("dumps", "loads", "name", "seal", "seal_in_thread", "unseal", "unseal_in_thread")

    def __init__(
        self,
        name: str,
        dumps: Callable[[Any], bytes],
        loads: Callable[[bytes], Any],
        *,
        seal: Callable[[Any], Any],
        unseal: Callable[[Any], Any],
        seal_in_thread: Callable[[Any], Any] | None = None,
        unseal_in_thread: Callable[[Any], Any] | None = None,
    ) -> None:
        self.name: str = name
        self.dumps: Callable[[Any], bytes] = dumps
        self.loads: Callable[[bytes], Any] = loads
        self.seal: Callable[[Any], Any] = seal
        self.unseal: Callable[[Any], Any] = unseal
        self.seal_in_thread: Callable[[Any], Any] = seal_in_thread or seal
        self.unseal_in_thread: Callable[[Any], Any] = unseal_in_thread or unseal

    def __repr__(self) -> str:
        return f"Codec({self.name!r})"


def codec(name: str) -> Codec:
    """The codec of that name.

    Raises:
        ValueError: for an unknown name.
        ModuleNotFoundError: if the library that it needs is not installed; the message says what to install.
    """
    if name not in CODECS:
        raise ValueError(f"codec={name!r} is unknown; give one of {', '.join(map(repr, CODECS))}")
    return CODECS[name]()


def size_of(values: Iterable[Any], depth: int = 6, looks: int = 8) -> int:
    """Bytes that ``values`` have when they are encoded, roughly: of a collection, the first items are looked at.

    Of each value these are at most ``looks`` items on each level, which the collections on that level share.
    """
    size = 0
    for value in values:
        kind = _type_of(value)
        if kind in _SCALARS:
            size += 8
        elif kind in _TEXTS:
            size += len(value)
        elif depth and kind in _COLLECTIONS and value:
            count = len(value)
            few = min(count, looks)
            items = islice(value.values() if kind is dict else value, few)
            size += 8 * count + size_of(items, depth - 1, looks // few) * count // few
        else:
            fields: Any = getattr(value, "__dict__", None)
            size += 64 + (size_of(fields.values(), depth - 1, looks) if depth and _type_of(fields) is dict else 0)
    return size


#: `type`, for checkers: it says nothing of what it is given.
_type_of: Any = type
#: Values that are read without importing or calling anything, so that they need no seal.
INERT = frozenset({type(None), bool, int, float, str, bytes})
_SCALARS = frozenset({type(None), bool, int, float})
_TEXTS = frozenset({str, bytes, bytearray})
_COLLECTIONS = frozenset({list, tuple, dict, set, frozenset})


# -- pickle ----------------------------------------------------------------------------------------------------------


def _pickle() -> Codec:
    import pickle  # only where it is used

    yielding = _yielding_pickler(pickle)
    encode, decode, protocol = pickle.dumps, pickle.loads, pickle.HIGHEST_PROTOCOL

    def dumps(value: object) -> bytes:
        try:
            return encode(value, protocol)
        # A __reduce__ may raise anything.
        except Exception as error:
            raise TypeError(f"pickle cannot carry it: {error}") from error

    def seal(value: Any) -> Any:
        kind = _type_of(value)
        if kind in INERT:
            # Bytes of its own are what is sealed.
            return (value,) if kind is bytes else value
        data = dumps(value)
        # Perhaps in a text; the slow way tells.
        return yielding(value) if b"__main__" in data else data

    def loads(data: bytes) -> Any:
        try:
            # It comes from a process that runs our code.
            return decode(data)
        except Exception as error:
            raise ValueError(f"pickle cannot read it: {type(error).__name__}: {error}") from error

    def unseal(value: Any) -> Any:
        kind = _type_of(value)
        return loads(value) if kind is bytes else value[0] if kind is tuple else value

    def unseal_in_thread(data: bytes) -> Any:
        try:
            with _no_collection:
                return pickle.Unpickler(_Pieces(data)).load()  # noqa: S301  # as above
        except Exception as error:
            raise ValueError(f"pickle cannot read it: {type(error).__name__}: {error}") from error

    return Codec(
        "pickle", dumps, loads, seal=seal, unseal=unseal, seal_in_thread=yielding, unseal_in_thread=unseal_in_thread
    )


def _yielding_pickler(pickle: Any) -> Callable[[Any], bytes]:
    """A function that pickles while other threads run, and refuses what workers could not import."""
    from io import BytesIO

    class Pickler(pickle.Pickler):  # type: ignore[misc]  # the module is imported where it is used
        """Calls Python code for each object, which is when Python lets other threads run."""

        def persistent_id(self, _: object) -> None:
            """None: it is pickled."""

        def reducer_override(self, obj: Any) -> Any:
            """Refuse a class or function of __main__, and objects of such a class."""
            named = obj if hasattr(obj, "__qualname__") else _type_of(obj)
            if getattr(named, "__module__", None) == "__main__":
                raise TypeError(
                    f"{named.__qualname__!r} is defined in __main__, which no worker imports; "
                    "move it to a module of its own"
                )
            return NotImplemented

    def dumps(value: object) -> bytes:
        data = BytesIO()
        try:
            Pickler(data, pickle.HIGHEST_PROTOCOL).dump(value)
        # A __reduce__ may raise anything.
        except Exception as error:
            raise TypeError(f"pickle cannot carry it: {error}") from error
        return data.getvalue()

    return dumps


class _Pieces:
    """Bytes as a file whose methods are Python code, so that other threads run between two pieces."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        piece = bytes(self._data[self._at : self._at + size])
        self._at += size
        return piece

    def readinto(self, buffer: memoryview) -> int:
        """Fill ``buffer``."""
        piece = self._data[self._at : self._at + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(buffer)
        return len(piece)

    def readline(self) -> bytes:
        """No pickle of ours has lines."""
        return b""


class _NoCollection:
    """A block without garbage collection: to go through millions of new objects again and again blocks all threads."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._blocks = 0
        self._enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                self._enabled = gc.isenabled()
                gc.disable()
            self._blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks and self._enabled:
                gc.enable()


_no_collection = _NoCollection()


# -- msgpack and json ------------------------------------------------------------------------------------------------


def _msgpack() -> Codec:
    try:
        from msgspec import msgpack  # only where it is used
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
            if len(data) < LARGE:
                return decode(data)
            with _no_collection:
                return decode(data)
        except RecursionError as error:
            raise ValueError(f"msgpack cannot read it: {error}") from error

    scalars = frozenset({type(None), bool, int, float, str, bytes})
    return Codec("msgpack", dumps, loads, seal=_only("msgpack", scalars, scalars), unseal=_as_it_is)


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
            if len(data) < LARGE:
                return json.loads(data)
            with _no_collection:
                return json.loads(data)
        except RecursionError as error:
            raise ValueError(f"json cannot read it: {error}") from error

    scalars = frozenset({type(None), bool, int, float, str})
    return Codec("json", dumps, loads, seal=_only("json", scalars, frozenset({str})), unseal=_as_it_is)


def _as_it_is(value: Any) -> Any:
    return value


def _only(name: str, scalars: frozenset[type], keys: frozenset[type]) -> Callable[[Any], Any]:
    """A function that returns a value of these types, in lists and dicts, and raises TypeError for any other.

    The libraries would make a list of a tuple and text of a date, and neither is turned back at the other end.
    """

    def check(value: Any) -> Any:
        if type(value) in scalars:
            return value
        # It grows while it is gone through; a list that contains itself is for the encoder to refuse.
        found: list[Any] = [value]
        seen: set[int] = set()
        for each in found:
            kind = _type_of(each)
            if kind in scalars or id(each) in seen:
                continue
            seen.add(id(each))
            if kind is dict:
                for key in each:
                    if type(key) not in keys:
                        raise TypeError(_refusal(name, type(key), "key"))
                found.extend(each.values())
            elif kind is list:
                found.extend(each)
            else:
                raise TypeError(_refusal(name, kind, "value"))
        return value

    return check


def _refusal(name: str, kind: Any, what: str) -> str:
    return f"{name} cannot carry a {what} of type {kind.__qualname__} as it is; {_PLAIN}"


#: What to do about a value that a codec has no way to write.
_PLAIN = "give numbers, text, lists and dicts of them, or have the pool use codec='pickle'"
#: What makes each codec.
CODECS = {"pickle": _pickle, "msgpack": _msgpack, "json": _json}
