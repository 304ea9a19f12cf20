"""The command's process: its program, environment, streams and inherited socket."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from lifecycle._util import file_mode
from lifecycle.cli.files import read_env
from lifecycle.cli.output import CliError, UsageError, is_terminal, write
from lifecycle.cli.streams import settle
from lifecycle.errors import StopTree
from lifecycle.workers import ProcessWorker, Status
from lifecycle.workers.stdio import Pipes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Mapping, Sequence

    from lifecycle.cli.options import Address
    from lifecycle.cli.watch.settings import Settings
    from lifecycle.cli.watch.terminal import Foreground, OwnTerminal
    from lifecycle.events import Change
    from lifecycle.workers.model import End
    from lifecycle.workers.stdio import Stdio

__all__ = [
    "Handover",
    "Launcher",
    "StdioMode",
    "arguments",
    "changes_env",
    "find_program",
    "handover",
    "interpreter",
    "own_reload_option",
    "stdio_mode",
]

#: ``pty``: the command has its own terminal, and we copy its output. ``foreground``: the command uses our terminal.
#: ``pipes``: the command has no terminal.
StdioMode: TypeAlias = Literal["pty", "foreground", "pipes"]

#: The maximum size, in bytes, of the changed paths in the environment. The system limit is just under 128 KiB.
_MAX_CHANGES = 96 * 1024
_CLEAR = "\x1b[2J\x1b[3J\x1b[H"

_INTERPRETER = re.compile(r"(?:(?:python|pypy)[0-9.]*[dt]?|node(?:js)?)(?:\.exe)?")
#: The second line of a script written by pip if the interpreter's path is too long for ``#!``.
_LONG_SHEBANG = re.compile(rb"'''exec' (.+) \"\$0\"")

#: The maximum number of connections waiting to be accepted. The system may impose a lower limit (net.core.somaxconn).
_BACKLOG: Final = 4096
#: The descriptor through which the command receives the socket.
_FIRST: Final = 3
#: The highest descriptor that every shell accepts in redirections.
_LAST: Final = 9
_HAND_OVER: Final = 'LISTEN_FDS=1 LISTEN_PID=$$; export LISTEN_FDS LISTEN_PID; exec "$@"'


def stdio_mode(settings: Settings) -> StdioMode:
    """Choose how to connect the command's streams, depending on our own streams."""
    if not settings.shares_terminal:
        return "pty" if is_terminal(sys.stdin) and is_terminal(sys.stdout) else "pipes"
    try:
        in_front = os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return "pipes"
    return "foreground" if in_front else "pipes"


class Launcher:
    """Creates a new worker each time the command starts.

    Args:
        settings: the command and its options.
        mode: how to connect the command's streams.
        foreground: our terminal, if the command uses it.
        handover: the socket that each run inherits.
    """

    def __init__(
        self,
        settings: Settings,
        mode: StdioMode,
        foreground: Foreground | None = None,
        handover: Handover | None = None,
    ) -> None:
        self._settings = settings
        # This is a path because the directory may be deleted and recreated.
        self._here = Path.cwd() / (settings.workdir or "")
        self._mode = mode
        self._handover = handover
        self._foreground = foreground
        # The terminals of the last two runs, which may overlap. Resizing a closed terminal has no effect.
        self._terminals: list[OwnTerminal] = []

    @property
    def name(self) -> str:
        """The command, as typed by a user."""
        return self._settings.command[0] if self._settings.shell else shlex.join(self._settings.command)

    @property
    def argv(self) -> tuple[str, ...]:
        """The program's full path, followed by its arguments.

        Raises:
            UsageError: if the program does not exist or cannot be executed.
            ConfigError: if ``--env-file`` cannot be read.
        """
        return self._arguments(self._env())

    def make(self, changes: Mapping[Path, Change]) -> ProcessWorker:
        """Return the worker for the next start. Its environment contains ``changes``.

        Raises:
            UsageError: if the program no longer exists.
            ConfigError: if ``--env-file`` cannot be read.
        """
        env, settings = self._env(), self._settings
        argv = self._arguments(env)
        if settings.clear and is_terminal(sys.stdout):
            write(sys.stdout, _CLEAR)
        # The command may write to the same terminal, but only after our messages.
        settle()
        if self._mode == "pipes":
            # By default, Python buffers output written to a pipe.
            env["PYTHONUNBUFFERED"] = env.get("PYTHONUNBUFFERED") or "1"
        return _CommandWorker(
            settings.command[0],
            *(argv if self._handover is None else self._handover.wrapped(argv)),
            foreground=self._foreground,
            keep_daemons=settings.keep_daemons,
            cwd=self._here,
            env=env | changes_env(changes),
            stop_signal=settings.stop_signal,
            stop_timeout=settings.stop_timeout,
            ready=settings.ready,
            start_timeout=settings.start_timeout,
            stdio=self._stdio(),
            inherit=() if self._handover is None else self._handover.inherit,
        )

    def ends_all(self, exit_code: int | None) -> bool:
        """Return whether the user pressed Ctrl+C in the foreground, which stops the command and `lifecycle watch`."""
        return self._foreground is not None and self._foreground.ended_by_user(exit_code)

    @property
    def terminal(self) -> OwnTerminal | None:
        """The terminal of the latest run that has not exited, or None."""
        return next((each for each in reversed(self._terminals) if each.is_open), None)

    def resize(self) -> None:
        """Resize the command's own terminal to match our terminal."""
        for terminal in self._terminals:
            terminal.fit()

    def _arguments(self, env: Mapping[str, str]) -> tuple[str, ...]:
        return arguments(self._settings.command, shell=self._settings.shell, env=env, here=self._here)

    def _env(self) -> dict[str, str]:
        """Merge the variables from ``--env-file``, our environment and ``--env``. Later sources take precedence."""
        file = self._settings.env_file
        return {**(read_env(file) if file else {}), **os.environ, **dict(self._settings.env)}

    def _stdio(self) -> Stdio:
        if self._foreground is not None:
            return self._foreground
        if self._mode == "pipes":
            return _PassedOn(_pass_on, "watch")
        from lifecycle.cli.watch.terminal import OwnTerminal

        self._terminals = [*self._terminals[-1:], OwnTerminal(prompt=self._settings.prompt)]
        return self._terminals[-1]


