"""Clients that send requests continuously, and count the responses."""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from tests.programs import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["requesting", "response_to"]


def response_to(port: int, request: bytes, part: Callable[[bytes], bytes]) -> str:
    """Send ``request``. Apply ``part`` to the complete response and return the text, or the error's name."""
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
def requesting(ask: Callable[[], str], *, number: int, pause: float) -> Iterator[Counter[str]]:
    """Call ``ask`` repeatedly in ``number`` threads, waiting ``pause`` seconds before each call. Count the results."""
    answers, enough = Counter[str](), Event()

    def run_client() -> None:
        while not enough.wait(pause):
            answers[ask()] += 1

    threads = [Thread(target=run_client) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        enough.set()
        for thread in threads:
            thread.join()
