"""A control socket that sends arbitrary responses, valid or not."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = ["answer", "speaker"]


def answer(body: bytes | str, *, status: int = 200, length: int | None = None) -> bytes:
    """Return an HTTP response."""
    data = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.0 {status} Whatever\r\nContent-Length: {len(data) if length is None else length}\r\n\r\n"
    return head.encode() + data


@contextmanager
def speaker(path: Path, *answers: bytes) -> Generator[list[bytes]]:
    """Listen at ``path`` and send ``answers`` in order, repeating the last one. Yield the requests."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=_speak, args=(listener, list(answers), asked))
        thread.start()
        try:
            yield asked
        finally:
            # The thread waits in accept, so only a connection wakes it.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    path.unlink()


def _speak(listener: socket.socket, answers: list[bytes], asked: list[bytes]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, suppress(OSError):
            # A client sends nothing if it only checks whether the socket accepts connections.
            if question := connection.recv(65_536):
                asked.append(question)
                connection.sendall(answers.pop(0) if len(answers) > 1 else answers[0])
