"""Changes of watched files, from the system's reports through `watchfiles.awatch`, or from polling.

`awatch` has gaps that are repaired here. It does not report that the kernel's queue overflowed, that a directory was
made again, or what was written into a directory before its watch existed. So new directories are read again, everything
is compared after a flood, and the watches are opened again when a directory or link that they depend on is replaced.
"""

# The system and watchfiles use text, and a Path for each file costs more than the look at it.
# ruff: noqa: PTH115, PTH116, PTH118, PTH120

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lifecycle.sources._files.tree import is_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Container, Iterable, Iterator, Mapping

    from watchfiles import Change as RawChange

    from lifecycle.events import Change
    from lifecycle.sources._files.tree import SnapshotIndex, Tree

__all__ = ["PolledChanges", "WatchedChanges", "entries_on_the_way", "may_read"]

_log = logging.getLogger("lifecycle.sources")

# When a directory that was just found is read again: its own watch may have come after what was written into it.
_AGAIN = (0.02, 0.1, 0.5, 2.0)
# The kernel's queue overflows silently at 16,384 reports: after so many hints, and so many seconds, all is compared.
_MANY = 2048
_MOMENT = 1.0
# The time between two looks, in multiples of the duration of one.
_SHARE = 5
# How often watches are opened in a row while the directories to watch keep changing.
_ATTEMPTS = 5

# Continuous changes are reported after so many steps, or so many milliseconds, whichever is longer.
_LONGEST_BATCH = 4
_SHORTEST_BATCH_MS = 50
# The step for the surroundings of watched directories: the directories themselves, and links on the way to them.
_UNHURRIED_MS = 50

# The beginning of the error with which watchfiles ends.
_UNDECODABLE = "Unable to decode path"

_LIMITS = {
    "os error 24": "max_user_instances",
    "os error 28": "max_user_watches",
    "limit reached": "max_user_watches",
}

# The kernel follows as many links before it gives up.
_MOST_LINKS = 40


class PolledChanges:
    """Changes found by looking at everything each ``interval`` seconds."""

    def __init__(self, tree: Tree, interval: float) -> None:
        self._tree = tree
        self._interval = interval

    async def open(self) -> None:
        """Compare."""
        await asyncio.to_thread(self._tree.compare)

    async def next(self) -> Mapping[str, Change]:
        """Wait, then compare."""
        await asyncio.sleep(self._interval)
        await asyncio.to_thread(self._tree.compare)
        return self._tree.take_changes()

    async def close(self) -> None:
        """Do nothing: no resource is held."""


