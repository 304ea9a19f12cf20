"""The processes of `lifecycle up`, read from a Procfile, TOML or YAML and sorted by their dependencies."""

from __future__ import annotations

import os
import re
import signal as signals
from dataclasses import KW_ONLY, dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

from lifecycle._util import file_mode
from lifecycle.backoff import Backoff
from lifecycle.cli import options
from lifecycle.cli.files import did_you_mean, interpolated, load_table, read_env, read_text, shown, texts
from lifecycle.cli.options import Option, find_option, option, options_of, read_flag, read_value
from lifecycle.cli.output import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from signal import Signals

    from lifecycle.cli.options import Policy

__all__ = [
    "BASIC_KEYS",
    "KEYS",
    "Condition",
    "ExitOn",
    "Need",
    "Process",
    "environment",
    "find_file",
    "in_order",
    "parse_procfile",
    "port_of",
    "process_of",
    "read_file",
    "read_processes",
]

#: The name of a process, which is also the name of its log file.
NAME: Final = re.compile(r"[A-Za-z0-9_-]+")

_PROCFILE_LINE = re.compile(rf"(?P<name>{NAME.pattern})[ \t]*:[ \t]*(?P<command>.*\S)[ \t]*")
#: The difference between the ports of consecutive processes, as in foreman.
_PORT_STEP = 100

#: The file names to look for, in order, each with the table that the file must contain.
_FILES: Final = {
    "Procfile": (),
    "process-compose.yaml": (),
    "process-compose.yml": (),
    "lifecycle.toml": ("processes",),
    "pyproject.toml": ("tool", "lifecycle", "processes"),
}
_EXAMPLE: Final = "such as 'web: python app.py'"

#: The first process's default PORT, as in foreman.
_FIRST_PORT: Final = "5000"
_HIGHEST_PORT: Final = 65_535


#: The conditions used by Compose, and ``ended``. A process is healthy when it is ready and its probe succeeds.
Condition: TypeAlias = Literal["started", "healthy", "completed", "ended"]
#: ``after`` uses ``up``: the process is ready or, if it is a job, has succeeded.
Need: TypeAlias = Literal[Condition, "up"]
#: Which exits of a process stop all processes, unless it is restarted.
ExitOn: TypeAlias = Literal["never", "failure", "end"]