class _CommandWorker(ProcessWorker):
    """One run of the command.

    If Ctrl+C stops the command in the foreground, `lifecycle watch` stops too. If the command ends by itself, the
    daemons that it has started, such as those of build tools, continue.
    """

    def __init__(
        self, name: str, *argv: str, foreground: Foreground | None, keep_daemons: bool, **settings: Any
    ) -> None:
        super().__init__(name, *argv, **settings)
        self._foreground = foreground
        self._keep_daemons = keep_daemons

    def _leaves_daemons(self, exit_code: int | None) -> bool:
        return self._keep_daemons or not (self._was_asked or self._ended_by_user(exit_code))

    def _ended_by_user(self, exit_code: int | None) -> bool:
        return self._foreground is not None and self._foreground.ended_by_user(exit_code)

    async def _launch(self) -> Awaitable[End]:
        return self._checked(await super()._launch())

    async def _checked(self, process: Awaitable[End]) -> End:
        end = await process
        # Some programs respond to the stop signal with the exit status used for Ctrl+C.
        by_user = self._ended_by_user(end.exit_code) and self.status is not Status.STOPPING
        return replace(end, error=StopTree("Ctrl+C")) if by_user else end


def changes_env(changes: Mapping[Path, Change]) -> dict[str, str]:
    """Return the variable ``LIFECYCLE_CHANGES``, a JSON list of paths and changes.

    If the list is too long for an environment variable, it is truncated, and ``LIFECYCLE_CHANGES_CUT`` contains the
    number of omitted changes.
    """
    listed: list[str] = []
    size = 0
    for path, change in changes.items():
        listed.append(json.dumps({"path": str(path), "change": change}))
        size += len(listed[-1]) + 2
        if size > _MAX_CHANGES:
            listed.pop()
            break
    cut = len(changes) - len(listed)
    found = {"LIFECYCLE_CHANGES": f"[{', '.join(listed)}]"}
    return found | {"LIFECYCLE_CHANGES_CUT": str(cut)} if cut else found


class _PassedOn(Pipes):
    """Pipes whose output is printed immediately. Errors do not repeat the last lines of output."""

    def tail(self) -> str:
        """Return an empty string, because the output has already been shown."""
        return ""


def _pass_on(line: str, stream: Literal["stdout", "stderr"]) -> None:
    """Write a line of output to our stream of the same name."""
    write(sys.stdout if stream == "stdout" else sys.stderr, line + "\n")


