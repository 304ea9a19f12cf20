"""Diagrams of a running program: which of its records are drawn for which word."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from lifecycle.control import Router
from lifecycle.observe import mermaid
from lifecycle.observe._mermaid.records import is_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.runtime import Lifetime

__all__ = ["diagram"]


def diagram(lifetime: Lifetime, of: str) -> str:
    """The text for Mermaid of the ``"system"``, the ``"lifetime"``, a worker by its name or path, a flow by its id.

    Raises:
        LookupError: when there is nothing of that name.
    """
    if of == "system":
        return mermaid.system(list(_records(lifetime)))
    if of == "lifetime":
        return mermaid.signal(lifetime.state())
    states = [state for each in lifetime.components() if (state := _state(each)) is not None]
    for path, worker in _workers(states):
        if of in (path, worker.name):
            return mermaid.tree(worker) if worker.children else mermaid.worker(worker)
    for run in (run for state in states for run in getattr(state, "runs", ())):
        if str(run.id) == of:
            return mermaid.flow(run)
    raise LookupError(f"there is no worker and no flow called {of!r}; give system, lifetime, a worker or a flow's id")


def _records(lifetime: Lifetime) -> Iterator[Any]:
    yield lifetime.state()
    for each in lifetime.components():
        state = _state(each)
        if isinstance(each, Router):
            yield from (state, each.routes(), each.sources())
        elif is_worker(state) or hasattr(state, "runs"):
            yield state


def _state(component: Any) -> Any:
    """None where it fails: the rest is drawn all the same."""
    try:
        return component.state()
    except Exception:  # noqa: BLE001  # of a class of the program's
        return None


def _workers(states: list[Any]) -> Iterator[tuple[str, Any]]:
    """Each and its path, those further up first."""
    left = deque((state.name, state) for state in states if is_worker(state))
    while left:
        path, state = left.popleft()
        yield path, state
        left.extend((f"{path}/{child.name}", child) for child in state.children)
