"""A process that runs one workflow at a time: ``python -m tests.chaos._killed_runner DIRECTORY STORE NAME``.

For each input line ``NUMBER FLOW LIFE CALLS HOW``, it forks a child and prints how the child exited. The child runs the
workflow to its end, unless it dies at one of its calls of the store: before it, during it, or after it. If ``HOW`` is
``cut``, the server closes its connections instead. Each executed step is a line in the file ``NAME.effects``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import psycopg

from lifecycle.flows import PostgresStore, SQLiteStore, current_task
from tests.chaos.workflow_crash_points import Life

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.flows import Store

__all__ = ["store_at"]

#: The longest part of a call after which the process dies during it, in seconds.
_SOON = 0.002


def store_at(where: str) -> Store:
    """Return the store at a URL or in a file."""
    return PostgresStore(where) if "://" in where else SQLiteStore(where)


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class _Deadly:
    """A store whose process dies at the call with the number ``calls``."""

    def __init__(self, where: str, calls: int, how: str) -> None:
        self._where, self._left, self._how = where, calls, how
        self._name = f"life-{os.getpid()}"
        self._store = store_at(f"{where}&application_name={self._name}" if "://" in where else where)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return partial(self._call, method) if inspect.iscoroutinefunction(method) else method

    async def _call(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        if self._left:
            return await method(*args, **kwargs)
        if self._how == "before":
            _die()
        work = asyncio.ensure_future(method(*args, **kwargs))
        if self._how == "after":
            await asyncio.wait([work])
            _die()
        await asyncio.sleep(random.random() * _SOON)
        if self._how == "during":
            _die()
        with psycopg.connect(self._where, autocommit=True) as db:
            ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
            db.execute(ours, (self._name,))
        return await work

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._store.__aexit__(None, None, None)


class _RunningLife(Life):
    """A workflow in real time, whose executed steps are lines in a file."""

    def __init__(self, number: int, flow: str, make_store: Callable[[], Any], effects: Path) -> None:
        super().__init__(number, make_store, 0.0, flow)
        self._effects = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def _note(self) -> None:
        line = f"{os.getpid()} {time.time()} {current_task().attempt} {current_task().key}\n"
        os.write(self._effects, line.encode())


def _fork(effects: Path, where: str, words: list[str]) -> None:
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        return
    status = 1
    try:
        random.seed()
        number, flow, life, calls, how = words
        running = _RunningLife(int(number), flow, lambda: _Deadly(where, int(calls), how), effects)
        running.lives = int(life)
        asyncio.run(running.live())
        status = 0
    except BaseException:  # noqa: BLE001  # the forked child must not return
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    logging.getLogger("lifecycle").setLevel(logging.CRITICAL)
    for line in sys.stdin:
        _fork(Path(sys.argv[1], f"{sys.argv[3]}.effects"), sys.argv[2], line.split())
