"""What a change, a webhook or a command at the prompt leads to: a restart, a signal, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import signal
import time
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from lifecycle.cli.files import read_env
from lifecycle.cli.output import ConfigError
from lifecycle.cli.watch.runner import changed
from lifecycle.control import FileBatch, merge_files
from lifecycle.sources import DEFAULT_IGNORES
from lifecycle.sources._files.tree import STAMP_NS, Rules

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping
    from signal import Signals

    from lifecycle.cli.output import Voice
    from lifecycle.cli.paths import PathRules
    from lifecycle.cli.watch.settings import Settings
    from lifecycle.control import ReloadEvent, WebhookEvent
    from lifecycle.events import Change
    from lifecycle.handlers import SuspendHandler

__all__ = ["Contents", "Session", "broken_files"]

#: Files that are remembered; of more, those that were looked at last.
_MOST: Final = 20_000
#: Bytes of a file that is read; a larger one is compared by its size and its time.
_LARGEST: Final = 1024 * 1024
#: Bytes that are read at the start, of all files.
_READ: Final = 64 * 1024 * 1024
#: Files looked at in one go.
_BATCH: Final = 200
#: Whose names nobody watches.
_RULES: Final = Rules((), DEFAULT_IGNORES)

_log = logging.getLogger("lifecycle.cli")

#: Plain enough for every Python 3; paths come in as JSON, what is wrong goes out as JSON.
_PROGRAM = """
import json, sys, traceback
found = {}
for path in json.load(sys.stdin):
    try:
        with open(path, "rb") as stream:
            source = stream.read()
    except OSError:
        continue
    try:
        compile(source, path, "exec", 0, True)
    except (SyntaxError, ValueError) as error:
        found[path] = "".join(traceback.format_exception_only(type(error), error))
    except (MemoryError, RecursionError):
        pass