def arguments(command: Sequence[str], *, shell: bool, env: Mapping[str, str], here: Path = Path()) -> tuple[str, ...]:
    """Return the program's full path, followed by its arguments.

    With ``shell``, the words are joined into one command line for ``$SHELL``, as in `ssh`. The program will run in the
    directory ``here``.

    Raises:
        UsageError: if the program does not exist or cannot be executed.
    """
    if shell:
        return find_program(env.get("SHELL") or "/bin/sh", env), "-c", " ".join(command)
    return find_program(command[0], env, here), *command[1:]


def find_program(name: str, env: Mapping[str, str], here: Path = Path()) -> str:
    """Look up a program's path in the same way as a shell in the directory ``here``.

    Raises:
        UsageError: if the program does not exist or cannot be executed.
    """
    # Converting to a `Path` would remove the dot from `./app`.
    program = os.path.join(here, name) if "/" in name else name  # noqa: PTH118
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is not None:
        return found if "/" not in name else name
    raise UsageError(_why_not(name, here))


def own_reload_option(argv: Sequence[str]) -> str | None:
    """Return the option that makes the command restart itself after changes, or None if none is known.

    For Django, this is the subcommand, which restarts itself unless an option disables this.
    """
    if "runserver" in argv and "--noreload" not in argv:
        return "runserver without --noreload"
    if "flask" in {Path(word).name for word in argv} and "--debug" in argv and "--no-reload" not in argv:
        return "--debug without --no-reload"
    return next((word for word in argv if word in ("--reload", "--autoreload")), None)


def interpreter(argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Return the interpreter that runs ``argv``, or None if it cannot be determined without running the command.

    The program must be Python or Node.js, or a script such as uvicorn, flask or npm whose first line names one of them.
    The result is None for ``uv run``, ``poetry run`` and shells.
    """
    program = Path(argv[0])
    if _INTERPRETER.fullmatch(program.name):
        return argv[0]
    words = _shebang(program)
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words or not _INTERPRETER.fullmatch(Path(words[0]).name):
        return None
    return shutil.which(words[0], path=env.get("PATH", os.defpath))


def _shebang(program: Path) -> list[str]:
    """Return the words of the program's shebang line, or an empty list if it has none."""
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


def _why_not(name: str, directory: Path) -> str:
    """Explain why a program cannot be executed, and suggest a remedy."""
    if "/" not in name:
        here = (
            f"; to run the file in this directory, use ./{name}"
            if (directory / name).is_file()
            else "; is it installed?"
        )
        return f"{name!r}: command not found on PATH{here}"
    path = directory / name
    if not file_mode(path):
        return f"{name!r}: no such file"
    if path.is_dir():
        return f"{name!r}: is a directory, not a program"
    run = f", or use python {name}" if path.suffix == ".py" else ""
    return f"{name!r}: not executable; run chmod +x {shlex.quote(name)}{run}"


class Handover:
    """A listening socket that is passed to each run using systemd's protocol (sd_listen_fds(3)).

    While no run accepts connections, they wait in the socket's queue, so none is refused. In the command, the socket is
    descriptor 3, and ``LISTEN_PID`` contains the command's own PID. Because the PID is known only inside the new
    process, the process starts as a shell that sets the variable and then executes the command.
    """

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening

    def __str__(self) -> str:
        host, port, *_ = self._listening.getsockname()
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def inherit(self) -> tuple[int]:
        """The descriptor inherited by the command."""
        return (self._listening.fileno(),)

    def wrapped(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return a command that passes on the socket and then executes ``argv``."""
        number = self._listening.fileno()
        move = f"exec {_FIRST}<&{number} {number}<&-; " if number != _FIRST else ""
        return ("/bin/sh", "-c", move + _HAND_OVER, "sh", *argv)


@contextmanager
def handover(address: Address | None) -> Generator[Handover | None]:
    """Listen on ``address``, if given, while the block runs.

    Raises:
        CliError: if the socket cannot be opened.
    """
    if address is None:
        yield None
        return
    with _listen(address) as listening:
        if listening.fileno() > _LAST:
            raise CliError(
                f"--socket needs a free descriptor from {_FIRST} to {_LAST}, but all are in use; "
                f"close one, for example with {_LAST}<&- at the end of the command line"
            )
        yield Handover(listening)


def _listen(address: Address) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise CliError(
            f"--socket {address.host}:{address.port}: {_reason(error)}; use an address of this machine and a "
            "free port (0 for any)"
        ) from error


def _reason(error: OSError) -> str:
    """Return the error message without the address that Python appends."""
    return (error.strerror or str(error)).partition(" (")[0]
