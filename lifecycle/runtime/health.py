"""`Health`: a plain record of a program's health, which any endpoint can use.

It is derived from the states of the program's components.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from lifecycle._util import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeAlias

    _Look: TypeAlias = tuple[str, "ComponentHealth", bool, bool]

__all__ = ["ComponentHealth", "Health", "health_of"]

_DEAD: Final = frozenset({"failed", "killed"})

#: States in which a worker is healthy even though it is not running.
_HARMLESS: Final = frozenset({"suspended", "stopped", "finished", "stopping"})


@dataclass(frozen=True, slots=True)
class ComponentHealth:
    """The health of one router, worker, or child of a supervisor."""

    healthy: bool
    #: Why the component is unhealthy, or an unusual state such as ``"suspended"``.
    message: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a program at a particular moment."""

    #: True if everything has started and is healthy, and the shutdown has not begun. A pool needs only one ready
    #: process, so it can add and replace processes in the meantime.
    ready: bool
    #: False if a main, a worker or a child has failed permanently, so that only a restart of the program can help. A
    #: child has failed permanently if its circuit is open or it is not restarted.
    live: bool
    #: The components by name. A child's name is prefixed with its supervisor's name and a slash.
    components: Mapping[str, ComponentHealth]

    def to_dict(self) -> dict[str, Any]:
        """Return the health as dictionaries and plain values, suitable for JSON."""
        return dataclasses.asdict(self)


class _LifeLike(Protocol):
    """The part of a lifetime that its health is derived from."""

    @property
    def ready(self) -> bool: ...

    def components(self) -> Iterable[object]: ...

    def all_failures(self) -> Iterable[tuple[str, BaseException]]: ...


def health_of(life: _LifeLike) -> Health:
    """Return the health of the components of ``life``."""
    components: dict[str, ComponentHealth] = {}
    # The components that do not affect the whole: the processes of pools.
    minor: set[str] = set()
    live = True
    for name, error in life.all_failures():
        live = False
        components[name] = ComponentHealth(healthy=False, message=f"failed: {reason_of(error)}")
    for component in life.components():
        for name, health, dead, matters in _look_at(component):
            live = live and not (dead and matters)
            if not matters:
                minor.add(name)
            if name not in components or components[name].healthy:
                components[name] = health
    healthy = all(each.healthy for name, each in components.items() if name not in minor)
    return Health(ready=live and healthy and life.ready, live=live, components=components)


def _look_at(component: Any) -> Iterator[_Look]:
    """Yield a component's name, its health, whether it has failed permanently, and whether this matters to the whole.

    For a supervisor and a pool, also yield this for each child. For an object without health, yield nothing.
    """
    try:
        state = component.state()
    except Exception as error:  # noqa: BLE001  # the program's own class may raise anything
        yield _name_of(component), ComponentHealth(healthy=False, message=reason_of(error)), False, True
        return
    if hasattr(state, "status") and hasattr(state, "circuit"):
        yield from _look_at_worker(state, str(state.name))
    elif hasattr(state, "running") and hasattr(state, "sources"):
        message = "" if state.running else "its sources have not started"
        yield _name_of(component), ComponentHealth(healthy=bool(state.running), message=message), False, True


def _name_of(component: Any) -> str:
    try:
        return str(component.name)
    except Exception:  # noqa: BLE001  # as above
        return type(component).__name__


def _look_at_worker(state: Any, name: str, *, matters: bool = True) -> Iterator[_Look]:
    status, error = str(state.status), f": {state.error}" if state.error else ""
    dead = status in _DEAD or state.circuit == "open"
    if state.circuit == "open":
        health = ComponentHealth(healthy=False, message=f"given up after {state.restarts} restarts{error}")
    elif status == "running":
        probe = state.health
        health = ComponentHealth(probe is None or probe.healthy, "" if probe is None else probe.message)
    else:
        health = ComponentHealth(status in _HARMLESS, f"{status}{error}")
    yield name, health, dead, matters
    for child in state.children:
        yield from _look_at_worker(child, f"{name}/{child.name}", matters=matters and state.kind != "pool")
