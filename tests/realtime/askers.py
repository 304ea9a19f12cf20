"""Clients that ask all the while, and what they were answered."""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from tests.programs import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["answered", "asked_throughout"]


def answered(port: int, request: bytes, part: Callable[[bytes], bytes]) -> str:
    """A ``part`` of the answer, which ends with the connection, or what went wrong."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as connection:
            connection.sendall(request)
            answer = b""
            while more := connection.recv(4096):
                answer += more
    except OSError as error:
        return type(error).__name__
    return part(answer).decode() or "nothing"


@contextmanager
def asked_throughout(ask: Callable[[], str], *, number: int, pause: float) -> Iterator[Counter[str]]:
    """So many ask in turns, with a ``pause`` before each time, and count their answers."""
    answers, enough = Counter[str](), Event()

    def asks() -> None:
        while not enough.wait(pause):
            answers[ask()] += 1

    threads = [Thread(target=asks) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        enough.set()
        for thread in threads:
            thread.join()
