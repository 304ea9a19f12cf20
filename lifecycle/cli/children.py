"""How the command is started: its environment, and the streams that fit where we run ourselves."""

from __future__ import annotations

import codecs
import json
import logging
import os
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

from lifecycle.cli.dotenv import read_env
from lifecycle.cli.messages import at_terminal, put
from lifecycle.cli.programs import arguments
from lifecycle.cli.terminal import stopped_by
from lifecycle.workers import ProcessWorker
from lifecycle.workers.stdio import Inherited, Pipes
from lifecycle.workers.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lifecycle.cli.generations import Child
    from lifecycle.cli.messages import Voice
    from lifecycle.cli.settings import Settings
    from lifecycle.cli.terminal import Foreground
    from lifecycle.events import Change
    from lifecycle.workers import Exit
    from lifecycle.workers.stdio import Stdio

__all__ = ["Children", "Manner", "changes_env", "manner"]

#: ``pty``: a terminal of the child's own, beside a prompt. ``foreground``: our terminal itself. ``pipes``: none.
Manner: TypeAlias = Literal["pty", "foreground", "pipes"]

#: Bytes of changed paths that the environment is given; the system refuses 128 KiB in one variable.
_ROOM = 96 * 1024
#: Characters of a line without an end that are held back.
_LONGEST = 64 * 1024
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
    """Starts the command, a fresh worker each time."""

    def __init__(self, settings: Settings, voice: Voice, how: Manner, foreground: Foreground | None = None) -> None:
        self._settings = settings
        self._voice = voice
        self._how = how
        self._foreground = foreground
        # Of the last child; where there is none any more they take no notice.
        self._terminal: Terminal | None = None
        self._screen = AboveThePrompt()

    @property
    def name(self) -> str:
        """The command as a person would type it."""
        return self._settings.command[0] if self._settings.shell else shlex.join(self._settings.command)

    def env(self) -> dict[str, str]:
        """Ours, and below it what ``--env-file`` adds: a variable that is set already stays.

        Raises:
            ConfigError: for a file that cannot be read.
        """
        file = self._settings.env_file
        return {**(read_env(file) if file else {}), **os.environ}

    async def start(self, changes: Mapping[Path, Change]) -> ProcessWorker:
        """A worker that runs, told of ``changes`` by its environment.

        Raises:
            WorkerFailed: if it cannot be started.
            UsageError: if the program is gone.
            ConfigError: if ``--env-file`` cannot be read.
        """
        env = self.env()
        argv = arguments(self._settings.command, shell=self._settings.shell, env=env)
        worker = ProcessWorker(
            self._settings.command[0],
            *argv,
            env={**env, **self._manners(env), **changes_env(changes)},
            stop_signal=self._settings.stop_signal,
            stop_timeout=self._settings.stop_timeout,
            stdio=self._stdio(),
            # As a shell would: a daemon that a build leaves behind is the person's own.
            contain="group",
        )
        if self._settings.clear and at_terminal(sys.stdout):
            put(sys.stdout, _CLEAR)
        await worker.start()
        pid = worker.state().pid
        if self._foreground is not None and pid is not None:
            self._foreground.give(pid)
        self._voice.good(f"started {self.name} (pid {pid})")
        return worker

    def signal(self, child: Child, signum: signal.Signals) -> None:
        """To the command itself; to all of its group where a shell stands before it."""
        child.send_signal(signum, group=self._settings.shell)

    def kill(self, child: Child | None) -> None:
        """End ``child`` and its group now, because we end by force."""
        pid = child.state().pid if child is not None else None
        if pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def ended(self, outcome: Exit) -> bool:
        """Take the terminal back; True if the command ended by Ctrl+C in it."""
        self._screen.write(b"")
        if self._foreground is None:
            return False
        self._foreground.take()
        return outcome.exit_code in _INTERRUPTED

    def stopped(self, child: Child | None) -> None:
        """One of our children changed its state: if the terminal stopped ``child`` (Ctrl+Z), stop with it."""
        pid = child.state().pid if child is not None else None
        if self._foreground is not None and pid is not None and (signum := stopped_by(pid)) is not None:
            self._foreground.pause(pid, signum)

    def continued(self, child: Child | None) -> None:
        """A shell continued us: ``child`` goes on too."""
        pid = child.state().pid if child is not None else None
        if self._foreground is not None and pid is not None:
            self._foreground.go_on(pid)

    def _manners(self, env: Mapping[str, str]) -> dict[str, str]:
        """Where output goes through a pipe, Python shall not keep it back."""
        return {} if self._how != "pipes" or env.get("PYTHONUNBUFFERED") else {"PYTHONUNBUFFERED": "1"}

    def _stdio(self) -> Stdio:
        if self._how == "foreground":
            return Inherited()
        if self._how == "pipes":
            return Pipes(_pass_on, logging.getLogger("lifecycle.cli"))
        columns, rows = shutil.get_terminal_size()
        self._screen = AboveThePrompt()
        self._terminal = Terminal(self._screen.write, rows=rows, columns=columns)
        return self._terminal

    def resize(self) -> None:
        """Tell the command's own terminal the size that ours has now."""
        if self._terminal is not None:
            columns, rows = shutil.get_terminal_size()
            self._terminal.resize(rows, columns)


class AboveThePrompt:
    """Writes what the command's terminal shows to our standard output, whole lines at a time.

    A prompt is drawn anew below each write, so that half a line would be cut in two. What is longer than a screen
    ever is, or comes last, is written without its end.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def write(self, data: bytes) -> None:
        """Take bytes as they come, and none at the end."""
        text = self._begun + self._decoder.decode(data, final=not data)
        whole, newline, self._begun = text.rpartition("\n")
        if self._begun and (not data or len(self._begun) > _LONGEST):
            whole, newline, self._begun = text, "\n", ""
        if newline:
            put(sys.stdout, whole + newline)


def _pass_on(line: str, stream: Literal["stdout", "stderr"]) -> None:
    """A line of the command's, to where it belongs."""
    put(sys.stdout if stream == "stdout" else sys.stderr, line + "\n")
