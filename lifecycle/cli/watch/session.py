"""Reactions to changed files, webhooks and prompt commands: a restart, a signal, or nothing.

A file that is touched, or saved with the same content, is treated as unchanged. If a Python or JavaScript file cannot
be compiled, or ``--env-file`` is invalid, the old process keeps running.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from lifecycle._async import start_task
from lifecycle._steering.answers import current_answer, reply
from lifecycle._text import printable
from lifecycle._util import error_text
from lifecycle.cli.files import read_env
from lifecycle.cli.output import ConfigError
from lifecycle.cli.watch.contents import Contents
from lifecycle.cli.watch.syntax import SyntaxCheck
from lifecycle.control import Debounce, FileBatch, merge_files
from lifecycle.errors import Dropped, SourceFailed
from lifecycle.sources import FileWatchSource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from lifecycle.cli.options import Action
    from lifecycle.cli.output import Console
    from lifecycle.cli.paths import PathRules
    from lifecycle.cli.watch.runner import Runner
    from lifecycle.cli.watch.settings import Settings
    from lifecycle.control import Emit, ReloadEvent, Router, WebhookEvent
    from lifecycle.events import Change
    from lifecycle.handlers import SuspendHandler

__all__ = [
    "ChangeSource",
    "ChangedFiles",
    "Session",
    "because_of",
    "handle_changes",
    "watching",
]

#: The maximum time, in seconds, for collecting changes while files keep changing.
_LONGEST_WAIT: Final = 2.0
#: The shortest and longest time, in seconds, after which the source reports changes if there are no more of them. The
#: longest takes 0.4 % of a core.
_SHORTEST_STEP, _LONGEST_STEP = 0.001, 0.025
#: A change to one of these files may exclude directories, or include them again.
_IGNORE_FILES = (".gitignore", ".ignore")

#: A file is probably written by the command if it changes after this many starts in a row. Each change must follow
#: the previous one within this many seconds.
_STARTS, _SOON = 3, 3.0

#: The reaction to a change.
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ChangedFiles(Generic[R]):
    """A batch of changes that are not ignored: the net change to each path, and the reaction to it."""

    files: FileBatch
    reactions: dict[Path, R] = field(repr=False)
    topic: str = field(default="file/batch", init=False, repr=False)

    @property
    def changes(self) -> Mapping[Path, Change]:
        """The net change to each path."""
        return self.files.changes

    def merge(self, later: ChangedFiles[R]) -> ChangedFiles[R]:
        """Merge the ``later`` changes into this batch. Neither of the original batches may be used afterwards."""
        self.reactions.update(later.reactions)
        return ChangedFiles(merge_files(self.files, later.files), self.reactions)


class ChangeSource(FileWatchSource):
    """A source that emits `ChangedFiles` with the changes that have a reaction.

    While files keep changing, it collects the changes. Directories for which ``prunes`` returns true are not watched.
    """

    _longest = _LONGEST_WAIT

    def __init__(
        self,
        react: Callable[[Mapping[Path, Change]], Mapping[Path, object]],
        prunes: Callable[[Path], bool],
        *paths: Path,
        **settings: Any,
    ) -> None:
        super().__init__(*paths, **settings)
        self._react = react
        self._prunes = prunes

    async def look(self) -> None:
        """Set up the watches, so that every change from now on is reported.

        Raises:
            SourceFailed: if a path does not exist or cannot be read.
        """
        try:
            await self._look()
        except OSError as error:
            raise SourceFailed(f"source {self.name!r} could not start: {error_text(error)}") from error

    async def _send(self, emit: Emit) -> None:
        changes: dict[Path, Change] = {Path(path): change for path, change in self._pending.items()}
        self._pending.clear()
        if any(path.name in _IGNORE_FILES for path in changes):
            self._compare_soon()
        reactions = self._react(changes)
        if reactions:
            left: dict[Path, Change] = {path: changes[path] for path in reactions}
            await emit(ChangedFiles(FileBatch(left), {**reactions}))


def handle_changes(
    router: Router,
    handler: Callable[[ChangedFiles[R]], Awaitable[None]],
    paths: Iterable[Path],
    react: Callable[[Mapping[Path, Change]], Mapping[Path, R]],
    *,
    prunes: Callable[[Path], bool],
    wait: float,
    flat: Iterable[Path] = (),
    poll: float | None = None,
) -> list[ChangeSource]:
    """Return sources for changes below ``paths``, and call ``handler`` with batches of these changes.

    It is called when no file has changed for ``wait`` seconds, and every two seconds while files keep changing.
    ``react`` returns the reactions to changes, without those to ignore. ``prunes`` returns whether all changes
    below a directory are ignored. Directories in ``flat`` are watched without their subdirectories. ``poll`` is the
    interval, in seconds, for scanning files.
    """
    # The source reports changes once nothing has changed for a step, so only the rest of `wait` remains.
    step = min(max(wait, _SHORTEST_STEP), _LONGEST_STEP)
    debounce = Debounce(
        max(wait - step, _SHORTEST_STEP), max_wait=max(_LONGEST_WAIT, wait), merge=ChangedFiles[R].merge
    )
    router.handle("file/*", handler, debounce=debounce)
    roots = ((True, tuple(paths)), (False, tuple(flat)))
    return [
        ChangeSource(react, prunes, *each, recursive=recursive, step=step, poll=poll)
        for recursive, each in roots
        if each
    ]


@contextlib.asynccontextmanager
async def watching(
    router: Router, sources: Sequence[ChangeSource], reading: AsyncGenerator[int], started: asyncio.Event
) -> AsyncGenerator[None]:
    """Watch files while the block runs a command.

    Before the block begins, the watches are set up, so that no change is lost, and the first batch is read from
    ``reading`` (the result of `Contents.learn`). Later batches are read once ``started`` is set.

    Raises:
        SourceFailed: if a path does not exist or cannot be read.
    """
    async with contextlib.AsyncExitStack() as stack:
        for source in sources:
            await source.look()
            stack.push_async_exit(source)
        # The first batch contains all files of a small program.
        await anext(reading, None)
        for source in sources:
            router.add_source(source)
        # From now on, the router closes the watches.
        stack.pop_all()
    rest = start_task(_read_rest(reading, started), name="read watched files")
    try:
        yield
    finally:
        rest.cancel()
        await asyncio.wait({rest})


async def _read_rest(reading: AsyncGenerator[int], started: asyncio.Event) -> None:
    await started.wait()
    async for _ in reading:
        pass


class Session:
    """The event handlers for a watched command. Each selects a reaction, prints a message, and calls the runner.

    ``interpreter`` runs the command: Python, Node.js, or None if it is unknown.
    """

    def __init__(
        self,
        settings: Settings,
        rules: PathRules,
        runner: Runner,
        console: Console,
        *,
        interpreter: str | None,
        suspender: SuspendHandler | None = None,
    ) -> None:
        self._settings = settings
        self._rules = rules
        self._runner = runner
        self._console = console
        self._suspender = suspender
        self._syntax = SyntaxCheck(interpreter) if interpreter is not None and settings.check else None
        self._contents = Contents()
        # The changes and the last webhook received since `hold`, or None if changes are not held.
        self._held: ChangedFiles[Action] | None = None
        self._held_request = ""
        # For each file, the number of consecutive starts that were soon followed by a change to the file.
        self._soon: dict[Path, int] = {}
        self._last_change = -inf

    @property
    def held(self) -> bool:
        """True if changes are held until `release` is called."""
        return self._held is not None

    def learn(self) -> AsyncGenerator[int]:
        """Read the watched files, so that touched but unchanged files can be recognised. Yields after each batch."""
        return self._contents.learn(self._rules.files, self._rules.actions)

    def react(self, changes: Mapping[Path, Change]) -> dict[Path, Action]:
        """Return what to do about each change that is not ignored. With ``--verbose``, print all changes."""
        kinds = self._settings.fs_events
        counting = [path for path, change in changes.items() if not kinds or change in kinds]
        actions = self._rules.actions(counting)
        if self._settings.verbose:
            for path, change in changes.items():
                self._console.info(f"{change} {printable(self._rules.name(path))}: {actions.get(path, 'ignore')}")
        return actions

    def prunes(self, directory: Path) -> bool:
        """Return whether all changes below a directory are ignored."""
        return self._rules.prunes(directory)

    def check_in_advance(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that prepares the next check of the changed files."""
        return self._syntax.in_advance() if self._syntax is not None else contextlib.nullcontext()

    async def files(self, batch: ChangedFiles[Action]) -> None:
        """Handle changed files: send a signal, restart, or keep the running process because a file is broken."""
        if self._held is not None:
            self._held = self._held.merge(batch)
            return
        async with asyncio.TaskGroup() as tasks:
            # Files are compiled while we find out which of them were only touched.
            compiled = tasks.create_task(self._errors(batch), name="compile changed files")
            changes = await self._contents.changed(batch.changes)
        if not changes:
            return
        why = self._rules.describe(changes)
        # If any file requires a restart, no signal is needed.
        if all(batch.reactions[path] == "reload" for path in changes):
            if self._syntax is not None:
                self._syntax.defer(changes)
            self._runner.signal(self._settings.reload_signal, why)
            return
        self._runner.add_changes(changes)
        if not self._report_broken(compiled.result(), why):
            self._runner.change(why)
            self._warn_of_loop(changes)

    async def _errors(self, batch: ChangedFiles[Action]) -> list[str]:
        """Compile the files in ``batch``, unless they lead only to a signal, and return the error messages."""
        restarts = self._syntax is not None and any(action != "reload" for action in batch.reactions.values())
        return await self._syntax.errors(batch.changes) if self._syntax is not None and restarts else []

    def _warn_of_loop(self, changes: Collection[Path]) -> None:
        """Warn about files that change after every start, because the command probably writes them."""
        now = asyncio.get_running_loop().time()
        soon = now - self._last_change < _SOON
        self._soon = {path: self._soon.get(path, 0) + 1 for path in changes} if soon else {}
        self._last_change = now
        for name in (printable(self._rules.name(path)) for path, starts in self._soon.items() if starts == _STARTS):
            self._console.warning(
                f"{name} changed after each of the last {_STARTS} starts; if the command writes this file, add "
                f"--ignore {shlex.quote(name)}"
            )

    async def webhook(self, event: WebhookEvent) -> None:
        """Handle a request to restart, or hold it if changes are held."""
        why = f"webhook: {event.method} {event.path}"
        if self._held is None:
            await self._change(why)
        else:
            self._held_request = why
            self._console.info(f"{why}; held until release")

    async def reload(self, _: ReloadEvent) -> None:
        """React as if a file had changed."""
        await self._change("reload requested")

    async def restart(self, _: object) -> None:
        """Restart the command, even if it is suspended or changes only send a signal.

        Raises:
            Dropped: if a file is broken. The old process keeps running.
        """
        held = () if self._held is None else self._held.changes
        if await self._is_broken(held, why := "restart requested"):
            raise Dropped("a file is broken, so the command is not restarted")
        self._runner.restart(why)
        if self._suspender is not None:
            await self._suspender.resume()

    def hold(self, _: object) -> None:
        """Hold changes and webhooks. The command keeps running."""
        if self._held is None:
            self._held, self._held_request = ChangedFiles(FileBatch({}), {}), ""
        self._answer("changes are held until release")

    async def release(self, _: object) -> None:
        """React once to all held changes and webhooks."""
        batch, request, self._held = self._held, self._held_request, None
        if batch is None:
            self._answer("no changes are held")
            return
        self._answer("changes are no longer held")
        if not request:
            await self.files(batch)
            return
        changes = await self._contents.changed(batch.changes)
        self._runner.add_changes(changes)
        await self._change(request, changes)

    def _answer(self, text: str) -> None:
        """Answer a command, even with ``--quiet``. The answer to an external caller is also printed, unless quiet."""
        if current_answer.get() is not None:
            self._console.info(text)
        reply(text, replace(self._console, quiet=False).info)

    async def _change(self, why: str, changes: Collection[Path] = ()) -> None:
        """Handle a request as if a file had changed. If a file is broken, the old process keeps running."""
        if self._settings.change == "reload":
            self._runner.signal(self._settings.reload_signal, why)
        elif not await self._is_broken(changes, why):
            self._runner.change(why)

    async def _is_broken(self, changes: Collection[Path], why: str) -> bool:
        """Return whether an error in a file would prevent the command from starting.

        The error is printed, and also sent to an external caller.
        """
        errors = await self._syntax.errors(changes) if self._syntax is not None else []
        return self._report_broken(errors, why)

    def _report_broken(self, errors: Sequence[str], why: str) -> bool:
        """Report errors in files, including ``--env-file``. Return whether there are any."""
        wrong = [*errors]
        try:
            if self._settings.check and self._settings.env_file is not None:
                read_env(self._settings.env_file)
        except ConfigError as error:
            wrong.append(str(error))
        if wrong:
            then = "the old process keeps running" if self._runner.alive else "not started"
            text = because_of(f"{why}; {then}", wrong)
            self._console.error(text)
            reply(text, lambda _: None)
        return bool(wrong)


def because_of(effect: str, errors: Sequence[str]) -> str:
    """Return a message that describes ``effect``, followed by the errors that caused it."""
    count = "this error" if len(errors) == 1 else "these errors"
    return "\n".join([f"{effect} because of {count}:", *errors])
