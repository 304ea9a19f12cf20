"""State diagrams that show all transitions of a worker or a lifetime, and its current state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lifecycle.observe.mermaid.labels import lifetime_lines, worker_lines
from lifecycle.observe.mermaid.styles import escape, indented, label_line, quoted
from lifecycle.workers.model import TRANSITIONS, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lifecycle.observe.mermaid.styles import Look
    from lifecycle.runtime import LifetimeState
    from lifecycle.workers.model import WorkerState

__all__ = ["lifetime_diagram", "worker_diagram"]

#: Labels for the usual transitions of a worker.
_LABELS: Final = {
    ("created", "pending"): "hold back",
    ("created", "starting"): "start",
    ("pending", "starting"): "start",
    ("starting", "running"): "ready",
    ("starting", "stopping"): "stop",
    ("running", "suspended"): "suspend",
    ("running", "stopping"): "stop",
    ("suspended", "running"): "resume",
    ("suspended", "stopping"): "stop",
    ("stopping", "killed"): "too slow",
}


def worker_diagram(state: WorkerState, look: Look) -> str:
    """Draw a worker's ten states.

    Raises:
        ValueError: if the status is unknown.
    """
    now = str(state.status)
    statuses = sorted(TRANSITIONS)
    if now not in statuses:
        raise ValueError(f"worker {state.name!r} has the unknown status {now!r}; expected one of {', '.join(statuses)}")
    body = [*_transitions("created", _worker_transitions()), *_note(now, look.lines(state, worker_lines(state)))]
    return _diagram(body, now, look.name(state, now), look)


def _worker_transitions() -> Iterator[tuple[str, str, str]]:
    final: list[tuple[str, str, str]] = []
    for source, targets in TRANSITIONS.items():
        if not targets:
            final.append((source, "[*]", ""))
        for target in Status:
            if target in targets:
                yield source, target, _LABELS.get((source, target), "")
    yield from final


def lifetime_diagram(state: LifetimeState, look: Look) -> str:
    """Draw a lifetime's states, from running to one of two final states."""
    now = "stopping" if state.stopping else "running"
    # Until the lifetime stops, the label lists everything that could stop it.
    cause = str(state.reason) if state.stopping else "signal, shutdown, end of the main component, or deadline"
    transitions = [("running", "stopping", cause), ("stopping", "[*]", "everything has ended")]
    if state.force_exit_at:
        transitions += [
            ("stopping", "forced", f"signal number {state.force_exit_at}"),
            ("forced", "[*]", "exit status 1"),
        ]
    body = [*_transitions("running", transitions), *_note(now, look.lines(state, lifetime_lines(state)))]
    return _diagram(body, now, look.name(state, now), look)


def _diagram(body: Sequence[str], now: str, status: str, look: Look) -> str:
    lines = list(body)
    if look.heading is not None:
        lines = [f"state {quoted(look.heading)} as heading {{", *indented(lines), "}"]
    lines += [*look.definitions(), f"class {now} {status}", f"class {now} present"]
    return "\n".join(["stateDiagram-v2", *indented(lines)]) + "\n"


def _transitions(first: str, transitions: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    yield f"[*] --> {first}"
    for source, target, label in transitions:
        yield f"{source} --> {target}" + (f": {escape(label)}" if label else "")


def _note(beside: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"note right of {beside}"
    yield from indented(map(label_line, lines))
    yield "end note"
