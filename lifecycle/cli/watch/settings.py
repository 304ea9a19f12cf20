"""What `lifecycle watch` was asked to do, as one frozen record, however it was asked."""

from __future__ import annotations

import shlex
import signal as signals
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifecycle.cli.failures import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from signal import Signals

    from lifecycle.cli.globs import Glob
    from lifecycle.cli.values import Action, Address, Busy, LogFormat, Policy, Rule

__all__ = ["Settings", "watch_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `lifecycle watch` was asked to do; times in seconds.

    Raises:
        UsageError: for settings that do not go together.
    """

    #: The program and its arguments.
    command: tuple[str, ...]
    #: Files and directories to watch.
    paths: tuple[Path, ...] = (Path(),)
    #: Endings of file names that count, without the dot; none and no ``include``: all.
    ext: tuple[str, ...] = ()
    #: Globs that count besides ``ext``.
    include: tuple[Glob, ...] = ()
    #: Globs that never count.
    ignore: tuple[Glob, ...] = ()
    #: Whether what git ignores does not count.
    gitignore: bool = True
    #: What a path leads to; the first that matches wins.
    on: tuple[Rule, ...] = ()
    #: How long the system's notifications are gathered.
    step: float = 0.05
    #: How long it must be quiet before anything happens.
    wait: float = 0.1
    busy: Busy = "restart"
    restart: Policy = "never"
    #: When the command counts as started, as `ProcessWorker` has it; None: at once.
    ready: str | None = None
    #: How long it has for that.
    start_timeout: float = 30.0
    #: Whether the first start waits for the first change.
    postpone: bool = False
    #: Look every so often instead of being told; None: be told.
    poll: float | None = None
    #: Whether the screen is cleared before each start.
    clear: bool = False
    #: KEY=VALUE lines for the command's environment, read anew at each start.
    env_file: Path | None = None
    #: Whether the command is one line for ``$SHELL -c``.
    shell: bool = False
    #: Sent at a change instead of restarting.
    signal: Signals | None = None
    stop_signal: Signals = signals.SIGTERM
    #: From the stop signal to the kill.
    stop_timeout: float = 10.0
    #: Whether the old run goes on until the new one is ready.
    keep_old: bool = False
    #: Where to listen for the command, in its stead.
    socket: Address | None = None
    #: The port that tells browsers to reload; None: nothing does.
    live: int | None = None
    webhook: Address | None = None
    #: The variable of the environment that holds the webhook's secret.
    secret_env: str | None = None
    #: Whether there is a prompt at a terminal.
    prompt: bool = True
    #: Whether changed Python files are compiled before the old process is stopped.
    check: bool = True
    log_format: LogFormat = "text"

    def __post_init__(self) -> None:
        if self.socket and self.ready == f"port:{self.socket.port}":
            raise UsageError(
                f"--ready {self.ready} says nothing: with --socket that port accepts connections from the beginning; "
                "give --ready notify, line:REGEX or http://…"
            )
        if self.keep_old:
            self._check_keeping()
        if self.secret_env and not self.webhook:
            raise UsageError(f"--secret-env {self.secret_env} has nothing to protect; give --webhook HOST:PORT too")
        if self.webhook and not self.secret_env and not self.webhook.is_loopback:
            raise UsageError(
                f"--webhook {self.webhook.host}:{self.webhook.port} can be reached from other machines; give "
                "--secret-env NAME (a variable that holds the secret), or listen on 127.0.0.1"
            )

    def _check_keeping(self) -> None:
        """The old run can only be kept where the new one tells when it is ready."""
        if self.ready is None or self.ready.startswith("http"):
            given = f"--ready {self.ready}, which the old one answers as well" if self.ready else "no --ready"
            raise UsageError(
                f"--keep-old has to know when the new one is ready, and there is {given}; give --ready notify or "
                "line:REGEX"
            )
        if self.busy != "restart":
            raise UsageError(f"--keep-old replaces what runs, and --busy {self.busy} leaves it; give one of the two")
        if not self.prompt:
            raise UsageError("--keep-old has two runs for a moment, and --no-prompt one terminal; give one of the two")

    @property
    def change(self) -> Action:
        """What a change leads to where no rule says otherwise."""
        return "reload" if self.signal else "restart"

    @property
    def reload_signal(self) -> Signals:
        """What the command is sent when it shall reload."""
        return self.signal or signals.SIGHUP


def watch_settings(typed: Mapping[str, Any], configured: Mapping[str, Any]) -> Settings:
    """The settings of `watch`; what was typed wins over what a file says.

    Raises:
        UsageError: without a command, or for settings that do not go together.
    """
    known = {field.name for field in fields(Settings)}
    given = {**configured, **{name: value for name, value in typed.items() if name in known and not _absent(value)}}
    if not given.get("command"):
        raise UsageError("no command to run; end the line with one: lifecycle watch -- python app.py")
    if isinstance(given["command"], str):
        given["command"] = (given["command"],) if given.get("shell") else tuple(shlex.split(given["command"]))
    return Settings(**given)


def _absent(value: object) -> bool:
    """What argparse leaves where nothing was typed."""
    return value is None or (isinstance(value, list | tuple) and not value)
