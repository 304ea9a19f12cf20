"""What goes over the wire: frames, each an array whose first item is its tag, after its length in four bytes.

``docs/reference/pool-protocol.md`` says what each means and when it may come. This is imported in members too, so it
stays light.
"""

from __future__ import annotations

# Checkers know the name; see lifecycle._lazy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from lifecycle.workers.pool.codecs import Codec

__all__ = ["CODEC", "FROM_MEMBER", "FROM_PARENT", "LIMIT", "VERSION", "Decoder", "ProtocolError", "encode"]

#: The version of the protocol; the two sides must have the same.
VERSION = 1
#: Bytes that a frame may have, without its length.
LIMIT = 64 * 1024 * 1024
#: The variable of a member's environment that names the codec.
CODEC = "LIFECYCLE_POOL_CODEC"
#: The frames that a member sends, and of what type each item after the tag is.
FROM_MEMBER: dict[str, tuple[Any, ...]] = {
    "hello": (int, int, str),  # version, pid, language
    "ready": (),
    "result": (int, object),  # id, value
    "error": (int, str, str, str, bool),  # id, type, message, traceback, whether it was cancelled
    "chunk": (int, object),  # id, value
    "end": (int,),  # id
    "pong": (int, int | None, int | float, int),  # number, id of the running call, its age, bytes of memory
}
#: The frames that the parent sends.
FROM_PARENT: dict[str, tuple[Any, ...]] = {
    "setup": (dict,),
    "trace": (int, str),  # id of the call that comes next, traceparent
    # id, function, args, kwargs, budget, window; a codec that seals makes bytes of the arguments
    "call": (int, str, (list, bytes), (dict, bytes), int | float | None, int),
    "cancel": (int, str),  # id, reason
    "credit": (int, int),  # id, number of chunks
    "ping": (int,),  # number
    "bye": (int | float,),  # seconds to finish in
}


class ProtocolError(Exception):
    """The other side does not keep to the protocol; nothing that it sends is of worth any more."""


def encode(codec: Codec, frame: list[Any]) -> bytes:
    """The bytes of ``frame``, its length before it.

    Raises:
        TypeError: for a value that the codec cannot carry; the message names its type.
        ValueError: for a frame of more than 64 MiB, or a value that the codec cannot carry.
    """
    body = codec.dumps(frame)
    if len(body) > LIMIT:
        raise ValueError(
            f"a frame of {len(body)} bytes is more than the {LIMIT} that one may have; send less at a time"
        )
    return len(body).to_bytes(4, "big") + body


class Decoder:
    """Makes frames of bytes as they come, and checks them.

    Args:
        codec: reads the body of a frame.
        known: the frames that may come: `FROM_MEMBER` or `FROM_PARENT`.
    """

    def __init__(self, codec: Codec, known: dict[str, tuple[Any, ...]]) -> None:
        self._loads = codec.loads
        self._codec = codec.name
        self._known = known
        # What has come of the frame that is not whole yet, and how long it has to be before looking is worth it.
        self._begun = bytearray()
        self._wanted = 4

    def feed(self, data: bytes) -> list[list[Any]]:
        """The frames that ``data`` completes.

        Raises:
            ProtocolError: for what is no frame; the decoder is of no use then.
        """
        if self._begun:
            self._begun += data
            if len(self._begun) < self._wanted:
                return []
            data = bytes(self._begun)
            self._begun.clear()
        frames: list[list[Any]] = []
        start, size = 0, len(data)
        while size - start >= 4:  # noqa: PLR2004  # the length's own
            end = start + 4 + self._length(data[start : start + 4])
            if end > size:
                self._wanted = end - start
                break
            frames.append(self._read(data[start + 4 : end]))
            start = end
        else:
            self._wanted = 4
        if start < size:
            self._begun += data[start:]
        return frames

    @property
    def midway(self) -> bool:
        """Whether a frame has begun that is not whole."""
        return bool(self._begun)

    def _length(self, data: bytes) -> int:
        length = int.from_bytes(data, "big")
        if length > LIMIT:
            raise ProtocolError(f"a frame of {length} bytes (it begins with {data!r}) is more than the {LIMIT} allowed")
        return length

    def _read(self, body: bytes) -> list[Any]:
        try:
            frame = self._loads(body)
        except ValueError as error:
            raise ProtocolError(f"{body[:40]!r} is no {self._codec}: {error}") from error
        if type(frame) is not list or not frame:
            raise ProtocolError(f"{frame!r:.200} is no frame; a frame is an array that begins with its tag")
        return self._checked(frame)  # pyright: ignore[reportUnknownArgumentType]  # anything may be in it

    def _checked(self, frame: list[Any]) -> list[Any]:
        types = self._known.get(frame[0]) if type(frame[0]) is str else None
        if types is None:
            raise ProtocolError(f"{frame[0]!r:.200} is no tag that may come; they are {', '.join(self._known)}")
        if len(frame) != len(types) + 1 or not all(map(isinstance, frame[1:], types)):
            raise ProtocolError(f"{frame!r:.200} is no frame {frame[0]!r}, whose items are {_described(types)}")
        return frame


def _described(types: tuple[Any, ...]) -> str:
    """The items that a frame has, in words."""
    return ", ".join(getattr(each, "__name__", str(each)) for each in types)
