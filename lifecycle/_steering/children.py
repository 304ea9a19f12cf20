"""Who can be restarted by name: the children of supervisors, however deep, and pools.

They are known by their shapes alone, for the rooms of workers are not looked into.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

__all__ = ["Child", "children", "named"]


@dataclass(frozen=True, slots=True)
class Child:
    """What can be restarted."""

    name: str
    #: The names from the root on, with slashes between.
    path: str
    restart: Callable[[], Awaitable[object]]


def children(components: Iterable[Any]) -> Iterator[Child]:
    """Everything below and among ``components`` that can be restarted."""
    for each in components:
        path = getattr(each, "name", None)
        if not isinstance(path, str):
            continue
        if _is_async(each, "refresh"):
            yield Child(path, path, each.refresh)
        yield from _below(each, path)


def named(name: str, among: Iterable[Child]) -> Child:
    """The one of that path, or the only one of that name.

    Raises:
        LookupError: saying which there are.
    """
    found = list(among)
    for fits in ([each for each in found if each.path == name], [each for each in found if each.name == name]):
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise LookupError(f"{name!r} is ambiguous; give one of {_listed(fits)}")
    raise LookupError(f"nobody is called {name!r}; there is {_listed(found) or 'nobody who could be restarted'}")


def _below(supervisor: Any, path: str) -> Iterator[Child]:
    if not (callable(getattr(supervisor, "workers", None)) and _is_async(supervisor, "restart")):
        return
    try:
        states = supervisor.workers()
    except Exception:  # noqa: BLE001  # of a class of the program's; the others can be restarted all the same
        return
    for state in states:
        below = f"{path}/{state.name}"
        try:
            worker: Any = supervisor[state.name]
        except KeyError:  # it has not been started, or was removed
            worker = None
        again = partial(supervisor.restart, state.name)
        renew = _is_async(worker, "refresh") and str(state.status) == "running"
        yield Child(state.name, below, worker.refresh if renew else again)
        yield from _below(worker, below)


def _is_async(thing: Any, method: str) -> bool:
    return inspect.iscoroutinefunction(getattr(thing, method, None))


_SHOWN = 20


def _listed(some: list[Child]) -> str:
    # A name may hold whatever a terminal obeys, or look like two.
    paths = [each.path if each.path.isprintable() else repr(each.path) for each in some]
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