class WatchedChanges:
    """Changes found by looking at what the system reports, gathered over ``step`` seconds."""

    def __init__(self, tree: Tree, step: float) -> None:
        self._tree = tree
        self._step = step
        self._watch: _Watch | None = None
        # When to read which directories again, by their real paths; in no order.
        self._due: list[tuple[float, set[str]]] = []
        # Since everything was last compared, or is going to be.
        self._hints = 0
        # Whether the watches were opened again and have reported nothing yet.
        self._unproven = False
        # The earliest time at which they are opened again for a name that is not UTF-8.
        self._next_open = 0.0

    async def open(self) -> None:
        """Open the watches, then compare: from here on nothing is missed.

        Raises:
            OSError: when they cannot be opened; the message names the limit that was reached.
        """
        for last in (*[False] * _ATTEMPTS, True):
            if await self._open_once(last=last) or last:
                return
            await self.close()

    async def next(self) -> Mapping[str, Change]:
        """Wait for reports, or for the time to look again, and return the changes since the last call, if any.

        Raises:
            OSError: when the watches broke and cannot be opened again.
        """
        assert self._watch is not None, "it is open"
        now = asyncio.get_running_loop().time
        try:
            reports = await self._watch.next(self._timeout(now()))
        except _NameNotText:
            await self._reopen()
            return self._tree.take_changes()
        except _WatchBroken as error:
            await self._recover(error)
            return self._tree.take_changes()
        self._unproven = False
        hints = [(path, change.name == "modified") for change, path in reports]
        await asyncio.to_thread(self._tree.update, hints, self._take_due(now()))
        new = self._schedule(len(hints), now())
        unsure = self._tree.index.links_changed or (new and self._watch.watch_set.whole)
        if self._watch.is_outdated_by(reports) or (unsure and await asyncio.to_thread(self._misses_something)):
            await self.close()
            await self.open()
        return self._tree.take_changes()

    async def close(self) -> None:
        """Close the watches."""
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.close()

    async def _open_once(self, *, last: bool) -> bool:
        """Open the watches for what is there now, and compare; return whether they are right for what was found."""
        watch_set = await asyncio.to_thread(_watch_set, self._tree)
        self._watch = _Watch(watch_set, step=self._step)
        try:
            await self._watch.open()
        except PermissionError:
            if last:
                raise
            await asyncio.to_thread(_find_unwatchable, self._tree)
            return False
        except _WatchBroken:
            # Something vanished between the look and the watch.
            if last:
                raise
            await asyncio.to_thread(self._tree.compare)
            return False
        await asyncio.to_thread(self._tree.compare)
        return watch_set == await asyncio.to_thread(_watch_set, self._tree)

    async def _recover(self, error: _WatchBroken) -> None:
        if self._unproven:
            raise error
        _log.warning("the watches on %s are opened again: %s", ", ".join(sorted(self._tree.index.real_roots())), error)
        await self.close()
        self._unproven = True
        await self.open()

    async def _reopen(self) -> None:
        """Open the watches again after a name that is not UTF-8, and compare.

        If such names keep coming, this looks every second, or less often if a look takes long.
        """
        now = asyncio.get_running_loop().time
        await self.close()
        await asyncio.sleep(self._next_open - now())
        began = now()
        # If it is the name of a directory, watches on all above it would report it again and again.
        await asyncio.to_thread(_find_unwatchable, self._tree)
        await self.open()
        self._next_open = now() + max(_MOMENT, _SHARE * (now() - began))

    def _misses_something(self) -> bool:
        return self._watch is None or self._watch.watch_set != _watch_set(self._tree)

    def _timeout(self, now: float) -> float | None:
        return max(0.0, min(at for at, _ in self._due) - now) if self._due else None

    def _take_due(self, now: float) -> set[str]:
        """Return the directories to read again by now."""
        due = [each for at, each in self._due if at <= now]
        self._due = [(at, each) for at, each in self._due if at > now]
        return set[str]().union(*due)

    def _schedule(self, hints: int, now: float) -> bool:
        """Decide what to read again, and when; return whether there are new directories."""
        self._hints += hints
        if self._hints >= _MANY:
            self._hints = 0
            self._due.append((now + _MOMENT, self._tree.index.real_roots()))
        if new := self._tree.take_new_directories():
            self._due.extend((now + pause, new) for pause in _AGAIN)
        return bool(new)


# -- the system's reports --------------------------------------------------------------------------------------


class _WatchBroken(OSError):
    """The watches are gone or incomplete; open new ones, and compare."""


class _NameNotText(_WatchBroken):
    """A file whose name is not UTF-8 changed; these watches report nothing more."""


