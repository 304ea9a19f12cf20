"""What the engine knows of anything that it runs: a task, or the retry of a flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lifecycle.flows.signatures import Wants, wants_of
from lifecycle.flows.tasks import names_in, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lifecycle.flows.retries import Retry
    from lifecycle.flows.tasks import Provides

__all__ = ["RetryStep", "Step"]


class Step(Protocol):
    """A task, or the retry of a flow."""

    kind: str
    name: str
    fn: Callable[..., Any]
    provides: Provides
    arguments: dict[str, str]
    optional: frozenset[str]
    inject: dict[str, Any]
    priority: int
    timeout: float | None
    undo: Callable[..., Any] | None
    in_thread: bool
    undo_in_thread: bool
    undo_arguments: dict[str, str]
    undo_optional: frozenset[str]
    undo_specials: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it gives."""
        ...


_SPECIALS = frozenset({"history", "result", "failures", "flow_failures"})


class RetryStep:
    """The retry of the flow ``flow``, in the form of a task."""

    arguments: dict[str, str]
    optional: frozenset[str]
    specials: frozenset[str]
    asks: dict[str, str]
    asks_optional: frozenset[str]
    asks_specials: frozenset[str]
    undo_arguments: dict[str, str]
    undo_optional: frozenset[str]
    undo_specials: frozenset[str]

    kind = "retry"
    # What a retry does is quick, and done in the loop.
    in_thread = undo_in_thread = False

    def __init__(self, retry: Retry, flow: str) -> None:
        given = getattr(retry, "provides", None)
        self.retry = retry
        self.name: str = getattr(retry, "name", None) or f"{flow}_retry"
        self.fn: Any = retry.execute
        self.provides: Provides = given if given is None or isinstance(given, str) else names_in("provides", given)
        self.inject: dict[str, Any] = {}
        self.priority = 0
        self.timeout: float | None = None
        self.undo: Callable[..., Any] | None = getattr(retry, "revert", None)
        rebind: Mapping[str, str] = getattr(retry, "rebind", {})
        self.arguments, self.optional, self.specials = _read(retry.execute, rebind)
        self.asks, self.asks_optional, self.asks_specials = _read(retry.on_failure, rebind)
        self.undo_arguments, self.undo_optional, self.undo_specials = _read(self.undo, rebind)

    def __repr__(self) -> str:
        return f"<Retry {self.name!r}: {self.retry!r}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it gives."""
        return names_of(self.provides)


def _read(
    fn: Callable[..., Any] | None, rebind: Mapping[str, str]
) -> tuple[dict[str, str], frozenset[str], frozenset[str]]:
    """What ``fn`` is given by name, which of it may be missing, and what it asks for of the retry itself."""
    wants = wants_of(fn) if fn else Wants()
    specials = frozenset(wants.names) & _SPECIALS
    arguments = {name: rebind.get(name, name) for name in wants.names if name not in specials}
    return arguments, frozenset(wants.optional) - specials, specials
