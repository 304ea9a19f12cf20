"""Labels for nodes. Each record is described in a few short lines, the first of which is its name."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from lifecycle._masking import masked
from lifecycle._text import plural, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lifecycle.control import RouteInfo, RouterState, SourceInfo
    from lifecycle.flows.records import ItemInfo, RunInfo
    from lifecycle.runtime import LifetimeState
    from lifecycle.workers.model import ProbeResult, WorkerState

__all__ = [
    "item_lines",
    "lifetime_lines",
    "route_lines",
    "router_lines",
    "run_lines",
    "source_lines",
    "tally",
    "worker_lines",
]

#: The maximum number of characters in an error or a probe's message. Diagrams have little space.
_SHORT = 120


def worker_lines(state: WorkerState) -> list[str]:
    """Return a worker's name, status and PID, and all its problems."""
    health = state.health
    return [
        state.name,
        f"{state.status}, pid {state.pid}" if state.pid is not None else f"{state.status}",
        *([plural(state.restarts, "restart")] if state.restarts else []),
        *([f"circuit {state.circuit}"] if state.circuit != "closed" else []),
        *([_health(health)] if health else []),
        *([f"exit code {state.exit_code}"] if state.exit_code is not None else []),
        *([_message(state.error)] if state.error else []),
        *(["abandoned"] if state.abandoned else []),
    ]


def lifetime_lines(state: LifetimeState) -> list[str]:
    """Return whether and why the lifetime is stopping, and how many tasks and hooks remain."""
    return [
        "lifetime",
        f"stopping, {_reason(state)}" if state.stopping else "running",
        *([plural(state.signals, "signal")] if state.signals else []),
        f"force exit at signal {state.force_exit_at}" if state.force_exit_at else "no force exit",
        *([plural(len(state.tasks), "task")] if state.tasks else []),
        *([f"{state.tasks_crashed} crashed"] if state.tasks_crashed else []),
        *([plural(state.hooks, "hook")] if state.hooks else []),
    ]


def router_lines(state: RouterState) -> list[str]:
    """Return the number of routes and of sources, and the outcomes of events."""
    return [
        state.name,
        "running" if state.running else "not running",
        f"{plural(state.routes, 'route')}, {plural(state.sources, 'source')}",
        *([plural(state.middlewares, "middleware")] if state.middlewares else []),
        _outcomes(routed=state.routed, failed=state.failed, unrouted=state.unrouted, dropped=state.dropped),
    ]


def route_lines(info: RouteInfo) -> list[str]:
    """Return the route's pattern and handler, and the number of events with each outcome."""
    return [info.pattern, info.handler, _outcomes(routed=info.routed, failed=info.failed, dropped=info.dropped)]


def source_lines(info: SourceInfo) -> list[str]:
    """Return the source's name, and whether it is running."""
    return [info.name, "running" if info.running else "not running"]


def run_lines(state: RunInfo) -> list[str]:
    """Return the run's name, id, state and error, and the number of its items in each state."""
    return [
        state.name,
        *([state.id] if state.id else []),
        str(state.state),
        tally(state.root.counts()),
        *([_message(state.error)] if state.error else []),
    ]


def item_lines(item: ItemInfo) -> list[str]:
    """Return the item's name, state, intention, attempts and error."""
    pending = item.intention in ("REVERT", "RETRY") and item.state in ("SUCCESS", "FAILURE")
    return [
        item.name,
        f"{item.state}, to {item.intention.lower()}" if pending else item.state or "empty",
        *([f"attempt {item.attempt}"] if item.attempt > 1 else []),
        *([_message(item.error)] if item.error else []),
    ]


def tally(counts: Mapping[str, int]) -> str:
    """Return the counts as text, such as ``3 SUCCESS, 1 RUNNING``."""
    return ", ".join(f"{number} {state}" for state, number in counts.items()) or "empty"


def _outcomes(*, routed: int, **others: int) -> str:
    return ", ".join([f"{routed} routed", *(f"{number} {outcome}" for outcome, number in others.items() if number)])


def _health(result: ProbeResult) -> str:
    text = "healthy" if result.healthy else "unhealthy"
    return f"{text}: {_message(result.message)}" if result.message else text


def _message(text: str) -> str:
    return masked(shorten(text, _SHORT))


def _reason(state: LifetimeState) -> str:
    if state.signum is None:
        return str(state.reason)
    try:
        return signal.Signals(state.signum).name
    except ValueError:
        return f"signal {state.signum}"
