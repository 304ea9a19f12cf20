"""Builds our flows from the descriptions in a case file. A file that contains anything unknown is rejected."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lifecycle.flows import (
    AlwaysRevert,
    AlwaysRevertAll,
    Failure,
    ForEach,
    ParameterizedForEach,
    Times,
    Verdict,
    graph,
    linear,
    task,
    unordered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from lifecycle.flows import Flow, Task

__all__ = ["Unknown", "World", "only"]

Json = Any

_PATTERNS = {"linear": linear, "unordered": unordered, "graph": graph}
_ITEM = {"type", "name"}
_TASK = _ITEM | {"does", "undoes", "requires", "provides", "rebind", "inject", "priority"}
_FLOW = _ITEM | {"items", "links", "retry"}
_LINK = {"from", "to", "decider", "depth"}
_DOES = {"return", "as", "raise", "fail_first", "then", "add", "plus", "raise_unless_equal"}


class Unknown(ValueError):
    """Raised if the file contains something that this runner does not support."""


def only(spec: Json, known: Collection[str], what: str) -> None:
    """Check that all keys in ``spec`` are in ``known``.

    Raises:
        Unknown: if there are unknown keys, which the message lists.
    """
    if not isinstance(spec, dict):
        raise Unknown(f"{what} must be an object, got {spec!r}")
    if unknown := sorted(spec.keys() - known):
        raise Unknown(f"{what} has unknown keys {unknown}; expected {sorted(known)}")


@dataclass
class World:
    """Data that the functions in one case share. It outlives the engine."""

    flags: dict[str, bool] = field(default_factory=dict)
    #: The number of executions of each task, for tasks that fail the first few times.
    calls: Counter[str] = field(default_factory=Counter)

    def build(self, spec: Json) -> Flow | Task:
        """Return the flow or the single task described by ``spec``.

        Raises:
            Unknown: if the format does not define the description.
            FlowError: if our constructors reject it.
        """
        if spec.get("type") == "task":
            return self._task(spec)
        only(spec, _FLOW, f"the flow {spec.get('name')!r}")
        if spec["type"] not in _PATTERNS:
            raise Unknown(f"unknown flow type {spec['type']!r}; expected one of {sorted(_PATTERNS)}")
        items = [self.build(each) for each in spec["items"]]
        retry = _retry(spec["retry"]) if spec.get("retry") else None
        flow = _PATTERNS[spec["type"]](spec["name"], *items, retry=retry)
        by_name = {item.name: item for item in items}
        for link in spec.get("links", ()):
            only(link, _LINK, f"a link of the flow {spec['name']!r}")
            decider = self._decider(link["decider"]) if "decider" in link else None
            flow.when(by_name[link["from"]], by_name[link["to"]], decider, depth=link.get("depth", "ALL"))
        return flow

    def _decider(self, spec: Json) -> Callable[[dict[str, Any]], bool]:
        if isinstance(spec, bool):
            return lambda _: spec
        only(spec, {"flag", "sum_equals"}, "a decider")
        if "flag" in spec:
            return lambda _: self.flags.get(spec["flag"], False)
        return lambda history: sum(history.values()) == spec["sum_equals"]

    def _task(self, spec: Json) -> Task:
        only(spec, _TASK, f"the task {spec.get('name')!r}")
        does = spec.get("does", {})
        rebind = _rebind(spec, does)
        wanted = dict.fromkeys([*spec.get("requires", ()), *does.get("add", ()), *does.get("raise_unless_equal", ())])
        made: Task = task(
            self._function(spec["name"], does),
            name=spec["name"],
            provides=_provides(spec.get("provides"), does),
            requires=[name for name in wanted if name not in rebind],
            rebind=rebind,
            inject=spec.get("inject", {}),
            priority=spec.get("priority", 0),
        )
        return made.revert(_undoing(spec["undoes"])) if spec.get("undoes") else made

    def _function(self, name: str, does: Json) -> Callable[..., Any]:
        only(does, _DOES, f"what the task {name!r} does")

        async def execute(**given: Any) -> Any:
            self.calls[name] += 1
            if "raise" in does:
                raise RuntimeError(does["raise"].format(**given))
            if "fail_first" in does:
                if self.calls[name] <= does["fail_first"]:
                    raise RuntimeError("Woot!")
                return does["then"]
            if "add" in does:
                return sum(given[each] for each in does["add"]) + does.get("plus", 0)
            if "raise_unless_equal" in does and len({given[each] for each in does["raise_unless_equal"]}) > 1:
                raise RuntimeError("Woot!")
            value = does.get("return")
            return tuple(value) if does.get("as") == "tuple" else value

        return execute


def _rebind(spec: Json, does: Json) -> dict[str, str]:
    """Map parameters to names. If names are in a list, the parameters are taken in the order in which they are used."""
    rebind = spec.get("rebind", {})
    if isinstance(rebind, dict):
        return rebind
    return dict(zip([*does.get("add", ()), *does.get("raise_unless_equal", ())], rebind, strict=False))


def _provides(given: Json, does: Json) -> Json:
    """Convert ``provides`` for `task`. JSON has no sets, so a list of names may mean a set of keys."""
    by_key = isinstance(given, list) and isinstance(does.get("return"), dict)
    return frozenset(given) if by_key else given


def _undoing(spec: Json) -> Callable[..., Any]:
    only(spec, {"raise", "result_plus", "return", "echo"}, "what undoes a task")
    if "echo" in spec:
        return _echo(spec["echo"])

    async def undo(result: Any) -> Any:
        if "raise" in spec:
            raise RuntimeError(spec["raise"])
        return result + spec["result_plus"] if "result_plus" in spec else spec.get("return")

    return undo


def _echo(names: Sequence[str]) -> Callable[..., Any]:
    """Return a revert that takes ``names`` as parameters and returns the received values."""

    async def undo(**given: Any) -> Any:
        return _as_json(given)

    kind = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    setattr(undo, "__signature__", signature)  # noqa: B010  # unknown to type checkers
    return undo


def _as_json(value: Any) -> Any:
    """Convert failures to the form used in the events of a case file."""
    if isinstance(value, Failure):
        return {"failure": str(value)}
    return {name: _as_json(each) for name, each in value.items()} if isinstance(value, dict) else value


def _retry(spec: Json) -> Any:
    if spec.get("kind") not in _RETRIES:
        raise Unknown(f"unknown retry kind {spec.get('kind')!r}; expected one of {sorted(_RETRIES)}")
    make, *own = _RETRIES[spec["kind"]]
    only(spec, {"kind", "name", "provides", *own}, f"a retry of kind {spec['kind']!r}")
    return make(**{name: value for name, value in spec.items() if name != "kind"})


@dataclass(frozen=True)
class _Constant:
    """A retry that provides a value, but never allows a second attempt."""

    value: Any
    name: str | None = None
    provides: str | None = None

    def execute(self) -> Any:
        return self.value

    def on_failure(self) -> Verdict:
        return Verdict.REVERT


@dataclass(frozen=True)
class _Failing:
    """A retry that fails. If ``nasty`` is set, its revert also fails."""

    name: str | None = None
    provides: str | None = None
    nasty: bool = False

    def execute(self) -> Any:
        raise RuntimeError("OMG I FAILED")

    def on_failure(self) -> Verdict:
        return Verdict.REVERT

    def revert(self) -> None:
        if self.nasty:
            raise RuntimeError("WOOT!")


#: Retry classes, and the arguments that each accepts in addition to its name and the values it provides.
_RETRIES: dict[str, tuple[Any, ...]] = {
    "times": (Times, "attempts", "revert_all"),
    "for_each": (ForEach, "values", "revert_all"),
    "parameterized_for_each": (ParameterizedForEach, "revert_all"),
    "always_revert": (AlwaysRevert,),
    "always_revert_all": (AlwaysRevertAll,),
    "constant": (_Constant, "value"),
    "failing": (_Failing, "nasty"),
}
