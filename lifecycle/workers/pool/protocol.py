"""The wire format between a pool and its worker processes: codecs, frames and their validation.

A frame is an array whose first item is a tag. On the wire, each frame is preceded by its length in four bytes.
``docs/reference/pool-protocol.md`` defines each frame and when it may be sent. Worker processes import this module, so
a codec's library is only imported when the codec is created.
"""

from __future__ import annotations

import _thread
import gc
from itertools import islice

# Type checkers recognize this name; see lifecycle._lazy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

__all__ = [
    "CODEC",
    "CODECS",
    "FROM_PARENT",
    "FROM_WORKER",
    "LARGE",
    "LIMIT",
    "PLAIN_TYPES",
    "VERSION",
    "Codec",
    "Decoder",
    "ProtocolError",
    "codec",
    "encode",
    "setup_frame",
    "size_of",
]

# -- frames ----------------------------------------------------------------------------------------------------------

#: The protocol version. Both sides must use the same version.
VERSION = 1
#: The maximum frame size in bytes, excluding the length prefix.
LIMIT = 64 * 1024 * 1024
#: The environment variable that contains the name of a worker process's codec.
CODEC = "LIFECYCLE_POOL_CODEC"
#: The frames that a worker can send, with the types of the items after the tag. The comments name these items. In a
#: pong, the age of the running call is in seconds, and the resident memory is in bytes.
FROM_WORKER: dict[str, tuple[Any, ...]] = {
    "hello": (int, int, str),  # `version`, `pid`, `language`
    "ready": (),
    "result": (int, object),  # `id`, `value`
    "error": (int, str, str, str, bool),  # `id`, `type`, `message`, `traceback`, `was_cancelled`
    "chunk": (int, object),  # `id`, `value`
    "end": (int,),  # `id`
    "pong": (int, int | None, int | float, int),  # `number`, `id`, `age`, `rss`
}
#: The frames that the parent can send. Pickled arguments are bytes. After a bye, the worker has `seconds` to exit.
FROM_PARENT: dict[str, tuple[Any, ...]] = {
    "setup": (dict,),
    "trace": (int, str),  # `next_id`, `traceparent`
    # `id`, `function`, `args`, `kwargs`, `budget`, `window`
    "call": (int, str, (list, bytes), (dict, bytes), int | float | None, int),
    "cancel": (int, str),  # `id`, `reason`
    "credit": (int, int),  # `id`, `chunks`
    "ping": (int,),  # `number`
    "bye": (int | float,),  # `seconds`
}


class ProtocolError(Exception):
    """Raised when the peer has violated the protocol. Data that it sends afterwards cannot be trusted."""


def encode(codec: Codec, frame: list[Any]) -> bytes:
    """Encode ``frame``, and prepend its length.

    Raises:
        TypeError: if the codec cannot encode a value. The message includes the value's type.
        ValueError: if the frame is larger than 64 MiB, or the codec cannot encode a value.
    """
    body = codec.dumps(frame)
    if len(body) > LIMIT:
        raise ValueError(f"a frame of {len(body)} bytes exceeds the limit of {LIMIT}; send less data at a time")
    return len(body).to_bytes(4, "big") + body


