"""Selection of the processes that `lifecycle up` runs, and the number of copies of each."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

from lifecycle.cli import options
from lifecycle.cli.files import did_you_mean
from lifecycle.cli.options import LogFormat, option, options_of
from lifecycle.cli.output import UsageError
from lifecycle.cli.up.processes import port_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from lifecycle.cli.up.processes import Process

__all__ = ["OPTIONS", "Formation", "UpSettings", "counts", "selected", "up_settings"]

#: Used in place of a name, this selects all processes whose number is not given separately.
_ALL: Final = "all"


def counts(text: str) -> tuple[tuple[str, int], ...]:
    """Parse one or more ``NAME=N`` pairs, separated by commas.

    Raises:
        ValueError: for anything else.
    """
    found: list[tuple[str, int]] = []
    for part in text.split(","):
        name, _, number = part.partition("=")
        if not name or not (number.isascii() and number.isdecimal()):
            raise ValueError("use NAME=N, such as web=2,worker=3")
        found.append((name, int(number)))
    return tuple(found)


def _files(text: str) -> tuple[Path, ...]:
    """Parse paths separated by commas."""
    return tuple(options.path(part) for part in text.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """Settings for `lifecycle up`. Each corresponds to an option."""

    #: The processes to run. If empty, all processes run.
    names: tuple[str, ...] = ()
    file: Path | None = option(
        "FILE",
        "read processes from this file: .toml and process-compose's .yaml files, otherwise a Procfile",
        options.path,
        aliases=("-f",),
    )
    concurrency: tuple[tuple[str, int], ...] = option(
        "NAME=N",
        "run this many copies of NAME, called NAME.1, NAME.2 and so on; all=N sets the number for the others",
        counts,
        many=True,
        aliases=("-c",),
    )
    formation: tuple[tuple[str, int], ...] = option(
        "NAME=N",
        "as --concurrency, but run no other processes, unless there is all=N",
        counts,
        many=True,
        aliases=("-m",),
    )
    env_file: tuple[Path, ...] = option(
        "FILE", "read variables from this file instead of .env", _files, many=True, aliases=("-e",)
    )
    port: int | None = option(
        "PORT", "set PORT for the first process in a Procfile", options.port, number=True, aliases=("-p",)
    )
    deps: bool = option(None, "do not run the dependencies of the named processes", default=True)
    dry_run: bool = option(None, "print what would run, and exit", default=False)
    dashboard: int | None = option(
        "PORT",
        "serve a page on this port of localhost that shows and controls the processes; 0 selects a free port",
        options.port,
        number=True,
        group="output",
    )
    dashboard_token_env: str | None = option(
        "NAME",
        "protect the page with the token in this environment variable [default: a new token, shown on a terminal]",
        options.variable,
        group="output",
    )
    log_dir: Path | None = option(
        "DIR", "also append the output of each process to DIR/NAME.log", options.path, group="output"
    )
    timestamps: bool = option(None, "print the time before each line", default=False, group="output")
    log_format: LogFormat | None = field(default=None, metadata={"option": options.LOG_FORMAT})


#: The options in the order shown by --help.
OPTIONS: Final = options_of(UpSettings)


def up_settings(typed: Mapping[str, Any]) -> UpSettings:
    """Return the settings for ``typed``, the arguments and options that the user typed."""
    known = {each.name for each in fields(UpSettings)}
    given: dict[str, Any] = {name: value for name, value in typed.items() if name in known and value is not None}
    given["names"] = tuple(typed["names"])
    return UpSettings(**given)


class Formation:
    """The processes that run, and how many copies of each. ``numbers`` contains the number for each name.

    Copies have consecutive ports. If given, ``first_port`` is the port of the process on the first line of a Procfile.
    """

    def __init__(self, processes: Sequence[Process], numbers: Mapping[str, int], first_port: int | None = None) -> None:
        #: The processes in order, each once.
        self.processes: Final = tuple(processes)
        self._first_port = first_port
        self._copies: dict[str, list[Process]] = {each.name: self._new(each, numbers[each.name]) for each in processes}

    @property
    def copies(self) -> tuple[Process, ...]:
        """All copies in order. Each copy depends on all copies of its dependencies."""
        return tuple(_connected(copy, self._copies) for each in self._copies.values() for copy in each)

    def numbers(self) -> dict[str, int]:
        """Return the number of copies for each name."""
        return {name: len(copies) for name, copies in self._copies.items()}

    def scale(self, name: str, number: int) -> None:
        """Change the number of copies. Copies that remain keep their names, even if only one of several remains."""
        [process] = (each for each in self.processes if each.name == name)
        kept = self._copies[name][:number]
        self._copies[name] = [*kept, *self._new(process, number)[len(kept) :]]

    def _new(self, process: Process, number: int) -> list[Process]:
        return [_with_port(each, self._first_port) for each in _copies(process, number)]


def selected(processes: Sequence[Process], settings: UpSettings, file: Path) -> Formation:
    """Return the processes to run.

    By default, all enabled processes are selected. If names are given, those processes and their enabled dependencies
    are selected. Processes do not wait for processes that are not selected.

    Raises:
        UsageError: for an unknown name, or if nothing is selected.
    """
    given = {**({_ALL: 0} if settings.formation else {}), **dict(settings.concurrency), **dict(settings.formation)}
    _check_names([*settings.names, *(name for name in given if name != _ALL)], processes, file)
    wanted = _wanted(processes, settings)
    if settings.port is not None and all(each.port is None for each in processes):
        raise UsageError(
            f"-p {settings.port} has no effect on tables; set env = {{ PORT = {settings.port} }} in a table"
        )
    numbers = {each.name: given.get(each.name, given.get(_ALL, each.replicas)) for each in processes}
    found = Formation([each for each in processes if each.name in wanted], numbers, settings.port)
    if not found.copies:
        raise UsageError(f"nothing to run: all processes in {file} are disabled or have 0 copies; name one to run it")
    return found


def _check_names(names: Iterable[str], processes: Sequence[Process], file: Path) -> None:
    known = [each.name for each in processes]
    for name in names:
        if "=" in name:
            raise UsageError(f"{name!r} is not the name of a process; to run several copies, use -c {name}")
        if name not in known:
            raise UsageError(f"{file} has no process {name!r}; {did_you_mean(name, known)}")


def _wanted(processes: Sequence[Process], settings: UpSettings) -> set[str]:
    """Return the names of the selected processes."""
    if not settings.names:
        return {each.name for each in processes if not each.disabled}
    wanted = set(settings.names)
    # In reverse order, each process precedes its dependencies.
    for each in reversed(processes) if settings.deps else ():
        if each.name in wanted:
            wanted.update(other.name for other in processes if other.name in each.needs and not other.disabled)
    return wanted


def _copies(process: Process, count: int) -> list[Process]:
    if count == 1:
        return [process]
    port = process.port
    return [
        replace(process, name=f"{process.name}.{number + 1}", port=None if port is None else port + number)
        for number in range(count)
    ]


def _connected(process: Process, copies: Mapping[str, Sequence[Process]]) -> Process:
    """Make ``process`` depend on all copies of its dependencies."""
    return replace(
        process,
        after=tuple(copy.name for name in process.after for copy in copies.get(name, ())),
        depends_on={copy.name: need for name, need in process.depends_on.items() for copy in copies.get(name, ())},
    )


def _with_port(process: Process, first: int | None) -> Process:
    if first is None or process.port is None:
        return process
    return replace(process, env={**process.env, "PORT": port_of(str(first), process.port)})
