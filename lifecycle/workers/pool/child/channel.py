"""In a member: the two descriptors that frames come and go by."""

from __future__ import annotations

import _thread
import os

from lifecycle.workers.pool.frames import FROM_PARENT, Decoder, encode

# Checkers know the name; see lifecycle._lazy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from lifecycle.workers.pool.codecs import Codec

__all__ = ["Channel"]

_CHUNK = 64 * 1024


class Channel:
    """Frames on private copies of descriptors 0 and 1, so that what user code prints and reads cannot mix with them.

    From then on standard input is empty, and standard output goes where errors go. A process that user code forks
    gets neither copy: it could not answer for us.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        #: What a value is put into a frame by, and taken out of it; see `Codec`.
        self.seal: Callable[[Any], Any] = codec.seal
        self.unseal: Callable[[Any], Any] = codec.unseal
        self._decoder = Decoder(codec, FROM_PARENT)
        self._in, self._out = os.dup(0), os.dup(1)
        # One writer at a time: a frame is whole, or it is not there.
        self._writing = _thread.allocate_lock()
        self._redirect(os.O_RDONLY, 0)
        os.dup2(2, 1)
        os.register_at_fork(after_in_child=self._forked)

    def read(self) -> bytes:
        """Wait for the next bytes of frames; none at the end."""
        return os.read(self._in, _CHUNK)

    def decode(self, data: bytes) -> list[list[Any]]:
        """The frames that ``data`` completes.

        Raises:
            ProtocolError: for what is no frame.
        """
        return self._decoder.feed(data)

    def send(self, frame: list[Any]) -> None:
        """Write one frame, whole; if nobody reads any more, nothing happens.

        Raises:
            TypeError, ValueError: for what cannot be sent; nothing was.
        """
        data: bytes | memoryview = encode(self._codec, frame)
        with self._writing:
            try:
                # It is cut short by a signal that comes meanwhile, and by nothing else.
                while (written := os.write(self._out, data)) < len(data):
                    data = memoryview(data)[written:]
            except OSError:
                return  # nobody is there any more; `receive` says the same

    def _forked(self) -> None:
        self._redirect(os.O_RDWR, self._in, self._out)

    def _redirect(self, flags: int, *fds: int) -> None:
        null = os.open(os.devnull, flags)
        for fd in fds:
            os.dup2(null, fd, inheritable=fd == 0)
        os.close(null)
