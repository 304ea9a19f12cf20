"""How a run of the command ended, in words."""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING

from lifecycle.cli.messages import brief

if TYPE_CHECKING:
    from lifecycle.workers.records import WorkerState

__all__ = ["how"]


def how(state: WorkerState) -> str:
    """How a run ended."""
    if state.started_at is None or state.exit_code is None:
        return brief(str(state.error))
    after = f"after {state.updated_at - state.started_at:.1f} s"
    if state.exit_code < 0:
        return f"killed by {_name(-state.exit_code)} {after}"
    return f"exited with status {state.exit_code} {after}"


def _name(signum: int) -> str:
    try:
        return Signals(signum).name
    except ValueError:
        return f"signal {signum}"
