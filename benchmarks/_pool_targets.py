"""Targets for the workers of the benchmark's pools and the executor's processes. It imports nothing slow."""

from __future__ import annotations

import itertools
import os
import time

__all__ = ["Target", "echo", "echo_async"]


def echo(value: bytes) -> bytes:
    """Return the argument."""
    return value


async def echo_async(value: bytes) -> bytes:
    """Return the argument. Many calls run at a time."""
    return value


class Target:
    """The object in each worker."""

    def echo(self, value: bytes) -> bytes:
        """Return the argument."""
        return value

    def pid(self) -> int:
        """Return the process id of the worker."""
        return os.getpid()

    def items(self, value: bytes, count: int) -> object:
        """Yield ``value``, ``count`` times."""
        for _ in range(count):
            yield value

    def sleep(self, started: str) -> None:
        """Wait in a system call."""
        _say(started)
        time.sleep(600)

    def spin(self, started: str) -> None:
        """Compute in Python."""
        _say(started)
        while True:
            pass

    def hold(self, started: str) -> None:
        """Compute in C, without releasing the interpreter lock or checking for signals."""
        _say(started)
        all(itertools.repeat(1))


def _say(fifo: str) -> None:
    """Report on ``fifo`` that the call has started, which is not visible from outside."""
    with open(fifo, "wb", buffering=0) as file:  # noqa: PTH123  # pathlib takes longer to import than all else here
        file.write(b"x")
