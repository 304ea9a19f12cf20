"""Hints from the operating system, through `watchfiles.awatch`: which entries to look at.

`awatch` is known to lose what this room repairs: it says nothing of a queue that overflowed, of a directory that is
made again, of what was written into a directory before its watch existed. So nothing here is taken for the truth.
"""

# The system and watchfiles speak text, and a Path for each file costs more than the look at it.
# ruff: noqa: PTH120

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from watchfiles import Change as RawChange

    from lifecycle.sources._files.covers import Cover

__all__ = ["NameNotText", "Watch", "WatchBroken"]

# Changes that go on and on are reported after so many steps, or so many seconds, whatever is longer.
_LONGEST_BATCH = 4
_SHORTEST_BATCH_MS = 50
# The step for what lies around watched directories: the directories themselves, and links on the way to them.
_UNHURRIED_MS = 50

# The beginning of the error with which watchfiles ends.
_UNDECODABLE = "Unable to decode path"

_LIMITS = {
    "os error 24": "max_user_instances",
    "os error 28": "max_user_watches",
    "limit reached": "max_user_watches",
}


class WatchBroken(OSError):
    """The watches are gone or incomplete; open new ones, and compare."""


class NameNotText(WatchBroken):
    """Something happened to a file whose name is not UTF-8; these watches report nothing more."""


class Watch:
    """The watches for one `Cover`; they exist when `open` returns, and it must be closed again."""

    def __init__(self, cover: Cover, *, step: float) -> None:
        self.cover = cover
        self._step_ms = max(1, round(step * 1000))
        self._batches: list[AsyncGenerator[set[tuple[RawChange, str]], None]] = []
        # The next batch of each; its thread waits in the kernel's stead until something happened.
        self._pending: dict[asyncio.Task[set[tuple[RawChange, str]]], int] = {}

    async def open(self) -> None:
        """Set up the watches; this takes the loop a moment for each directory.

        Raises:
            OSError: when they cannot be set up; the message names the limit that was reached.
        """
        from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]  # its hints name trio, which is not here

        cover = self.cover
        # Around watched directories little happens: looking there often would only take time from looking in them.
        flat_step = max(self._step_ms, _UNHURRIED_MS) if cover.deep and not cover.whole else self._step_ms
        for paths, recursive, step in ((cover.deep, True, self._step_ms), (cover.flat, False, flat_step)):
            if paths:
                batches = awatch(
                    *sorted(paths),
                    watch_filter=None if recursive else self._concerns,
                    step=step,
                    debounce=max(_LONGEST_BATCH * step, _SHORTEST_BATCH_MS),
                    recursive=recursive,
                    # It would hide every other error as well, a limit that is reached among them.
                    ignore_permission_denied=False,
                )
                self._batches.append(batches)
                self._ask(len(self._batches) - 1)
        # One turn of the loop brings each to where it waits for the first change; its watches exist by then.
        await asyncio.sleep(0)
        for task in self._pending:
            if task.done():
                _result(task)

    async def next(self, timeout: float | None) -> set[tuple[RawChange, str]]:
        """What was reported since the last call, after at least one report or ``timeout`` seconds.

        Raises:
            WatchBroken: when reports may be missing from now on.
        """
        done, _ = await asyncio.wait(self._pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        hints: set[tuple[RawChange, str]] = set()
        for task in done:
            hints |= _result(task)
            self._ask(self._pending.pop(task))
        return hints

    async def close(self) -> None:
        """Take the watches away; their threads end within a step."""
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)
        for batches in self._batches:
            await batches.aclose()

    def outdated_by(self, hints: set[tuple[RawChange, str]]) -> bool:
        """Whether ``hints`` tell of a watched directory, or of what leads to one, and not only of what is in it."""
        cover = self.cover
        return any(path in cover.entries or path in cover.deep or path in cover.flat for _, path in hints)

    def _ask(self, number: int) -> None:
        self._pending[asyncio.ensure_future(anext(self._batches[number]))] = number

    def _concerns(self, _: RawChange, path: str) -> bool:
        """Whether a report from a directory that is not watched with all below it matters; most do not."""
        cover = self.cover
        return path in cover.entries or path in cover.flat or os.path.dirname(path) in cover.whole


def _result(task: asyncio.Task[set[tuple[RawChange, str]]]) -> set[tuple[RawChange, str]]:
    try:
        return task.result()
    except StopAsyncIteration:
        raise WatchBroken("the watch ended by itself") from None
    except Exception as error:
        raise _explained(error) from error


def _explained(error: Exception) -> OSError:
    """The same, and if a limit of the system was reached, which, how high it is, and how to raise it."""
    while isinstance(error, ExceptionGroup):
        # awatch puts its errors into groups of one.
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    text = str(error)
    for sign, limit in _LIMITS.items():
        if sign in text.lower():
            return OSError(errno.ENOSPC, _advice(limit))
    if _UNDECODABLE in text:
        return NameNotText(text)
    return error if isinstance(error, PermissionError) else WatchBroken(text)


def _advice(limit: str) -> str:
    try:
        present = int(Path(f"/proc/sys/fs/inotify/{limit}").read_text(encoding="ascii"))
    except OSError as error:
        if error.errno == errno.EMFILE:
            return "this process has as many files open as it may; raise the limit with `ulimit -n`"
        return f"the system's limit on watched files ({limit}) is reached; raise it, watch fewer directories, or poll"
    return (
        f"the limit fs.inotify.{limit}, {present} here, is reached; raise it with "
        f"`sudo sysctl fs.inotify.{limit}={max(present * 4, 1024)}`, watch fewer directories, or poll"
    )
