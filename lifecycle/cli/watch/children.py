"""How the command is started: its environment, and the streams that fit where we run ourselves."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from lifecycle.cli.messages import at_terminal, put
from lifecycle.cli.variables import read_env
from lifecycle.cli.watch.programs import arguments
from lifecycle.errors import StopTree
from lifecycle.workers import ProcessWorker, Status
from lifecycle.workers.model import FINAL
from lifecycle.workers.stdio import Pipes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from pathlib import Path

    from lifecycle.cli.watch.settings import Settings
    from lifecycle.cli.watch.sockets import Handover
    from lifecycle.cli.watch.terminals import Foreground, OwnTerminal
    from lifecycle.events import Change
    from lifecycle.workers.model import End
    from lifecycle.workers.stdio import Stdio

__all__ = ["Children", "Manner", "changes_env", "manner"]

#: ``pty``: a terminal of the child's own, beside a prompt. ``foreground``: our terminal itself. ``pipes``: none.
Manner: TypeAlias = Literal["pty", "foreground", "pipes"]

#: Bytes of changed paths that the environment is given; the system refuses 128 KiB in one variable.
_ROOM = 96 * 1024
_CLEAR = "\x1b[2J\x1b[3J\x1b[H"
_INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)


def manner(*, prompt: bool) -> Manner:
    """What the command's streams shall be, from what ours are."""
    if prompt:
        return "pty" if at_terminal(sys.stdin) and at_terminal(sys.stdout) else "pipes"
    try:
        in_front = os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return "pipes"
    return "foreground" if in_front else "pipes"


def changes_env(changes: Mapping[Path, Change]) -> dict[str, str]:
    """``LIFECYCLE_CHANGES``: a JSON list of path and change.

    Where there are too many for an environment the list is cut, and ``LIFECYCLE_CHANGES_CUT`` says by how many.
    """
    listed: list[str] = []
    size = 0
    for path, change in changes.items():
        listed.append(json.dumps({"path": str(path), "change": change}))
        size += len(listed[-1]) + 2
        if size > _ROOM:
            listed.pop()
            break
    cut = len(changes) - len(listed)
    found = {"LIFECYCLE_CHANGES": f"[{', '.join(listed)}]"}
    return found | {"LIFECYCLE_CHANGES_CUT": str(cut)} if cut else found


class Children:
    """Makes the command's workers, a fresh one for each start.

    ``foreground`` is the terminal to lend to them, ``handover`` the socket to hand to them.
    """

    def __init__(
        self, settings: Settings, how: Manner, foreground: Foreground | None = None, handover: Handover | None = None
    ) -> None:
        self._settings = settings
        self._how = how
        self._handover = handover
        self._foreground = foreground
        # Those that have not ended, the oldest first: two while one takes the place of another.
        self._lives: list[ProcessWorker] = []
        # Theirs; one that has been closed takes no notice.
        self._terminals: list[OwnTerminal] = []

    @property
    def name(self) -> str:
        """The command as a person would type it."""
        return self._settings.command[0] if self._settings.shell else shlex.join(self._settings.command)

    @property
    def argv(self) -> tuple[str, ...]:
        """What is executed.

        Raises:
            UsageError: if there is no such program.
            ConfigError: if ``--env-file`` cannot be read.
        """
        return self._argv(self._env())

    def make(self, changes: Mapping[Path, Change]) -> ProcessWorker:
        """A worker for the next start, told of ``changes`` by its environment.

        Raises:
            UsageError: if the program is gone.
            ConfigError: if ``--env-file`` cannot be read.
        """
        env, settings = self._env(), self._settings
        argv = self._argv(env)
        if settings.clear and at_terminal(sys.stdout):
            put(sys.stdout, _CLEAR)
        kind = ProcessWorker if self._foreground is None else _Job
        worker = kind(
            settings.command[0],
            *(argv if self._handover is None else self._handover.wrapped(argv)),
            env={**env, **self._manners(env), **changes_env(changes)},
            stop_signal=settings.stop_signal,
            stop_timeout=settings.stop_timeout,
            ready=settings.ready,
            start_timeout=settings.start_timeout,
            stdio=self._stdio(),
            inherit=() if self._handover is None else self._handover.inherit,
        )
        self._lives = [*(each for each in self._lives if each.status not in FINAL), worker]
        return worker

    def signal(self, signum: signal.Signals) -> None:
        """To the command itself; to all of its group where a shell stands before it."""
        for worker in self._lives:
            if worker.status in (Status.RUNNING, Status.SUSPENDED):
                worker.send_signal(signum, group=self._settings.shell)
                break

    def is_last(self, exit_code: int | None) -> bool:
        """Whether who ended the command wanted to end everything: by Ctrl+C in the terminal lent to it."""
        return self._foreground is not None and exit_code in _INTERRUPTED

    def resize(self) -> None:
        """Tell the command's own terminal the size that ours has now."""
        for terminal in self._terminals:
            terminal.fit()

    def _env(self) -> dict[str, str]:
        """Ours, and below it what ``--env-file`` adds: a variable that is set already stays."""
        file = self._settings.env_file
        return {**(read_env(file) if file else {}), **os.environ}

    def _argv(self, env: Mapping[str, str]) -> tuple[str, ...]:
        return arguments(self._settings.command, shell=self._settings.shell, env=env)

    def _manners(self, env: Mapping[str, str]) -> dict[str, str]:
        """Where output goes through a pipe, Python shall not keep it back."""
        return {} if self._how != "pipes" or env.get("PYTHONUNBUFFERED") else {"PYTHONUNBUFFERED": "1"}

    def _stdio(self) -> Stdio:
        if self._foreground is not None:
            return self._foreground
        if self._how == "pipes":
            return _PassedOn(_pass_on, logging.getLogger("lifecycle.cli"))
        from lifecycle.cli.watch.terminals import OwnTerminal

        self._terminals = [*self._terminals[-1:], OwnTerminal()]
        return self._terminals[-1]


class _Job(ProcessWorker):
    """The command in the foreground: to end it by Ctrl+C is to end everything."""

    async def _launch(self) -> Awaitable[End]:
        return self._judged(await super()._launch())

    async def _judged(self, life: Awaitable[End]) -> End:
        end = await life
        # Asked to stop, some end as if by Ctrl+C.
        wished = end.exit_code in _INTERRUPTED and self.status is not Status.STOPPING
        return replace(end, error=StopTree("Ctrl+C")) if wished else end


class _PassedOn(Pipes):
    """Pipes whose last words need not be told: they have been seen."""

    def tail(self) -> str:
        """Nothing."""
        return ""


def _pass_on(line: str, stream: Literal["stdout", "stderr"]) -> None:
    """A line of the command's, to where it belongs."""
    put(sys.stdout if stream == "stdout" else sys.stderr, line + "\n")