#: The period for a limit on the total number of restarts: ten years.
_FOREVER: Final = 10 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Process:
    """A process defined in a file. Times are in seconds."""

    name: str
    #: A shell command line, or a list of words to run without a shell.
    command: str | tuple[str, ...]
    _: KW_ONLY
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    #: The difference between this process's PORT and the first process's. None leaves PORT unset.
    port: int | None = None
    #: The required condition for each dependency, in addition to ``after``.
    depends_on: Mapping[str, Condition] = field(default_factory=dict[str, "Condition"])
    #: Which exits stop all processes if ``restart`` is set.
    exit_on: ExitOn = "never"
    #: Whether restarts follow the rules of process-compose: all delays are equal, and ``max_restarts`` limits the total
    #: number of restarts.
    constant_backoff: bool = False
    env_file: Path | None = option(
        "FILE",
        "read this process's variables from the KEY=VALUE lines in this file, in addition to .env",
        options.path,
    )
    #: A readiness condition in the format that `ProcessWorker` accepts.
    ready: str | None = option(
        "WHEN",
        "set how to detect that the process is ready: port:N, an http:// URL, line:REGEX or notify",
        options.ready,
    )
    start_timeout: float = option(
        "SECONDS",
        "stop the process if it is not ready within this time",
        options.interval,
        default=30.0,
        number=True,
    )
    user: str | None = option("USER", "run the process as this user (requires lifecycle to run as root)")
    #: A health check in the format that `Spec` accepts.
    probe: str | None = option(
        "CHECK", "check the health of the process: port:N, an http:// URL or cmd:COMMAND", options.probe
    )
    probe_interval: float = option(
        "SECONDS", "wait this long between probes", options.interval, default=10.0, number=True
    )
    probe_timeout: float = option(
        "SECONDS", "count a probe as failed after this time", options.interval, default=5.0, number=True
    )
    probe_failures: int = option(
        "N",
        "count the process as unhealthy after this many failed probes",
        options.positive,
        default=3,
        number=True,
    )
    restart_unhealthy: bool = option(None, "restart the process when it is unhealthy", default=False)
    first_start: str = option(
        "WHAT",
        "if the first start fails, stop everything (fail) or retry after the backoff (retry)",
        options.first_start,
        default="fail",
    )
    after: tuple[str, ...] = option(
        "NAME",
        "start once these processes are ready and these jobs have succeeded; stop before them",
        lambda text: (text,),
        many=True,
    )
    #: None: all processes stop when this process exits, unless ``watch`` is set.
    restart: Policy | None = option(
        "POLICY", "set when to restart the process after it exits: never, on-failure or always", options.policy
    )
    backoff: float = option(
        "SECONDS",
        "wait this long before the first restart, then double the delay each time, up to 30 seconds",
        options.seconds,
        default=0.1,
        number=True,
    )
    max_restarts: int = option(
        "N",
        "give up after more than this many restarts within a minute; 0 for no limit",
        options.count,
        default=0,
        number=True,
    )
    replicas: int = option("N", "run this many copies, as -c does", options.copies, default=1, number=True)
    disabled: bool = option(None, "do not run the process unless the command line names it", default=False)
    watch: tuple[Path, ...] = option(
        "PATH",
        "restart the process when these files or directories change",
        lambda text: (options.path(text),),
        many=True,
    )
    success_exit_codes: tuple[int, ...] = option(
        "N",
        "treat these exit codes as success, in addition to 0; 128 + N means killed by signal N",
        options.exit_codes,
        many=True,
        number=True,
    )
    stop_signal: Signals = option(
        "SIG", "stop the process and its children with this signal", options.signal, default=signals.SIGTERM
    )
    stop_timeout: float = option(
        "SECONDS",
        "kill the process if it is still running this long after the stop signal",
        options.seconds,
        default=10.0,
        number=True,
    )

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments."""
        return ("/bin/sh", "-c", self.command) if isinstance(self.command, str) else self.command

    @property
    def essential(self) -> bool:
        """True if all processes stop when this process exits."""
        return self.restart is None and not self.watch

    @property
    def needs(self) -> dict[str, Need]:
        """The dependencies of this process, each with the condition it must meet before this process starts."""
        return {**dict.fromkeys(self.after, "up"), **self.depends_on}

    @property
    def is_job(self) -> bool:
        """True if dependents wait until this process has succeeded, rather than only until it has started."""
        return self.restart == "never" and self.ready is None and self.probe is None

    @property
    def delays(self) -> Backoff:
        """The delays between restarts, and their limit."""
        if self.constant_backoff:
            return Backoff(
                initial=self.backoff,
                maximum=self.backoff,
                multiplier=1,
                max_restarts=self.max_restarts,
                within=_FOREVER,
            )
        return Backoff(initial=self.backoff, max_restarts=self.max_restarts)

    def stops_others(self, *, failed: bool) -> bool:
        """Return whether all processes stop when this one has exited and is not restarted."""
        return self.essential or self.exit_on == "end" or (self.exit_on == "failure" and failed)

    def comes_back(self, *, failed: bool) -> bool:
        """Return whether the restart policy restarts the process after it has exited."""
        return self.restart == "always" or (self.restart == "on_failure" and failed)


#: The table keys that are not simple options.
BASIC_KEYS: Final = (
    Option("command", "run this string with /bin/sh, or this list of words without a shell", "COMMAND"),
    Option("cwd", "run the command in this directory; by default, the file's directory", "DIR"),
    Option("env", "set these variables for the process, overriding all others", "TABLE"),
    Option(
        "depends-on",
        "start once each of these processes is started, healthy, completed or ended; stop before them",
        "TABLE",
    ),
)
#: The other table keys.
KEYS: Final = options_of(Process)


def in_order(processes: Sequence[Process], file: Path) -> tuple[Process, ...]:
    """Sort ``processes`` so that each follows its dependencies.

    Raises:
        ConfigError: for an unknown name or a circular dependency.
    """
    known = {each.name: each for each in processes}
    for each in processes:
        for name, need in each.needs.items():
            if name not in known:
                raise ConfigError(
                    f"{file}: {each.name} starts after {name!r}, which does not exist; {did_you_mean(name, known)}"
                )
            if why := _why_never(known[name], need):
                raise ConfigError(f"{file}: {each.name} waits until {name} is {need}, but {why}")
    try:
        order = TopologicalSorter({each.name: [*each.needs] for each in processes}).static_order()
        return tuple(known[name] for name in order)
    except CycleError as error:
        circle: list[str] = error.args[1]
        shown = " after ".join(reversed(circle))
        raise ConfigError(f"{file}: circular dependency: {shown}; remove one dependency") from None


def _why_never(process: Process, need: Need) -> str:
    """Return why ``process`` can never meet a condition, with a remedy, or an empty string if it can meet it."""
    name = process.name
    if need == "healthy" and process.ready is None and process.probe is None:
        return f'{name} has neither ready nor probe; add one, or write {name} = "started"'
    if need in ("completed", "ended") and (process.essential or process.restart == "always"):
        end = "all processes stop when it exits" if process.essential else "it is restarted whenever it exits"
        return f'{end}; set restart = "never" for {name}'
    return ""


def parse_procfile(text: str, file: Path) -> tuple[Process, ...]:
    """Return the processes in a Procfile. Each line defines one process, which runs in the Procfile's directory.

    Raises:
        ConfigError: for an invalid line. The message contains the line number.
    """
    found: dict[str, Process] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, command = _parse_line(line.strip(), f"{file}:{number}")
        if name in found:
            raise ConfigError(f"{file}:{number}: {name} is already defined on line {lines[name]}; choose another name")
        found[name] = Process(name, command, cwd=file.parent, port=_PORT_STEP * len(found))
        lines[name] = number
    return tuple(found.values())


def _parse_line(line: str, where: str) -> tuple[str, str]:
    read = _PROCFILE_LINE.fullmatch(line)
    if read is None or "\0" in line:
        raise ConfigError(f"{where}: {line!r} is not a process; write NAME: COMMAND, such as 'web: python app.py'")
    return read["name"], read["command"]


def read_processes(
    table: Mapping[str, Any], file: Path, title: str, variables: Mapping[str, str]
) -> tuple[Process, ...]:
    """Return the processes in ``table``, replacing references to ``variables`` in its values.

    Error messages contain the file and the table's ``title``, such as ``up``.

    Raises:
        ConfigError: for an invalid table or key. The message contains the value found and the accepted values.
    """
    found: list[Process] = []
    for name, value in table.items():
        try:
            found.append(_process(name, value, file.parent, variables))
        except ValueError as error:
            raise ConfigError(f"{file}: [{title}.{name}] {error}") from None
    return tuple(found)


def _process(name: str, value: Any, base: Path, variables: Mapping[str, str]) -> Process:
    keys = cast("Mapping[str, Any]", value) if isinstance(value, dict) else {"command": value}
    return process_of(name, {key: _resolved(key, each, variables) for key, each in keys.items()}, base)


def process_of(name: str, keys: Mapping[str, Any], base: Path) -> Process:
    """Return the process defined by the ``keys`` of a table. Paths are relative to ``base``.

    Raises:
        ValueError: for a wrong name, key or value.
    """
    if not NAME.fullmatch(name):
        raise ValueError("is not a valid process name; use letters, digits, - and _")
    # A wrong key is reported first, because it may be a misspelt `command`.
    fields = _fields(keys, base)
    if "command" not in fields:
        raise ValueError('has no command; add one, such as command = "python app.py"')
    process = Process(name, **fields)
    if process.restart_unhealthy and (process.probe is None or process.restart in (None, "never")):
        raise ValueError('restart-unhealthy needs a probe, and restart = "on-failure" or "always"; add what is missing')
    return process


def _resolved(key: str, value: Any, variables: Mapping[str, str]) -> Any:
    """Replace references to ``variables``, except in a shell command line, where the shell replaces them."""
    if key == "command" and isinstance(value, str):
        return value
    try:
        return interpolated(value, variables)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _fields(keys: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return the fields of a `Process`. Paths are relative to ``base``."""
    found: dict[str, Any] = {"cwd": base}
    for key, value in keys.items():
        match key:
            case "command":
                found[key] = _command(value)
            case "cwd":
                found[key] = _directory(value, base)
            case "env":
                found[key] = _variables(value)
            case "depends-on" | "depends_on":
                found["depends_on"] = _conditions(value)
            case _:
                known, negated = find_option(key, KEYS, *(each.name for each in BASIC_KEYS))
                if known.field in found:
                    raise ValueError(f"{key} sets the same value as another key; remove one of them")
                flag = known.is_flag
                found[known.field] = read_flag(key, value) is not negated if flag else read_value(known, value)
    if "env_file" in found:
        found["env_file"] = base / found["env_file"]
    return {**found, "watch": tuple(_watched(path, base) for path in found.get("watch", ()))}