class _Watch:
    """The watches for one `_WatchSet`; they exist when `open` returns, and must be closed again."""

    def __init__(self, watch_set: _WatchSet, *, step: float) -> None:
        self.watch_set = watch_set
        self._step_ms = max(1, round(step * 1000))
        self._batches: list[AsyncGenerator[set[tuple[RawChange, str]], None]] = []
        # The next batch of each; its thread waits in the kernel until something happens.
        self._pending: dict[asyncio.Task[set[tuple[RawChange, str]]], int] = {}

    async def open(self) -> None:
        """Set up the watches; this takes the loop a moment for each directory.

        Raises:
            OSError: when they cannot be set up; the message names the limit that was reached.
        """
        from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]  # its hints name trio, which is not here

        wanted = self.watch_set
        # Around watched directories little happens: frequent looks there would only take time from looks inside them.
        flat_step = max(self._step_ms, _UNHURRIED_MS) if wanted.deep and not wanted.whole else self._step_ms
        for paths, recursive, step in ((wanted.deep, True, self._step_ms), (wanted.flat, False, flat_step)):
            if paths:
                batches = awatch(
                    *sorted(paths),
                    watch_filter=None if recursive else self._concerns,
                    step=step,
                    debounce=max(_LONGEST_BATCH * step, _SHORTEST_BATCH_MS),
                    recursive=recursive,
                    # It would hide every other error as well, such as a limit that is reached.
                    ignore_permission_denied=False,
                )
                self._batches.append(batches)
                self._request(len(self._batches) - 1)
        # One turn of the loop brings each to where it waits for the first change; its watches exist by then.
        await asyncio.sleep(0)
        for task in self._pending:
            if task.done():
                _result(task)

    async def next(self, timeout: float | None) -> set[tuple[RawChange, str]]:
        """Return the reports since the last call, after at least one report or ``timeout`` seconds.

        Raises:
            _WatchBroken: when reports may be missing from now on.
        """
        done, _ = await asyncio.wait(self._pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        hints: set[tuple[RawChange, str]] = set()
        for task in done:
            hints |= _result(task)
            self._request(self._pending.pop(task))
        return hints

    async def close(self) -> None:
        """Remove the watches; their threads end within a step."""
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)
        for batches in self._batches:
            await batches.aclose()

    def is_outdated_by(self, hints: set[tuple[RawChange, str]]) -> bool:
        """Return whether ``hints`` concern a watched directory or the way to one, and not only its contents."""
        wanted = self.watch_set
        return any(path in wanted.entries or path in wanted.deep or path in wanted.flat for _, path in hints)

    def _request(self, number: int) -> None:
        self._pending[asyncio.ensure_future(anext(self._batches[number]))] = number

    def _concerns(self, _: RawChange, path: str) -> bool:
        """Return whether a report from a flat watch matters; most do not."""
        wanted = self.watch_set
        return path in wanted.entries or path in wanted.flat or os.path.dirname(path) in wanted.whole


def _result(task: asyncio.Task[set[tuple[RawChange, str]]]) -> set[tuple[RawChange, str]]:
    try:
        return task.result()
    except StopAsyncIteration:
        raise _WatchBroken("the watch ended by itself") from None
    except Exception as error:
        raise _explained(error) from error


def _explained(error: Exception) -> OSError:
    """Return the same error; if a limit of the system was reached, with its name, value and remedy."""
    while isinstance(error, ExceptionGroup):
        # awatch puts its errors into groups of one.
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    text = str(error)
    for sign, limit in _LIMITS.items():
        if sign in text.lower():
            return OSError(errno.ENOSPC, _advice(limit))
    if _UNDECODABLE in text:
        return _NameNotText(text)
    return error if isinstance(error, PermissionError) else _WatchBroken(text)


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


# -- what to watch ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _WatchSet:
    """The directories and entries to watch, by real paths."""

    #: Directories with all below them, and directories by themselves.
    deep: frozenset[str]
    flat: frozenset[str]
    #: Those of the second kind in which every entry matters; in the others only ``entries`` do.
    whole: frozenset[str]
    #: Entries that decide where the watched paths lead, as far as ``deep`` does not contain them.
    entries: frozenset[str]


def _watch_set(tree: Tree) -> _WatchSet:
    """Return what has to be watched now.

    No recursive watch meets a directory that is unwatchable, nor a link that is not followed: awatch follows each.
    """
    index = tree.index
    index.links_changed = False
    links = [directory.prefix + name for directory, name in index.links() if name not in directory.unfollowed]
    entries = {entry for path in (*tree.roots, *links) for entry in entries_on_the_way(path)}
    if not tree.recursive:
        deep, whole = set[str](), index.real_roots()
        flat = {each for each in whole | set(map(os.path.dirname, entries)) if may_read(each)}
    else:
        deep, whole = _avoiding(index, {*tree.unwatchable, *index.unfollowed_links()})
        entries = {each for each in entries if not any(_is_below(each, other) for other in deep)}
        flat = whole | {each for each in map(os.path.dirname, entries) if may_read(each)}
    return _WatchSet(frozenset(deep), frozenset(flat), frozenset(whole), frozenset(entries))


