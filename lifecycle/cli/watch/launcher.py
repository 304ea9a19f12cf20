"""How the command becomes a process: its program, environment, streams, and the socket that it inherits."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from lifecycle.cli.files import read_env
from lifecycle.cli.output import CliError, UsageError, at_terminal, put
from lifecycle.errors import StopTree
from lifecycle.workers import ProcessWorker, Status
from lifecycle.workers.model import FINAL
from lifecycle.workers.stdio import Pipes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Mapping, Sequence

    from lifecycle.cli.options import Address
    from lifecycle.cli.watch.settings import Settings
    from lifecycle.cli.watch.terminal import Foreground, OwnTerminal
    from lifecycle.events import Change
    from lifecycle.workers.model import End
    from lifecycle.workers.stdio import Stdio

__all__ = ["Children", "Handover", "arguments", "changes_env", "find_program", "handover", "interpreter", "manner"]

#: ``pty``: a terminal of the child's own, beside a prompt. ``foreground``: our terminal itself. ``pipes``: none.
Manner: TypeAlias = Literal["pty", "foreground", "pipes"]

#: Bytes of changed paths that the environment is given; the system refuses 128 KiB in one variable.
_ROOM = 96 * 1024
_CLEAR = "\x1b[2J\x1b[3J\x1b[H"
_INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*[dt]?(?:\.exe)?")
#: How pip starts a script whose interpreter has a path too long for ``#!``.
_LONG_SHEBANG = re.compile(rb"'''exec' (.+) \"\$0\"")

#: Who waits to be accepted; the system may allow less (net.core.somaxconn).
_QUEUE: Final = 4096
_FIRST: Final = 3
#: Shells know only descriptors of one digit.
_LAST: Final = 9
_HAND_OVER: Final = 'LISTEN_FDS=1 LISTEN_PID=$$; export LISTEN_FDS LISTEN_PID; exec "$@"'


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
        from lifecycle.cli.watch.terminal import OwnTerminal

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


def arguments(command: Sequence[str], *, shell: bool, env: Mapping[str, str]) -> tuple[str, ...]:
    """What is executed: the program with its full path, and the arguments as given.

    With ``shell`` the words become one line for ``$SHELL``, as `ssh` does it.

    Raises:
        UsageError: for a program that is not there or cannot be executed; the message says which.
    """
    if shell:
        return find_program(env.get("SHELL") or "/bin/sh", env), "-c", " ".join(command)
    return find_program(command[0], env), *command[1:]


def find_program(name: str, env: Mapping[str, str]) -> str:
    """The path of the program ``name``, looked up as a shell does.

    Raises:
        UsageError: for a program that is not there or cannot be executed; the message says which.
    """
    found = shutil.which(name, path=env.get("PATH", os.defpath))
    if found is not None:
        return found if "/" not in name else name
    raise UsageError(_why_not(name))


def interpreter(argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """The Python that runs ``argv``, where that can be known without running it.

    It can where the program is a Python, or a script whose first line names one (uvicorn, flask, gunicorn).
    Behind ``uv run``, ``poetry run`` or a shell it cannot: None.
    """
    program = Path(argv[0])
    if _PYTHON.fullmatch(program.name):
        return argv[0]
    words = _shebang(program)
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words or not _PYTHON.fullmatch(Path(words[0]).name):
        return None
    return shutil.which(words[0], path=env.get("PATH", os.defpath))


def _shebang(program: Path) -> list[str]:
    """The words of the first line that say who reads the rest; none for anything else."""
    try:
        with program.open("rb") as stream:
            first, second = stream.readline(4096), stream.readline(4096)
    except OSError:
        return []
    if not first.startswith(b"#!"):
        return []
    line = first[2:]
    if long := _LONG_SHEBANG.match(second):
        line = long[1]
    try:
        return shlex.split(os.fsdecode(line))
    except ValueError:
        return []


def _why_not(name: str) -> str:
    """Why a program cannot be executed, and what to do."""
    if "/" not in name:
        here = f"; for the one in this directory: ./{name}" if Path(name).is_file() else "; is it installed?"
        return f"{name!r}: command not found on PATH{here}"
    path = Path(name)
    if not path.exists():
        return f"{name!r}: no such file"
    if path.is_dir():
        return f"{name!r}: is a directory, not a program"
    run = f", or run it with python {name}" if path.suffix == ".py" else ""
    return f"{name!r}: is not executable; chmod +x {shlex.quote(name)}{run}"


class Handover:
    """Of the socket ``listening`` to one run after the other."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening

    def __str__(self) -> str:
        host, port, *_ = self._listening.getsockname()
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def inherit(self) -> tuple[int]:
        """The descriptor that the command has to inherit."""
        return (self._listening.fileno(),)

    def wrapped(self, argv: Sequence[str]) -> tuple[str, ...]:
        """What becomes ``argv``, with the socket where that looks for it."""
        number = self._listening.fileno()
        move = f"exec {_FIRST}<&{number} {number}<&-; " if number != _FIRST else ""
        return ("/bin/sh", "-c", move + _HAND_OVER, "sh", *argv)


@contextmanager
def handover(address: Address | None) -> Generator[Handover | None]:
    """Listen at ``address``, if there is one.

    Raises:
        CliError: if that cannot be; the message says why.
    """
    if address is None:
        yield None
        return
    with _listen(address) as listening:
        if listening.fileno() > _LAST:
            raise CliError(
                f"--socket needs one of the descriptors {_FIRST} to {_LAST}, and whoever started this left all of them "
                f"open; close one, such as with {_LAST}<&- at the end of the line"
            )
        yield Handover(listening)


def _listen(address: Address) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family, backlog=_QUEUE)
    except OSError as error:
        raise CliError(
            f"--socket {address.host}:{address.port}: {_reason(error)}; give an address of this machine and a "
            "port that is free (0: any)"
        ) from error


def _reason(error: OSError) -> str:
    """Without the address, which Python puts behind it."""
    return (error.strerror or str(error)).partition(" (")[0]