def _command(value: Any) -> str | tuple[str, ...]:
    words = texts("command", value)
    if not all(word.strip() for word in words[:1]) or not words or any("\0" in word for word in words):
        raise ValueError(
            f"command = {shown(value)} is empty or contains a NUL character; use a shell command or a list of words"
        )
    return words[0] if isinstance(value, str) else tuple(words)


def _directory(value: Any, base: Path) -> Path:
    [text] = texts("cwd", value) if isinstance(value, str) else [""]
    if not text:
        raise ValueError(f"cwd = {shown(value)} is not a path; use the directory to run the process in")
    if not S_ISDIR(file_mode(base / text)):
        raise ValueError(f"cwd = {shown(value)}: {base / text} is not a directory; create it, or correct the path")
    return base / text


def _watched(path: Path, base: Path) -> Path:
    if not file_mode(base / path):
        raise ValueError(f'watch = "{path}": {base / path} does not exist; create it, or correct the path')
    return base / path


def _variables(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f'env = {shown(value)} is not a table; use one such as {{ PORT = "8000" }}')  # noqa: TRY004  # what readers raise
    return {key: _env_value(key, each) for key, each in cast("dict[str, Any]", value).items()}


def _conditions(value: Any) -> dict[str, Condition]:
    known = get_args(Condition)
    if not isinstance(value, dict):
        raise ValueError(f'depends-on = {shown(value)} is not a table; use one such as {{ db = "healthy" }}')  # noqa: TRY004  # what readers raise
    for name, each in cast("dict[str, Any]", value).items():
        if each not in known:
            raise ValueError(f"depends-on: {name} = {shown(each)}: expected {', '.join(known[:-1])} or {known[-1]}")
    return cast("dict[str, Condition]", value)


