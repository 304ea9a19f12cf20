"""What is to be run: one frozen record a process, however it was written down, and the order of their starts."""

from __future__ import annotations

import signal as signals
from dataclasses import KW_ONLY, dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from lifecycle.cli.config import did_you_mean
from lifecycle.cli.failures import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from signal import Signals

    from lifecycle.cli.values import Policy

__all__ = ["Process", "in_order", "selected"]


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a file; times in seconds."""

    name: str
    #: A line for the shell, or words that no shell reads.
    command: str | tuple[str, ...]
    _: KW_ONLY
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    #: KEY=VALUE lines besides those that all share.
    env_file: Path | None = None
    #: What is added to the first port to make its PORT; None: it gets none.
    port: int | None = None
    #: When it counts as started, as `ProcessWorker` has it.
    ready: str | None = None
    start_timeout: float = 30.0
    #: Those that have to be up before it starts; a job has to have succeeded.
    after: tuple[str, ...] = ()
    #: None: its end is the end of all, unless it is watched.
    restart: Policy | None = None
    #: The first wait before a restart; it doubles.
    backoff: float = 0.1
    #: More within a minute, and it is given up; 0: no limit.
    max_restarts: int = 0
    #: Files and directories whose changes restart it.
    watch: tuple[Path, ...] = ()
    stop_signal: Signals = signals.SIGTERM
    #: From the stop signal to the kill.
    stop_timeout: float = 10.0

    @property
    def argv(self) -> tuple[str, ...]:
        """What is executed."""
        return ("/bin/sh", "-c", self.command) if isinstance(self.command, str) else self.command

    @property
    def essential(self) -> bool:
        """Whether nothing goes on once it has ended."""
        return self.restart is None and not self.watch

    @property
    def is_job(self) -> bool:
        """Whether those after it wait for its success, and not for its start."""
        return self.restart == "never" and self.ready is None

    def comes_back(self, *, failed: bool) -> bool:
        """Whether its policy starts it again once it has ended, unless it is given up."""
        return self.restart == "always" or (self.restart == "on_failure" and failed)


def in_order(processes: Sequence[Process], file: Path) -> tuple[Process, ...]:
    """``processes`` with each behind those that it starts after.

    Raises:
        ConfigError: for a name that is not there, or a circle, which is shown.
    """
    known = {each.name: each for each in processes}
    for each in processes:
        for name in each.after:
            if name not in known:
                raise ConfigError(
                    f"{file}: {each.name} is after {name!r}, which is not there; {did_you_mean(name, known)}"
                )
    try:
        order = TopologicalSorter({each.name: each.after for each in processes}).static_order()
        return tuple(known[name] for name in order)
    except CycleError as error:
        circle: list[str] = error.args[1]
        shown = " after ".join(reversed(circle))
        raise ConfigError(f"{file}: none of these could start first: {shown}; take one `after` away") from None


def selected(processes: Sequence[Process], names: Sequence[str], file: Path) -> tuple[Process, ...]:
    """Those of ``processes`` that were named, in their order; all without names.

    Raises:
        UsageError: for a name that is not there.
    """
    known = [each.name for each in processes]
    for name in names:
        if name not in known:
            raise UsageError(f"there is no process {name!r} in {file}; {did_you_mean(name, known)}")
    return tuple(each for each in processes if not names or each.name in names)