def _avoiding(index: SnapshotIndex, holes: Collection[str]) -> tuple[set[str], set[str]]:
    """Return what to watch with all below it, and what by itself, so that no recursive watch meets one of ``holes``."""
    deep, whole, pending = set[str](), set[str](), list(_outermost(index))
    while pending:
        each = pending.pop()
        if each in holes:
            continue
        if not any(_is_below(other, each) for other in holes):
            deep.add(each)
        else:
            whole.add(each)
            snapshot = index.at(each)[0]
            inner = [directory for name, directory in snapshot.directories.items() if name not in snapshot.links]
            pending.extend(directory.real for directory in inner)
    return deep, whole


def _outermost(index: SnapshotIndex) -> set[str]:
    """Return the directories below which all is watched: roots and targets of links, none within another."""
    linked = {directory.directories[name].real for directory, name in index.links() if name in directory.directories}
    every = index.real_roots() | linked
    return {each for each in every if not any(_is_below(each, other) for other in every)}


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/") and path != directory


def may_read(directory: str) -> bool:
    """Return whether this process may list ``directory``, which a watch on it requires."""
    return os.access(directory, os.R_OK, effective_ids=os.access in os.supports_effective_ids)


def _find_unwatchable(tree: Tree) -> None:
    """Find the directories that cannot be watched, also those that are ignored, so that they are watched around."""
    tree.unwatchable = _unwatchable_below(_outermost(tree.index), tree.index.unfollowed_links())


def _unwatchable_below(directories: Iterable[str], but: Container[str]) -> set[str]:
    """Return all directories at or below ``directories`` that may not be read or whose names are not UTF-8.

    Links are followed as `awatch` does; what is in ``but`` is left out.

    `awatch` gives up a whole tree for one directory that may not be read. With ``ignore_permission_denied`` it skips
    every directory after the first, and every other error too. It ends at a name that is not UTF-8, and opening such a
    directory is reported under that name: each new watch would end by its own doing. So both are looked for, and
    watched around.
    """
    found: set[str] = set()
    entered: set[tuple[int, int]] = set()
    pending = list(directories)
    while pending:
        directory = pending.pop()
        try:
            identity = os.stat(directory)
            if (identity.st_dev, identity.st_ino) not in entered:
                entered.add((identity.st_dev, identity.st_ino))
                inner = [each for each in _inner(directory) if each not in but]
                pending.extend(each for each in inner if is_text(each))
                found.update(each for each in inner if not is_text(each))
        except PermissionError:
            found.add(directory)
        except OSError:
            # It vanished, so no watch meets it.
            continue
    return found


def _inner(directory: str) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                yield entry.path


def entries_on_the_way(path: str) -> set[str]:
    """Return the entries whose replacement makes the absolute ``path`` another file: its links, and its last entry.

    Each is named by its directory's real path, so that directory is where to watch for it. If an entry on the way is
    missing, the first such entry is the last.
    """
    found: set[str] = set()
    here, rest = "/", deque(_parts(path))
    links = 0
    while rest:
        name = rest.popleft()
        if name == "..":
            here = os.path.dirname(here)
            continue
        entry = os.path.join(here, name)
        target = _target(entry)
        if target is not None and links < _MOST_LINKS:
            links += 1
            found.add(entry)
            rest.extendleft(reversed(_parts(target)))
            here = "/" if target.startswith("/") else here
        elif target is None and rest and os.path.lexists(entry):
            here = entry
        else:
            found.add(entry)
            break
    return found


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _target(entry: str) -> str | None:
    try:
        return os.readlink(entry)
    except OSError:
        return None
