"""Targets for calls in these tests. Only pool workers import this module."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import deque
from itertools import chain, count, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Unreadable:
    """A value that can be pickled, but raises when it is unpickled."""

    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise RuntimeError("not here")


class Nasty(Exception):
    """An error whose message cannot be formatted."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


class Plain:
    """A target with plain methods and stored state."""

    def __init__(self, factor: int = 1) -> None:
        self.factor = factor
        self.calls = 0

    def times(self, value: int, *, and_more: int = 0) -> int:
        self.calls += 1
        return self.factor * value + and_more

    def count(self) -> int:
        return self.calls

    def echo(self, value: Any) -> Any:
        return value

    def pid(self) -> int:
        return os.getpid()

    def fail(self, message: str) -> None:
        raise ValueError(message)

    def fail_in_a_way(self, way: str) -> Any:
        match way:
            case "exit":
                sys.exit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "nasty":
                raise Nasty
            case "surrogate":
                raise ValueError("\ud800")
            case "deep":
                return self.fail_in_a_way(way)
            case "unsendable":
                return threading.Lock()
            case "large":
                return bytes(65 * 1024 * 1024)
            case "unreadable":
                return Unreadable()
        return None

    def die(self, how: int) -> None:
        os.kill(os.getpid(), how)

    def sleep(self, started: str = "", seconds: float = 1000.0) -> None:
        touch(started)
        time.sleep(seconds)

    def spin(self, started: str = "") -> None:
        touch(started)
        while True:
            pass

    def hold(self, started: str = "") -> None:
        """Loop in C code without releasing the interpreter lock. Just before, create the file ``started``."""
        deque(chain(map(os.mkdir, [started]), repeat(0)), maxlen=0)

    def stubborn(self, started: str, cleaned: str) -> str:
        """Clean up slowly after a cancellation. No second interruption may arrive."""
        try:
            self.spin(started)
        finally:
            time.sleep(0.05)
            touch(cleaned)
        return "never"

    def numbers(self, count: int, closed: str = "") -> Iterator[int]:
        try:
            yield from range(count)
        finally:
            touch(closed)

    def blocks(self, count: int, size: int) -> Iterator[bytes]:
        for _ in range(count):
            yield bytes(size)

    def numbers_then_fail(self, count: int) -> Iterator[int]:
        yield from range(count)
        raise ValueError("no more")

    def numbers_then_unsendable(self, count: int) -> Iterator[Any]:
        yield from range(count)
        yield threading.Lock()

    def unreadable_then_numbers(self, closed: str) -> Iterator[Any]:
        """Yield a value that cannot be pickled, then endless numbers."""
        try:
            yield Unreadable()
            yield from count()
        finally:
            touch(closed)

    def waits_in_between(self, started: str, closed: str) -> Iterator[int]:
        try:
            yield 1
            touch(started)
            time.sleep(1000)
        finally:
            touch(closed)

    def print_and_read(self, line: str) -> str:
        print(line)
        os.write(1, b"written to descriptor 1\n")
        return sys.stdin.read() + os.read(0, 100).decode()

    def flood(self, lines: int) -> int:
        for _ in range(lines):
            sys.stderr.write("x" * 100 + "\n")
        return lines

    def fork(self) -> int:
        """Fork a child that keeps running with all open descriptors, and return its PID."""
        child = os.fork()
        if child == 0:
            time.sleep(1000)
            os._exit(0)
        return child


class Loop:
    """A target with async methods and one plain method."""

    def __init__(self) -> None:
        # The constructor runs inside the event loop.
        self.loop = asyncio.get_running_loop()
        self.together = 0

    async def meet(self, number: int) -> int:
        """Return once ``number`` calls are running."""
        self.together += 1
        while self.together < number:
            await asyncio.sleep(0.001)
        return self.together

    async def echo(self, value: Any) -> Any:
        return value

    async def fail(self, message: str) -> None:
        raise ValueError(message)

    async def give_itself_up(self) -> None:
        raise asyncio.CancelledError

    async def sleep(self, started: str, cleaned: str = "") -> None:
        try:
            touch(started)
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0)
            touch(cleaned)

    async def numbers(self, count: int, closed: str = "") -> AsyncIterator[int]:
        try:
            for number in range(count):
                yield number
        finally:
            touch(closed)

    def spin(self, started: str) -> None:
        touch(started)
        while True:
            pass


def touch(path: str) -> None:
    if path:
        Path(path).touch()


def echo(value: Any) -> Any:
    return value


async def echo_in_a_loop(value: Any) -> Any:
    return value


def hang(*_: object) -> None:
    time.sleep(1000)


class Broken:
    """A target whose constructor fails."""

    def __init__(self, message: str) -> None:
        raise OSError(message)


class Slow:
    """A target whose constructor never returns."""

    def __init__(self, started: str) -> None:
        touch(started)
        time.sleep(1000)


not_callable = 42