class Decoder:
    """An incremental frame decoder that also validates tags and types.

    Args:
        codec: The codec for frame bodies.
        known: The frames to accept: `FROM_WORKER` or `FROM_PARENT`.
    """

    def __init__(self, codec: Codec, known: dict[str, tuple[Any, ...]]) -> None:
        self._loads = codec.loads
        self._codec = codec.name
        self._known = known
        # The bytes of an incomplete frame.
        self._buffer = bytearray()
        # How many bytes the buffer must contain before it is worth decoding.
        self._needed = 4

    def feed(self, data: bytes) -> list[list[Any]]:
        """Return the frames that ``data`` completes.

        Raises:
            ProtocolError: if the data is not a valid frame. Do not use the decoder after this error.
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        frames: list[list[Any]] = []
        start, size = 0, len(data)
        while size - start >= 4:  # noqa: PLR2004  # the size of the length prefix
            end = start + 4 + self._length(data[start : start + 4])
            if end > size:
                self._needed = end - start
                break
            frames.append(self._read(data[start + 4 : end]))
            start = end
        else:
            self._needed = 4
        if start < size:
            self._buffer += data[start:]
        return frames

    @property
    def midway(self) -> bool:
        """True if the decoder holds an incomplete frame."""
        return bool(self._buffer)

    def _length(self, data: bytes) -> int:
        length = int.from_bytes(data, "big")
        if length > LIMIT:
            raise ProtocolError(f"a frame of {length} bytes (beginning with {data!r}) exceeds the limit of {LIMIT}")
        return length

    def _read(self, body: bytes) -> list[Any]:
        try:
            frame = self._loads(body)
        except ValueError as error:
            raise ProtocolError(f"{body[:40]!r} is not valid {self._codec}: {error}") from error
        if type(frame) is not list or not frame:
            raise ProtocolError(f"{frame!r:.200} is not a frame; a frame is an array that begins with its tag")
        return self._checked(frame)  # pyright: ignore[reportUnknownArgumentType]  # its items may have any type

    def _checked(self, frame: list[Any]) -> list[Any]:
        types = self._known.get(frame[0]) if type(frame[0]) is str else None
        if types is None:
            raise ProtocolError(f"{frame[0]!r:.200} is not a known tag; the known tags are {', '.join(self._known)}")
        if len(frame) != len(types) + 1 or not all(map(isinstance, frame[1:], types)):
            items = ", ".join(each.__name__ if isinstance(each, type) else str(each) for each in types)
            raise ProtocolError(f"{frame!r:.200} is not a valid {frame[0]!r} frame; the item types are {items}")
        return frame


def setup_frame(codec: Codec, setup: Mapping[str, Any]) -> bytes:
    """Encode the setup message, which follows ``hello``.

    Raises:
        TypeError, ValueError: if the codec cannot encode a value.
    """
    return encode(codec, ["setup", {**setup, "init": codec.encode_payload(setup["init"])}])


# -- codecs ----------------------------------------------------------------------------------------------------------

#: Values of at least this many bytes are encoded and decoded in a thread.
LARGE = 256 * 1024


class Codec:
    """A serialization format. A pool uses one format for all its workers.

    A codec either transfers a value unchanged or rejects it before anything is sent. The payload of a frame (arguments,
    a result or a chunk) is checked or encoded separately, so the rest of the frame can always be read. If a payload
    cannot be decoded, for example because its class cannot be imported, only that call fails.

    Args:
        name: ``"pickle"``, ``"msgpack"`` or ``"json"``.
        dumps: Encodes a frame. Raises TypeError or ValueError if a value cannot be encoded.
        loads: Decodes a frame. Raises ValueError for invalid data.
        encode_payload: Checks or encodes a payload. Raises TypeError if a value would be altered.
        decode_payload: Restores the original value from a payload.
        encode_payload_in_thread: Like `encode_payload`, but lets other threads run while it encodes a large value.
        decode_payload_in_thread: Like `decode_payload`, but lets other threads run while it decodes a large value.
    """

    __slots__ = (
        "decode_payload",
        "decode_payload_in_thread",
        "dumps",
        "encode_payload",
        "encode_payload_in_thread",
        "loads",
        "name",
    )

    def __init__(
        self,
        name: str,
        dumps: Callable[[Any], bytes],
        loads: Callable[[bytes], Any],
        *,
        encode_payload: Callable[[Any], Any],
        decode_payload: Callable[[Any], Any],
        encode_payload_in_thread: Callable[[Any], Any] | None = None,
        decode_payload_in_thread: Callable[[Any], Any] | None = None,
    ) -> None:
        self.name: str = name
        self.dumps: Callable[[Any], bytes] = dumps
        self.loads: Callable[[bytes], Any] = loads
        self.encode_payload: Callable[[Any], Any] = encode_payload
        self.decode_payload: Callable[[Any], Any] = decode_payload
        self.encode_payload_in_thread: Callable[[Any], Any] = encode_payload_in_thread or encode_payload
        self.decode_payload_in_thread: Callable[[Any], Any] = decode_payload_in_thread or decode_payload

    def __repr__(self) -> str:
        return f"Codec({self.name!r})"


def codec(name: str) -> Codec:
    """Return the codec called ``name``.

    Raises:
        ValueError: if the name is unknown.
        ModuleNotFoundError: if a required library is not installed. The message names the package.
    """
    if name not in CODECS:
        raise ValueError(f"codec must be one of {', '.join(map(repr, CODECS))}, got {name!r}")
    return CODECS[name]()


def size_of(values: Iterable[Any], depth: int = 6, looks: int = 8) -> int:
    """Estimate the encoded size of ``values`` in bytes by sampling the first items of each collection.

    At most ``looks`` items of a collection are examined. Collections nested in it share this limit.
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


