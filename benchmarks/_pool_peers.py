"""Alternatives to the pool: a hand-written echo, the standard library's executor, and a bare interpreter."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import psutil

from benchmarks._pool_targets import echo

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Pipe", "bare_rss", "executor", "executor_first_result"]

_ECHO = """
import sys
read, write, flush = sys.stdin.buffer.read, sys.stdout.buffer.write, sys.stdout.buffer.flush
while header := read(4):
    write(header + read(int.from_bytes(header, "big")))
    flush()
"""


class Pipe:
    """A hand-written length-prefixed echo over a child process's pipes, with asyncio streams."""

    _process: asyncio.subprocess.Process
    _writer: asyncio.StreamWriter
    _reader: asyncio.StreamReader

    async def __aenter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(sys.executable, "-c", _ECHO, stdin=pipe, stdout=pipe)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._writer, self._reader = self._process.stdin, self._process.stdout
        return self

    async def echo(self, value: bytes) -> bytes:
        """Send ``value``, and wait until it is returned."""
        self._writer.write(len(value).to_bytes(4, "big") + value)
        await self._writer.drain()
        return await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "big"))

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._process.wait()


def executor(processes: int) -> ProcessPoolExecutor:
    """Return the standard library's executor with spawned processes, which share no memory with the parent."""
    return ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))


async def executor_first_result(value: bytes) -> float:
    """Return the seconds from creating an executor to its first result."""
    began = time.perf_counter()
    with executor(1) as processes:
        await asyncio.get_running_loop().run_in_executor(processes, echo, value)
        return time.perf_counter() - began


def bare_rss() -> int:
    """Return the resident memory of an idle interpreter in bytes."""
    argv = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return psutil.Process(process.pid).memory_info().rss
