"""The settings of `lifecycle watch`, as options and as keys in ``[tool.lifecycle.watch]`` of pyproject.toml."""

from __future__ import annotations

import shlex
import signal as signals
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from lifecycle.cli import options
from lifecycle.cli.files import load_table, shown, texts
from lifecycle.cli.options import (
    Address,
    Assignment,
    Glob,
    Rule,
    SignalMap,
    find_option,
    option,
    options_of,
    read_flag,
    read_value,
)
from lifecycle.cli.output import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from signal import Signals

    from lifecycle.cli.options import Action, Busy, Colour, LogFormat, Policy
    from lifecycle.events import Change

__all__ = ["OPTIONS", "WAIT", "Settings", "find_table", "read_table", "watch_settings"]

#: The number of seconds without a change before a batch of changes is handled.
WAIT: Final = 0.02

_NAMES = ("tool", "lifecycle", "watch")
_TABLE = f"[{'.'.join(_NAMES)}]"
_FILE = "pyproject.toml"

#: Headings in the help text.
_FILES, _RESTARTS, _STARTING, _COMMAND = "changes", "restarts", "start and stop", "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of `lifecycle watch`. Each is an option and a key in ``pyproject.toml``. Times are in seconds.

    Raises:
        UsageError: if settings are incompatible.
    """

    #: The program and its arguments.
    command: tuple[str, ...]
    #: Files and directories to watch.
    paths: tuple[Path, ...] = (Path(),)
    #: File extensions without the dot. If this and ``include`` are empty, all files are watched.
    ext: tuple[str, ...] = option(
        "EXT",
        "watch only files with these extensions, such as py,toml",
        options.extensions,
        many=True,
        group=_FILES,
        aliases=("-e",),
    )
    include: tuple[Glob, ...] = option(
        "GLOB", "also watch these paths, in addition to --ext", options.globs, many=True, group=_FILES
    )
    ignore: tuple[Glob, ...] = option(
        "GLOB", "ignore changes to these paths", options.globs, many=True, group=_FILES, aliases=("-i",)
    )
    gitignore: bool = option(
        None, "also watch files listed in .gitignore and .ignore files", default=True, group=_FILES
    )
    filter_file: tuple[Path, ...] = option(
        "FILE",
        "read globs for --include from this file, one per line",
        options.paths,
        many=True,
        group=_FILES,
        aliases=("-F",),
    )
    ignore_file: tuple[Path, ...] = option(
        "FILE",
        "ignore changes to the paths in this file, which uses the .gitignore format",
        options.paths,
        many=True,
        group=_FILES,
    )
    watch_non_recursive: tuple[Path, ...] = option(
        "PATH",
        "watch this directory without its subdirectories",
        options.paths,
        many=True,
        group=_FILES,
        aliases=("-W",),
    )
    fs_events: tuple[Change, ...] = option(
        "KINDS",
        "react only to these changes: added, modified or deleted, separated by commas",
        options.changes,
        many=True,
        group=_FILES,
    )
    on: tuple[Rule, ...] = option(
        "GLOB=ACTION",
        "set the action for changes to these paths: restart, reload or ignore; the first match wins",
        options.rules,
        many=True,
        group=_FILES,
    )
    wait: float = option(
        "SECONDS",
        "react when nothing has changed for this long",
        options.seconds,
        default=WAIT,
        number=True,
        group=_FILES,
        aliases=("-d", "--debounce"),
    )
    poll: float | None = option(
        "SECONDS",
        "scan files at this interval; use this on file systems without notifications (NFS, Docker, WSL)",
        options.interval,
        number=True,
        group=_FILES,
    )
    busy: Busy = option(
        "POLICY",
        "set what happens after a change while the command runs: restart the command, queue the next run, or drop the "
        "change",
        options.busy,
        default="restart",
        group=_RESTARTS,
        presets=(("-r", "restart"),),
    )
    restart: Policy = option(
        "POLICY",
        "set when to restart the command after it exits: never, on-failure or always",
        options.policy,
        default="never",
        group=_RESTARTS,
    )
    signal: Signals | None = option(
        "SIG",
        "send this signal after a change, instead of restarting",
        options.signal,
        group=_RESTARTS,
        aliases=("-s",),
    )
    postpone: bool = option(
        None,
        "wait for the first change before the first start",
        default=False,
        group=_RESTARTS,
        aliases=("-p", "--on-change-only"),
    )
    check: bool = option(
        None, "restart even if a changed Python or JavaScript file has a syntax error", default=True, group=_RESTARTS
    )
    delay_run: float = option(
        "SECONDS",
        "wait this long before each start; the old run continues in the meantime",
        options.seconds,
        default=0.0,
        number=True,
        group=_RESTARTS,
    )
    timeout: float | None = option(
        "SECONDS", "stop a run that takes longer than this", options.interval, number=True, group=_RESTARTS
    )
    exit_on_error: bool = option(
        None, "exit with the status of the first run that fails", default=False, group=_RESTARTS
    )
    webhook: Address | None = option(
        "HOST:PORT", "also restart on a POST request to this address", options.address, group=_RESTARTS
    )
    secret_env: str | None = option(
        "NAME",
        "verify the GitHub signature of POST requests with the secret in this environment variable",
        options.variable,
        group=_RESTARTS,
    )
    #: A condition in the format that `ProcessWorker` accepts. None: the command is ready as soon as it has started.
    ready: str | None = option(
        "WHEN",
        "set how to detect that the command is ready: port:N, an http:// URL, line:REGEX or notify",
        options.ready,
        group=_STARTING,
    )
    start_timeout: float = option(
        "SECONDS",
        "stop the command if it is not ready within this time",
        options.interval,
        default=30.0,
        number=True,
        group=_STARTING,
    )
    stop_signal: Signals = option(
        "SIG", "stop the command with this signal", options.signal, default=signals.SIGTERM, group=_STARTING
    )
    stop_timeout: float = option(
        "SECONDS",
        "kill the command if it is still running this long after the stop signal",
        options.seconds,
        default=10.0,
        number=True,
        group=_STARTING,
    )
    keep_daemons: bool = option(
        None,
        "leave daemons that the command has started, even if the command is stopped",
        default=False,
        group=_STARTING,
    )
    map_signal: tuple[SignalMap, ...] = option(
        "FROM:TO",
        "when lifecycle watch receives the signal FROM, send TO to the command",
        options.signal_maps,
        many=True,
        group=_STARTING,
    )
    keep_old: bool = option(
        None,
        "stop the old run only when the new run is ready; keep the old run if the new run fails",
        default=False,
        group=_STARTING,
    )
    socket: Address | None = option(
        "HOST:PORT",
        "listen on this address and pass the socket to each run, using systemd's protocol",
        options.address,
        group=_STARTING,
    )
    live: int | None = option(
        "PORT",
        "reload browser pages when the command is ready; print the script tag to add to the pages",
        options.port,
        number=True,
        group=_STARTING,
    )
    shell: bool = option(
        None, "run the command line with $SHELL -c", default=False, group=_COMMAND, presets=(("-n", False),)
    )
    workdir: Path | None = option("DIR", "run the command in this directory", options.path, group=_COMMAND)
    env: tuple[Assignment, ...] = option(
        "KEY=VALUE",
        "set this variable in the command's environment",
        options.assignments,
        many=True,
        group=_COMMAND,
        aliases=("-E",),
    )
    #: This file is read again for each run.
    env_file: Path | None = option(
        "FILE", "add the KEY=VALUE lines in this file to the command's environment", options.path, group=_COMMAND
    )
    prompt: bool = option(
        None,
        "show a prompt for commands; the watched command receives input only after fg",
        default=False,
        group=_COMMAND,
    )
    clear: bool = option(None, "clear the screen before each start", default=False, group="output", aliases=("-c",))
    quiet: bool = option(None, "print only warnings and errors", default=False, group="output", aliases=("-q",))
    verbose: bool = option(
        None, "print each file change and the resulting action", default=False, group="output", aliases=("-v",)
    )
    bell: bool = option(None, "ring the terminal's bell when a run fails", default=False, group="output")
    notify: bool = option(
        None,
        "show a desktop notification when a run ends, if the terminal supports OSC 9",
        default=False,
        group="output",
    )
    color: Colour = option(
        "WHEN", "use colours in messages: auto, always or never", options.colour, default="auto", group="output"
    )
    log_format: LogFormat = field(default="text", metadata={"option": options.LOG_FORMAT})

    def __post_init__(self) -> None:
        from lifecycle.workers.readiness import parse_ready

        if self.socket and self.ready and parse_ready(self.ready).port == self.socket.port:
            raise UsageError(
                f"--ready {self.ready} cannot detect when a run is ready: with --socket, the port always accepts "
                "connections; use --ready notify or line:REGEX"
            )
        if self.keep_old:
            self._check_keeping()
        if self.quiet and self.verbose:
            raise UsageError("--quiet hides what --verbose prints; remove one of them")
        if self.exit_on_error and self.restart != "never":
            raise UsageError(
                "--exit-on-error exits when a run fails, but --restart starts another run; remove one of them"
            )
        if self.secret_env and not self.webhook:
            raise UsageError(f"--secret-env {self.secret_env} has no effect without --webhook; add --webhook HOST:PORT")
        if self.webhook and not self.secret_env and not self.webhook.is_loopback:
            raise UsageError(
                f"--webhook {self.webhook.host}:{self.webhook.port} can be reached from other machines; use "
                "--secret-env NAME (the variable containing the secret), or listen on 127.0.0.1"
            )

    def _check_keeping(self) -> None:
        """Check the options that ``keep_old`` requires or excludes."""
        if self.ready is None or self.ready.startswith("http"):
            why = f"the old run also responds to --ready {self.ready}" if self.ready else "--ready is not given"
            raise UsageError(
                f"--keep-old must detect when the new run is ready, but {why}; use --ready notify or line:REGEX"
            )
        if self.busy != "restart":
            raise UsageError(
                f"--keep-old restarts a running command, but --busy {self.busy} does not; remove one of them"
            )

    @property
    def shares_terminal(self) -> bool:
        """True if the command can use our terminal, because we do not read its output and its runs do not overlap."""
        return not (self.prompt or self.keep_old or (self.ready or "").startswith("line:"))

    @property
    def change(self) -> Action:
        """The action for changes that match no rule."""
        return "reload" if self.signal else "restart"

    @property
    def reload_signal(self) -> Signals:
        """The signal for the action ``reload``."""
        return self.signal or signals.SIGHUP


#: The options in the order shown by --help.
OPTIONS: Final = options_of(Settings)


def watch_settings(typed: Mapping[str, Any], configured: Mapping[str, Any]) -> Settings:
    """Return the settings of `watch`. The command line takes precedence over the file.

    Raises:
        UsageError: if there is no command, or settings are incompatible.
    """
    known = {each.name for each in fields(Settings)}
    given = {
        **configured,
        **{name: value for name, value in typed.items() if name in known and not _absent(value)},
    }
    if not given.get("command"):
        raise UsageError("no command to run; add it after --, such as lifecycle watch -- python app.py")
    if given.get("watch_non_recursive"):
        given.setdefault("paths", ())
    if isinstance(given["command"], str):
        given["command"] = (given["command"],) if given.get("shell") else tuple(shlex.split(given["command"]))
    return Settings(**given)


def _absent(value: object) -> bool:
    """Return whether an argument was not given."""
    return value is None or (isinstance(value, list | tuple) and not value)


def find_table(here: Path) -> dict[str, Any]:
    """Return the settings from the nearest ``pyproject.toml`` that contains our table, or an empty mapping.

    Raises:
        ConfigError: if a file cannot be read, or a key or value is invalid.
    """
    for directory in (here, *here.parents):
        table = load_table(directory / _FILE, *_NAMES)
        if table is not None:
            return read_table(table, directory / _FILE)
    return {}


def read_table(table: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the settings in ``table``.

    Raises:
        ConfigError: for an invalid key or value. The message contains the file, the value and the accepted values.
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        try:
            name, read = _read(key, value, file.parent)
        except ValueError as error:
            raise ConfigError(f"{file}: {_TABLE} {error}") from None
        if name in found:
            raise ConfigError(f"{file}: {_TABLE} {key} sets the same value as another key; remove one of them")
        found[name] = read
    return found


def _read(key: str, value: Any, base: Path) -> tuple[str, Any]:
    """Return a setting's name and value.

    Raises:
        ValueError: for an unknown key or an invalid value.
    """
    if key == "command":
        return key, _command(value)
    if key == "paths":
        return key, _paths(value, base)
    found, negated = find_option(key, OPTIONS, "command", "paths")
    if found.is_flag:
        return found.field, read_flag(key, value) is not negated
    return found.field, _from(base, read_value(found, value))


def _from(base: Path, read: Any) -> Any:
    """Resolve paths and globs relative to ``base``."""
    match read:
        case Path():
            return base / read
        case Glob() | Rule():
            return read.at(base)
        case Address() | SignalMap():
            return read
        case tuple():
            return tuple(_from(base, each) for each in cast("Any", read))
        case _:
            return read


def _paths(value: Any, base: Path) -> tuple[Path, ...]:
    found = tuple(base / options.path(each) for each in texts("paths", value))
    if not found:
        raise ValueError('paths = [] leaves nothing to watch; add a path such as "src", or remove the key')
    return found


def _command(value: Any) -> tuple[str, ...] | str:
    """Return a tuple of arguments, or a single string that is split later unless ``shell`` is set."""
    if not isinstance(value, str):
        return tuple(texts("command", value))
    try:
        shlex.split(value)
    except ValueError as error:
        raise ValueError(f"command = {shown(value)} cannot be split: {error}; close the quote") from None
    return value
