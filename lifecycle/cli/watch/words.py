"""What is said of changes, of a run, and of how that ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from lifecycle.cli.messages import brief, signal_name
from lifecycle.workers.model import FINAL, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from lifecycle.events import Change
    from lifecycle.workers.model import WorkerState

__all__ = ["changed", "described", "how"]

#: Names that a message shows; the others are counted.
_SHOWN: Final = 3

_AT_REST: Final = {Status.CREATED: "waiting for the first change", Status.PENDING: "waiting to be started again"}


def changed(changes: Mapping[Path, Change], name: Callable[[Path], str]) -> str:
    """``changed: app.py, new.py (added) (+3)``."""
    shown = [
        name(path) + ("" if change == "modified" else f" ({change})") for path, change in list(changes.items())[:_SHOWN]
    ]
    more = len(changes) - len(shown)
    return f"changed: {', '.join(shown)}" + (f" (+{more})" if more else "")


def described(state: WorkerState | None, *, held: bool) -> str:
    """How the command does; ``held``: it is not to be started before it is resumed."""
    status = Status.CREATED if state is None else state.status
    if state is None or status in (*FINAL, Status.PENDING):
        return "suspended; nothing runs" if held else _AT_REST.get(status, "waiting for a change")
    since = f" for {time.time() - state.started_at:.0f} s" if state.started_at else ""
    times = f"{state.restarts + 1} times" if state.restarts else "once"
    return f"{status}{since}, pid {state.pid}, started {times}"


def how(state: WorkerState) -> str:
    """How a run ended."""
    if state.started_at is None or state.exit_code is None:
        return brief(str(state.error))
    after = f"after {state.updated_at - state.started_at:.1f} s"
    if state.exit_code < 0:
        return f"killed by {signal_name(-state.exit_code)} {after}"
    return f"exited with status {state.exit_code} {after}"