def _env_value(key: str, value: Any) -> str:
    options.variable(key)
    if isinstance(value, bool) or not isinstance(value, str | int) or "\0" in str(value):
        raise ValueError(f"env: {key} = {shown(value)} is not a string; write it in quotes")
    return str(value)


def find_file(here: Path) -> Path:
    """Return the first file that defines processes, in ``here`` or its nearest parent directory.

    Raises:
        ConfigError: if there is no such file, or a file cannot be read.
    """
    for directory in (here, *here.parents):
        for name, table in _FILES.items():
            file = directory / name
            if S_ISREG(file_mode(file)) and (not table or load_table(file, *table) is not None):
                return file
    raise ConfigError(
        "nothing to run: found no Procfile, no process-compose.yaml, no lifecycle.toml with [processes.NAME] and no "
        f"pyproject.toml with [tool.lifecycle.processes.NAME] in {here} or its parent directories; write a Procfile "
        f"with lines {_EXAMPLE}, or use -f FILE"
    )


def read_file(file: Path, *shared: Path, warn: Callable[[str], object] = lambda _: None) -> tuple[Process, ...]:
    """Return the processes in a Procfile, a ``.toml`` or a ``.yaml`` file, sorted by their dependencies.

    References to variables are looked up in our environment, then in the ``shared`` env files. ``warn`` is called with
    a message for each key of process-compose that is ignored.

    Raises:
        ConfigError: if the file does not exist, is invalid, or defines no processes.
    """
    if not file_mode(file):
        raise ConfigError(f"{file}: no such file")
    names = _FILES["pyproject.toml" if file.name == "pyproject.toml" else "lifecycle.toml"]
    if file.suffix in (".yaml", ".yml"):
        from lifecycle.cli.up.process_compose import read_process_compose

        variables = _variables_of(*filter(Path.is_file, shared))
        found, example = read_process_compose(file, variables, warn), "processes: NAME: command: COMMAND"
    elif file.suffix != ".toml":
        found, example = parse_procfile(read_text(file), file), f"lines {_EXAMPLE}"
    else:
        title = ".".join(names)
        variables = _variables_of(*filter(Path.is_file, shared))
        found = read_processes(load_table(file, *names) or {}, file, title, variables)
        example = f"tables [{title}.NAME]"
    if not found:
        raise ConfigError(f"{file} defines no processes; write {example}")
    return in_order(found, file)


def environment(process: Process, *shared: Path) -> dict[str, str]:
    """Return the environment for ``process``.

    In order of precedence, variables come from its ``env``, our environment, its ``env-file``, and the ``shared`` env
    files. Shared files may be missing.

    Raises:
        ConfigError: if a file cannot be read, or PORT is not a number.
    """
    # By default, Python buffers output written to a pipe.
    found = {"PYTHONUNBUFFERED": "1", **_variables_of(*filter(Path.is_file, shared), *filter(None, [process.env_file]))}
    if process.port is not None:
        found["PORT"] = port_of(found.get("PORT") or _FIRST_PORT, process.port)
    return {**found, **process.env}


def _variables_of(*files: Path) -> dict[str, str]:
    """Return our environment, plus variables from ``files`` that are not set in it."""
    found: dict[str, str] = {}
    for file in files:
        found |= read_env(file)
    return found | os.environ


def port_of(first: str, more: int) -> str:
    """Return a process's PORT: the ``first`` process's PORT plus ``more``.

    Raises:
        ConfigError: if ``first`` is not a number, or the result is too high.
    """
    if not (first.isascii() and first.isdecimal()) or int(first) + more > _HIGHEST_PORT:
        raise ConfigError(
            f"PORT={first!r} is not valid as the first process's port; use a number such as {_FIRST_PORT}"
        )
    return str(int(first) + more)
