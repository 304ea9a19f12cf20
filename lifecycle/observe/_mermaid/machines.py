"""State diagrams: every move that there is, and the state that something is in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lifecycle.observe._mermaid.text import escape, indented, quoted, shown
from lifecycle.observe._mermaid.words import lifetime_lines, worker_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lifecycle.observe._mermaid.looks import Look
    from lifecycle.observe._mermaid.records import WorkerRecord
    from lifecycle.runtime import LifetimeState

__all__ = ["MOVES", "lifetime_machine", "worker_machine"]

#: A worker's moves and what the usual ones are called. The workers' own table has the same, without the words: this
#: room does not know theirs, and a test compares the two.
MOVES: Final = (
    ("created", "pending", "hold back"),
    ("created", "starting", "start"),
    ("created", "stopped", ""),
    ("pending", "starting", "start"),
    ("pending", "stopped", ""),
    ("starting", "running", "ready"),
    ("starting", "stopping", "stop"),
    ("starting", "stopped", ""),
    ("starting", "finished", ""),
    ("starting", "failed", ""),
    ("running", "suspended", "suspend"),
    ("running", "stopping", "stop"),
    ("running", "stopped", ""),
    ("running", "finished", ""),
    ("running", "failed", ""),
    ("suspended", "running", "resume"),
    ("suspended", "stopping", "stop"),
    ("suspended", "failed", ""),
    ("stopping", "stopped", ""),
    ("stopping", "failed", ""),
    ("stopping", "killed", "too slow"),
    ("stopped", "[*]", ""),
    ("finished", "[*]", ""),
    ("failed", "[*]", ""),
    ("killed", "[*]", ""),
)
_STATUSES: Final = {source for source, _, _ in MOVES}


def worker_machine(state: WorkerRecord, look: Look) -> str:
    """The ten states of a worker.

    Raises:
        ValueError: for an eleventh.
    """
    now = str(state.status)
    if now not in _STATUSES:
        raise ValueError(f"{state.name!r} is {now!r}, which no worker is; there are {', '.join(sorted(_STATUSES))}")
    body = [*_moves("created", MOVES), *_note(now, look.lines(state, worker_lines(state)))]
    return _machine(body, now, look.name(state, now), look)


def lifetime_machine(state: LifetimeState, look: Look) -> str:
    """From running to one of two ends."""
    now = "stopping" if state.stopping else "running"
    moves = [("running", "stopping", _cause(state)), ("stopping", "[*]", "all has ended")]
    if state.force_exit_at:
        moves += [
            ("stopping", "forced", f"signal number {state.force_exit_at}"),
            ("forced", "[*]", "exit status 1"),
        ]
    body = [*_moves("running", moves), *_note(now, look.lines(state, lifetime_lines(state)))]
    return _machine(body, now, look.name(state, now), look)


def _cause(state: LifetimeState) -> str:
    """The cause; as long as there is none, what may become one."""
    return str(state.reason) if state.stopping else "signal, shutdown, end of the main, or a deadline"


def _machine(body: Sequence[str], now: str, status: str, look: Look) -> str:
    lines = list(body)
    if look.heading is not None:
        lines = [f"state {quoted(look.heading)} as heading {{", *indented(lines), "}"]
    lines += [*look.definitions(), f"class {now} {status}", f"class {now} present"]
    return "\n".join(["stateDiagram-v2", *indented(lines)]) + "\n"


def _moves(first: str, moves: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    yield f"[*] --> {first}"
    for source, target, words in moves:
        yield f"{source} --> {target}" + (f": {escape(words)}" if words else "")


def _note(beside: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"note right of {beside}"
    yield from indented(map(shown, lines))
    yield "end note"