json.dump(found, sys.stdout)
"""
#: Isolated, without site, no bytecode, no warnings: the process itself will show those.
_OPTIONS = ("-I", "-S", "-B", "-W", "ignore", "-c")


class Restartable(Protocol):
    """What is asked of `Generations`."""

    @property
    def alive(self) -> bool:
        """Whether there is a process that goes on."""
        ...

    def note(self, changes: Mapping[Path, Change]) -> None:
        """Remember for the next start."""
        ...

    def change(self, why: str) -> None:
        """Restart, as the policy allows."""
        ...

    def restart(self, why: str) -> None:
        """Restart in any case."""
        ...

    def signal(self, signum: Signals, why: str) -> None:
        """Send a signal."""
        ...


@dataclass(slots=True)
class _Waiting:
    """What came while it was held."""

    batch: FileBatch = field(default_factory=lambda: FileBatch({}))
    #: The last request from outside; empty without one.
    asked: str = ""


class Session:
    """The handlers of a watched command; each decides, says so, and leaves the doing to the generations.

    ``python`` says which interpreter runs the command, where that is known.
    """

    def __init__(
        self,
        settings: Settings,
        rules: PathRules,
        generations: Restartable,
        voice: Voice,
        *,
        python: str | None,
        suspender: SuspendHandler | None = None,
    ) -> None:
        self._settings = settings
        self._rules = rules
        self._generations = generations
        self._voice = voice
        self._suspender = suspender
        self._python = python
        self._contents = Contents()
        # What changed, and why a restart was asked for, since `hold`; None: it is not held.
        self._waiting: _Waiting | None = None
        # Files that could not be compiled when they changed; looked at again with every change.
        self._broken: frozenset[Path] = frozenset()

    def learn(self) -> AsyncGenerator[int]:
        """Read what the watched files hold, so that a touch of one is known for what it is; yields now and then."""
        return self._contents.learn(self._rules.roots, lambda path: self._rules.action(path) != "ignore")

    async def files(self, batch: FileBatch) -> None:
        """Files changed: signal, restart, or keep what runs because a file is broken."""
        if self._waiting is not None:
            self._waiting.batch = merge_files(self._waiting.batch, batch)
            return
        changes = await self._changes(batch)
        action = self._rules.strongest(changes)
        if action == "ignore":
            return
        why = changed(changes, self._rules.name)
        if action == "reload":
            self._generations.signal(self._settings.reload_signal, why)
            return
        self._generations.note(changes)
        if not await self._is_broken(changes, why):
            self._generations.change(why)

    async def webhook(self, event: WebhookEvent) -> None:
        """Somebody who knows the secret asks for it."""
        why = f"webhook: {event.method} {event.path}"
        if self._waiting is None:
            await self._as_a_change(why)
        else:
            self._waiting.asked = why
            self._voice.say(f"{why}; waits for release")

    async def reload(self, _: ReloadEvent) -> None:
        """Do what a change would."""
        await self._as_a_change("reload")

    async def restart(self, _: object) -> None:
        """Stop the command and start it anew, also one that is suspended or that a change would only signal."""
        self._generations.restart("restart")
        if self._suspender is not None:
            await self._suspender.resume()

    async def _changes(self, batch: FileBatch) -> dict[Path, Change]:
        """Those that count."""
        counting: dict[Path, Change] = {
            path: change for path, change in batch.changes.items() if self._rules.action(path) != "ignore"
        }
        return await self._contents.changed(counting)

    def hold(self, _: object) -> None:
        """Let what changes, and who asks from outside, wait; the command goes on."""
        if self._waiting is None:
            self._waiting = _Waiting()
        self._voice.say("held; what changes waits for release")

    async def release(self, _: object) -> None:
        """Act on what waited, all at once."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            self._voice.say("it is not held")
            return
        self._voice.say("released")
        if waiting.asked:
            changes = await self._changes(waiting.batch)
            self._generations.note(changes)
            await self._as_a_change(waiting.asked, changes)
        else:
            await self.files(waiting.batch)

    @property
    def held(self) -> bool:
        """Whether changes wait for `release`."""
        return self._waiting is not None

    async def _as_a_change(self, why: str, changes: Collection[Path] = ()) -> None:
        """A file that is known to be broken keeps the old process also from whoever asks from outside."""
        if self._settings.change == "reload":
            self._generations.signal(self._settings.reload_signal, why)
        elif not await self._is_broken(changes, why):
            self._generations.change(why)

    async def _is_broken(self, changes: Collection[Path], why: str) -> bool:
        """Whether a start would fail for what is known to be wrong; shows what it is."""
        if not self._settings.check:
            return False
        wrong = [*await self._syntax_errors(changes), *self._mistakes_in_env()]
        if not wrong:
            return False
        kept = "; the old process goes on" if self._generations.alive else "; not started"
        self._voice.bad("\n".join([why + kept, *wrong]))
        return True

    async def _syntax_errors(self, changes: Collection[Path]) -> Collection[str]:
        """What is wrong with changed files, and with those that were broken before."""
        suspects = sorted({*changes, *self._broken})
        if self._python is None or not suspects:
            return ()
        broken = await broken_files(self._python, suspects)
        self._broken = frozenset(broken)
        return broken.values()

    def _mistakes_in_env(self) -> list[str]:
        """The first line of ``--env-file`` that cannot be read."""
        try:
            if self._settings.env_file is not None:
                read_env(self._settings.env_file)
        except ConfigError as error:
            return [str(error)]
        return []


@dataclass(frozen=True, slots=True)
class _Print:
    """A file at one moment."""

    mode: int
    size: int
    #: Of its last change, in nanoseconds.
    time: int
    #: None for a file that was not read.
    digest: bytes | None

    def same(self, other: _Print) -> bool:
        """Whether the file has not changed between the two moments."""
        if (self.mode, self.size) != (other.mode, other.size):
            return False
        if self.digest is None or other.digest is None:
            return self.time == other.time
        return self.digest == other.digest