#: `type`, annotated as Any because strict type checkers would require type parameters.
_type_of: Any = type
#: Types whose values need no separate encoding, because decoding them never imports or calls anything.
PLAIN_TYPES = frozenset({type(None), bool, int, float, str, bytes})
_SCALARS = frozenset({type(None), bool, int, float})
_TEXTS = frozenset({str, bytes, bytearray})
_COLLECTIONS = frozenset({list, tuple, dict, set, frozenset})


# -- pickle ----------------------------------------------------------------------------------------------------------


def _pickle() -> Codec:
    import pickle  # imported here, because only this codec needs it

    yielding = _yielding_pickler(pickle)
    encode, decode, protocol = pickle.dumps, pickle.loads, pickle.HIGHEST_PROTOCOL

    def dumps(value: object) -> bytes:
        try:
            return encode(value, protocol)
        # A ``__reduce__`` method may raise any exception.
        except Exception as error:
            raise TypeError(f"pickle cannot encode the value: {error}") from error

    def encode_payload(value: Any) -> Any:
        kind = _type_of(value)
        if kind in PLAIN_TYPES:
            # Wrap plain bytes so that they are not mistaken for an encoded payload.
            return (value,) if kind is bytes else value
        data = dumps(value)
        # The name ``__main__`` may just be part of a string, so the slower pickler checks the objects themselves.
        return yielding(value) if b"__main__" in data else data

    def loads(data: bytes) -> Any:
        try:
            # Unpickling is safe here because the data comes from a process that runs our own code.
            return decode(data)
        except Exception as error:
            raise ValueError(f"pickle cannot decode it: {type(error).__name__}: {error}") from error

    def decode_payload(value: Any) -> Any:
        kind = _type_of(value)
        return loads(value) if kind is bytes else value[0] if kind is tuple else value

    def decode_payload_in_thread(data: bytes) -> Any:
        try:
            with _without_collection:
                return pickle.Unpickler(_YieldingReader(data)).load()  # noqa: S301  # as above
        except Exception as error:
            raise ValueError(f"pickle cannot decode it: {type(error).__name__}: {error}") from error

    return Codec(
        "pickle",
        dumps,
        loads,
        encode_payload=encode_payload,
        decode_payload=decode_payload,
        encode_payload_in_thread=yielding,
        decode_payload_in_thread=decode_payload_in_thread,
    )


