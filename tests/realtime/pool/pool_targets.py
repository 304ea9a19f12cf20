"""Targets for calls in these tests. Only pool workers import this module."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.realtime.pool.worker_targets import Loop, Plain, Unreadable, touch

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["CallLog", "Desk", "Fickle", "Flawed", "Loop", "Waits", "echo", "odd_only"]


class Desk(Plain):
    """A stateful target whose methods report when they start."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Any] = {}
        self.hoard: list[bytearray] = []

    def wait_for(self, started: str, release: str) -> int:
        """Report the start, and return when a file exists."""
        touch(started)
        while not Path(release).exists():
            time.sleep(0.001)
        return os.getpid()

    def mark(self, path: str) -> int:
        touch(path)
        return os.getpid()

    def put(self, key: str, value: Any) -> int:
        self.kept[key] = value
        return os.getpid()

    def get(self, key: str) -> Any:
        return self.kept.get(key)

    def grow(self, size: int) -> int:
        """Allocate memory, use all of it, and keep it."""
        self.hoard.append(bytearray(os.urandom(1024)) * (size // 1024))
        return os.getpid()

    def work(self, seconds: float) -> int:
        time.sleep(seconds)
        return os.getpid()

    def endless(self, closed: str) -> Iterator[int]:
        number = 0
        try:
            while True:
                yield number
                number += 1
        finally:
            touch(closed)

    def die_once(self, died: str) -> int:
        """Exit during the first call."""
        if not Path(died).exists():
            touch(died)
            os._exit(7)
        return os.getpid()

    def say_and_die(self, last_words: str) -> None:
        sys.stderr.write(last_words + "\n")
        sys.stderr.flush()
        os._exit(3)

    def end_a_child(self) -> int:
        """Fork a process that is killed by a signal, and return its exit status."""
        up, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(tell, b"!")
            time.sleep(1000)
            os._exit(0)
        os.read(up, 1)
        os.kill(child, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def at_exit(self, cleaned: str) -> None:
        atexit.register(touch, cleaned)


class Flawed:
    """A target whose constructor fails, and reports the number of attempts."""

    def __init__(self, tries: str) -> None:
        with open(tries, "a", encoding="utf-8") as file:  # noqa: PTH123  # for the shortest stack
            file.write("x")
        raise OSError("the model is not there")


class Waits:
    """A target that cannot be created before a file exists."""

    def __init__(self, release: str) -> None:
        while not Path(release).exists():
            time.sleep(0.001)

    def pid(self) -> int:
        return os.getpid()


def spin(begun: str, release: str) -> int:
    """Call functions until a file exists."""
    Path(begun).touch()
    # No system call here may fail. A dump by faulthandler clears errno, so the failure would raise `OSError: 0`.
    while Path(release) not in Path(release).parent.iterdir():
        for _ in range(100):
            descend(50)
    return os.getpid()


def descend(depth: int) -> None:
    if depth:
        descend(depth - 1)


class Fickle:
    """A target whose constructor runs until a file exists."""

    def __init__(self, spoilt: str) -> None:
        if Path(spoilt).exists():
            raise OSError("spoilt")

    def pid(self) -> int:
        return os.getpid()


def echo(value: Any) -> Any:
    return value


def odd_only(value: int) -> int:
    if value % 2 == 0:
        raise ValueError(value)
    return value


@dataclass
class Point:
    """A value whose class exists in both processes."""

    x: int
    rest: tuple[float | None, ...]


def point() -> Point:
    return Point(1, ())


def each(values: list[Any]) -> Iterator[Any]:
    yield from values


def sets() -> Iterator[Any]:
    yield {1}


#: Threads that encoded a `Noted` in this process, and threads that decoded one.
encoded: list[int] = []
decoded: list[int] = []


class Noted:
    """A value that records which threads encode and decode it."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        encoded.append(threading.get_ident())
        return _noted, (self.data,)


def _noted(data: bytes) -> Noted:
    decoded.append(threading.get_ident())
    return Noted(data)


def large_and_unreadable() -> Any:
    return [bytes(300_000), Unreadable()]


class Quits:
    """A value that no program can decode without exiting."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        return sys.exit, (self.data,)


def quits(size: int) -> Any:
    return Quits(bytes(size))


class CallLog:
    """A target that records its calls, so that tests can detect repeated calls."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def do(self, number: int, seconds: float) -> int:
        os.write(self.file, b"%d\n" % number)
        time.sleep(seconds)
        return number

    def items(self, number: int, count: int) -> Iterator[int]:
        os.write(self.file, b"%d\n" % number)
        yield from range(count)
