"""Restarts for `lifecycle up` when files watched by its processes change.

As in `lifecycle watch`, touching a file does not trigger a restart. If a changed Python or JavaScript file cannot be
compiled, or an environment file is invalid, the old process keeps running.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from lifecycle.cli.output import ConfigError
from lifecycle.cli.paths import PathRules, absolute, own_output
from lifecycle.cli.watch.contents import Contents
from lifecycle.cli.watch.launcher import interpreter
from lifecycle.cli.watch.session import because_of, handle_changes
from lifecycle.cli.watch.settings import WAIT, Settings
from lifecycle.cli.watch.syntax import SyntaxCheck

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

    from lifecycle.cli.output import Console
    from lifecycle.cli.up.processes import Process
    from lifecycle.cli.watch.session import ChangedFiles, ChangeSource
    from lifecycle.control import Router
    from lifecycle.events import Change

__all__ = ["Changes", "Restarts", "interpreter_of"]

#: Reads a process's environment files and returns its environment.
_Environment: TypeAlias = "Callable[[Process], Mapping[str, str]]"

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


class Restarts(Protocol):
    """An object that restarts processes."""

    def restart(self, names: Iterable[str]) -> None:
        """Restart all copies of these processes."""
        ...

    def is_alive(self, name: str) -> bool:
        """Return whether a copy of the process is running or starting."""
        ...


class Changes:
    """Restarts ``processes`` when their files change. Files whose descriptors are in ``logs`` are ignored."""

    def __init__(
        self,
        processes: Sequence[Process],
        environment: _Environment,
        restarts: Restarts,
        console: Console,
        *,
        logs: Sequence[int] = (),
    ) -> None:
        self._watches = [_Watch(each, environment, logs) for each in processes if each.watch]
        self._restarts = restarts
        self._console = console
        self._contents = Contents()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The watched files and directories."""
        return tuple(path for watch in self._watches for path in watch.paths)

    def handle(self, router: Router) -> list[ChangeSource]:
        """Add handlers for changes to ``router``, and return the sources of these changes."""
        return handle_changes(router, self._files, self.paths, self._react, prunes=self._prunes, wait=WAIT)

    def ignore(self, *logs: int) -> None:
        """Ignore changes to the files behind these descriptors."""
        for watch in self._watches:
            watch.rules.ignore(*logs)

    def learn(self) -> AsyncGenerator[int]:
        """Read the watched files, so that touched but unchanged files can be recognised. Yields after each batch."""
        return self._contents.learn(dict.fromkeys(self.paths), self._select)

    async def why_not(self, name: str) -> str | None:
        """Return the errors that would prevent the process ``name`` from restarting, or None if it can restart."""
        for watch in self._watches:
            if watch.name == name and (errors := await watch.errors()):
                return because_of(f"restart requested; {self._kept(name)}", errors)
        return None

    def _kept(self, name: str) -> str:
        return f"the old {name} keeps running" if self._restarts.is_alive(name) else f"{name} is not started"

    def _select(self, paths: Iterable[Path]) -> set[Path]:
        every = [*paths]
        return {path for watch in self._watches for path in watch.counting(every)}

    def _react(self, changes: Mapping[Path, Change]) -> dict[Path, list[_Watch]]:
        """Return the watches of the processes that each change restarts, without changes that restart none."""
        found: dict[Path, list[_Watch]] = {}
        for watch in self._watches:
            for path in watch.counting(changes):
                found.setdefault(path, []).append(watch)
        return found

    def _prunes(self, directory: Path) -> bool:
        return all(watch.rules.prunes(directory) for watch in self._watches if watch.contains(directory))

    async def _files(self, batch: ChangedFiles[list[_Watch]]) -> None:
        changes = await self._contents.changed(batch.changes)
        names: list[str] = []
        for watch in self._watches:
            own: dict[Path, Change] = {p: change for p, change in changes.items() if watch in batch.reactions[p]}
            if own and await self._needs_restart(watch, own):
                names.append(watch.name)
        self._restarts.restart(names)

    async def _needs_restart(self, watch: _Watch, own: Mapping[Path, Change]) -> bool:
        """Print how changes affect a process, and return whether it has to be restarted."""
        why = watch.rules.describe(own)
        if errors := await watch.errors(own):
            self._console.error(because_of(f"{why}; {self._kept(watch.name)}", errors))
        else:
            self._console.info(f"{why}; restarting {watch.name}")
        return not errors


class _Watch:
    """The files and directories that a process watches."""

    def __init__(self, process: Process, environment: _Environment, logs: Sequence[int]) -> None:
        self._process = process
        self._environment = environment
        self.name = process.name
        self.paths = tuple(absolute(path, Path.cwd()) for path in process.watch)
        settings = Settings(command=process.argv, paths=self.paths)
        self.rules = PathRules(settings, Path.cwd(), outputs=own_output(*logs))
        program = interpreter_of(process, environment(process))
        self.syntax = None if program is None else SyntaxCheck(program)

    def contains(self, path: Path) -> bool:
        """Return whether the process watches ``path`` or a parent directory."""
        return any(path.is_relative_to(root) for root in self.paths)

    def counting(self, paths: Iterable[Path]) -> Iterable[Path]:
        """Return the ``paths`` that restart the process if they change."""
        return self.rules.actions(filter(self.contains, paths))

    async def errors(self, changed: Iterable[Path] = ()) -> list[str]:
        """Return the errors that would prevent the process from starting after these changes."""
        errors = [] if self.syntax is None else await self.syntax.errors(changed)
        try:
            self._environment(self._process)
        except ConfigError as error:
            errors.append(str(error))
        return errors


def interpreter_of(process: Process, env: Mapping[str, str]) -> str | None:
    """Return the Python or Node.js interpreter that runs the command, if known; see `interpreter`.

    If the command is a shell command line, this is the interpreter of its first program that has one.
    """
    if not isinstance(process.command, str):
        return _interpreter(process.command, process.cwd, env)
    programs = (_interpreter(_words(part), process.cwd, env) for part in re.split(r"[;&|\n]+", process.command))
    return next(filter(None, programs), None)


def _words(line: str) -> list[str]:
    """Return the words of a simple command, skipping assignments and ``exec`` before the program."""
    try:
        words = shlex.split(line)
    except ValueError:
        return []
    while words and (words[0] == "exec" or _ASSIGNMENT.fullmatch(words[0])):
        del words[0]
    return words


def _interpreter(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> str | None:
    if not argv:
        return None
    name = str(cwd / argv[0]) if "/" in argv[0] else argv[0]
    program = shutil.which(name, path=env.get("PATH"))
    return None if program is None else interpreter([program, *argv[1:]], env)