def _yielding_pickler(pickle: Any) -> Callable[[Any], bytes]:
    """Return a function that pickles a value while letting other threads run. It rejects objects from ``__main__``."""
    from io import BytesIO

    class Pickler(pickle.Pickler):  # type: ignore[misc]  # the module is imported where it is used
        """A pickler that runs Python code for each object, so that the interpreter can switch threads."""

        def persistent_id(self, _: object) -> None:
            """Return None, so that the object itself is pickled."""

        def reducer_override(self, obj: Any) -> Any:
            """Reject classes and functions from ``__main__``, and instances of such classes."""
            named = obj if hasattr(obj, "__qualname__") else _type_of(obj)
            if getattr(named, "__module__", None) == "__main__":
                raise TypeError(
                    f"{named.__qualname__!r} is defined in __main__, which no worker imports; "
                    "move it to a module that workers can import"
                )
            return NotImplemented

    def dumps(value: object) -> bytes:
        data = BytesIO()
        try:
            Pickler(data, pickle.HIGHEST_PROTOCOL).dump(value)
        # A ``__reduce__`` method may raise any exception.
        except Exception as error:
            raise TypeError(f"pickle cannot encode the value: {error}") from error
        return data.getvalue()

    return dumps


class _YieldingReader:
    """A file-like reader for bytes. Its methods are Python code, so the interpreter can switch threads."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        piece = bytes(self._data[self._at : self._at + size])
        self._at += size
        return piece

    def readinto(self, buffer: memoryview) -> int:
        """Fill ``buffer``, and return the number of bytes read."""
        piece = self._data[self._at : self._at + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(buffer)
        return len(piece)

    def readline(self) -> bytes:
        """Return an empty line. This method is only used by pickle protocol 0."""
        return b""


class _WithoutCollection:
    """Disables garbage collection in a block that may create millions of objects.

    Each collection would stop all threads.
    """

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


_without_collection = _WithoutCollection()


# -- msgpack and json ------------------------------------------------------------------------------------------------


def _msgpack() -> Codec:
    try:
        from msgspec import msgpack  # imported here, because only this codec needs it
    except ModuleNotFoundError as error:
        from lifecycle._util import needs_extra

        raise ModuleNotFoundError(needs_extra("codec='msgpack'", "msgspec", "pool"), name=error.name) from error
    scalars = frozenset({type(None), bool, int, float, str, bytes})
    return Codec(
        "msgpack",
        _dumps("msgpack", msgpack.Encoder().encode),
        _loads("msgpack", msgpack.Decoder().decode),
        encode_payload=_only("msgpack", scalars, scalars),
        decode_payload=_as_it_is,
    )


def _json() -> Codec:
    import json  # imported here, because only this codec needs it

    # The encoder escapes lone surrogates, and rejects NaN and infinity.
    encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
    scalars = frozenset({type(None), bool, int, float, str})
    return Codec(
        "json",
        _dumps("json", lambda value: encode(value).encode()),
        _loads("json", json.loads),
        encode_payload=_only("json", scalars, frozenset({str})),
        decode_payload=_as_it_is,
    )


def _dumps(name: str, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def dumps(value: Any) -> bytes:
        try:
            return encode(value)
        except TypeError as error:
            raise TypeError(f"{name} cannot encode the value: {error}; {_REMEDY}") from error
        except (ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{name} cannot encode the value: {error}") from error

    return dumps


def _loads(name: str, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def loads(data: bytes) -> Any:
        try:
            if len(data) < LARGE:
                return decode(data)
            with _without_collection:
                return decode(data)
        except RecursionError as error:
            raise ValueError(f"{name} cannot decode it: {error}") from error

    return loads


def _as_it_is(value: Any) -> Any:
    return value


def _only(name: str, scalars: frozenset[type], keys: frozenset[type]) -> Callable[[Any], Any]:
    """Return a function that raises TypeError for anything other than lists, dicts and values of these types.

    The libraries would turn tuples into lists and dates into text, and the receiver could not restore the originals.
    """

    def check(value: Any) -> Any:
        if type(value) in scalars:
            return value
        # The list grows during the loop. `seen` keeps the loop finite if a list contains itself, which the encoder
        # rejects later.
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
    return f"{name} cannot encode a {what} of type {kind.__qualname__} without altering it; {_REMEDY}"


#: Advice for the error message when a codec cannot encode a value.
_REMEDY = "use only numbers, text, lists and dicts, or create the pool with codec='pickle'"
#: The codec factories, by name.
CODECS = {"pickle": _pickle, "msgpack": _msgpack, "json": _json}
