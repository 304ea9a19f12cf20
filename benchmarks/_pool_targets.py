"""Call targets for the pool workers and executor processes of the benchmarks. This module imports nothing slow."""

from __future__ import annotations

import itertools
import os
import time

__all__ = ["Target", "echo", "echo_async"]


def echo(value: bytes) -> bytes:
    """Return the argument."""
    return value


async def echo_async(value: bytes) -> bytes:
    """Return the argument. Many calls run concurrently."""
    return value


class Target:
    """The target object in each worker."""

    def echo(self, value: bytes) -> bytes:
        """Return the argument."""
        return value

    def pid(self) -> int:
        """Return the PID of the worker."""
        return os.getpid()

    def items(self, value: bytes, count: int) -> object:
        """Yield ``value`` ``count`` times."""
        for _ in range(count):
            yield value

    def sleep(self, started: str) -> None:
        """Block in a system call."""
        _say(started)
        time.sleep(600)

    def spin(self, started: str) -> None:
        """Keep the CPU busy in Python code."""
        _say(started)
        while True:
            pass

    def hold(self, started: str) -> None:
        """Keep the CPU busy in C code that neither releases the interpreter lock nor checks for signals."""
        _say(started)
        all(itertools.repeat(1))


def _say(fifo: str) -> None:
    """Report through ``fifo`` that the call has started, because other processes cannot see it."""
    with open(fifo, "wb", buffering=0) as file:  # noqa: PTH123  # importing pathlib is slow
        file.write(b"x")