class Contents:
    """Remembers what files hold, as far as it was learned or has changed since it was made."""

    def __init__(self) -> None:
        self._since = time.time_ns() - STAMP_NS
        self._known: dict[Path, _Print] = {}

    async def learn(self, roots: Iterable[Path], counts: Callable[[Path], bool]) -> AsyncGenerator[int]:
        """Look at the files at and below ``roots`` that count and have not changed since this was made.

        How many are known is yielded again and again.
        """
        walk, left = _files(roots), _READ
        while found := await asyncio.to_thread(lambda: list(islice(walk, _BATCH))):
            prints = await asyncio.to_thread(_prints, [path for path in found if counts(path)], self._since, left)
            left -= sum(each.size for each in prints.values() if each.digest is not None)
            if len(self._known) + len(prints) > _MOST:
                return
            # A change that was seen meanwhile is newer.
            self._known = prints | self._known
            yield len(self._known)

    async def changed(self, changes: Mapping[Path, Change]) -> dict[Path, Change]:
        """Those of ``changes`` that are more than a touch; what came or went always is."""
        prints = await asyncio.to_thread(_prints, [path for path, change in changes.items() if change != "deleted"])
        return {path: change for path, change in changes.items() if self._differs(path, change, prints.get(path))}

    def _differs(self, path: Path, change: Change, now: _Print | None) -> bool:
        before = self._known.pop(path, None)
        if now is not None:
            self._known[path] = now
            if len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
        return change != "modified" or now is None or before is None or not now.same(before)


def _files(roots: Iterable[Path]) -> Iterator[Path]:
    """The files at and below ``roots``, without what nobody watches."""
    for root in roots:
        if not root.is_dir():
            yield root
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if not _RULES.skips(name, name)]
            yield from (Path(folder, name) for name in files if not _RULES.skips(name, name))


def _prints(paths: Collection[Path], until: int | None = None, most: float = inf) -> dict[Path, _Print]:
    """The prints of those that can be opened, and were last changed before ``until`` by the system's clock.

    Of all together at most ``most`` bytes are read.
    """
    found: dict[Path, _Print] = {}
    for path in paths:
        if (one := _print(path, until, min(most, _LARGEST))) is not None:
            found[path] = one
            most -= one.size if one.digest is not None else 0
    return found


def _print(path: Path, until: int | None, most: float) -> _Print | None:
    try:
        # What has become a pipe meanwhile is not waited for.
        with open(path, "rb", opener=_open_at_once) as stream:  # Path.open() has no opener
            status = os.fstat(stream.fileno())
            digest = None if status.st_size > most else hashlib.file_digest(stream, _digest).digest()
            if until is not None and os.fstat(stream.fileno()).st_ctime_ns >= until:
                return None
    except OSError:
        return None
    return _Print(status.st_mode, status.st_size, status.st_mtime_ns, digest)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


async def broken_files(python: str, paths: Collection[Path], *, limit: float = 5.0) -> dict[Path, str]:
    """The files among ``paths`` that ``python`` cannot compile, with what it says (file, line, caret).

    Files that are no ``.py`` or that are gone are left out. After ``limit`` seconds, or where ``python`` cannot be
    asked, nothing is found.
    """
    sources = [str(path) for path in paths if path.suffix == ".py"]
    if not sources:
        return {}
    answer = await _ask(python, json.dumps(sources).encode(), limit)
    try:
        said: dict[str, str] = json.loads(answer)
    except ValueError:
        _log.debug("%s gave no answer about the syntax of %s", python, sources)
        return {}
    return {Path(path): text.rstrip() for path, text in said.items()}


async def _ask(python: str, question: bytes, limit: float) -> bytes:
    """What the program prints; nothing where it cannot be run or takes too long."""
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            python, *_OPTIONS, _PROGRAM, stdin=pipe, stdout=pipe, stderr=null, start_new_session=True
        )
    except OSError as error:
        _log.debug("cannot run %s: %s", python, error)
        return b""
    try:
        async with asyncio.timeout(limit):
            output, _ = await process.communicate(question)
    except TimeoutError:
        return b""
    finally:
        if process.returncode is None:
            # The whole group: what it started would keep the pipes open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return output
