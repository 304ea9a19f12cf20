"""What a step is given when its turn has come, and what names there are to be had."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from lifecycle.errors import MissingDependencies
from lifecycle.flows.core.cells import NOTHING
from lifecycle.flows.plans.scopes import givers
from lifecycle.flows.serializers import is_plain
from lifecycle.flows.states import StepState

if TYPE_CHECKING:
    from lifecycle.flows.core.cells import Cell
    from lifecycle.flows.plans.compiling import Plan
    from lifecycle.flows.plans.steps import RetryStep
    from lifecycle.flows.records import Failure
    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.tasks import Provides

__all__ = ["Values"]


class Values:
    """What one run knows: what it was given, and what its steps gave."""

    def __init__(self, plan: Plan, cells: list[Cell], codec: Codec) -> None:
        self._plan, self._cells, self._codec = plan, cells, codec
        self.store: dict[str, Any] = {}

    def of(self, cell: Cell) -> Any:
        """What ``cell`` gave; `NOTHING` where it gave nothing yet, or it was undone, be it in vain."""
        if cell.result is None or cell.state is StepState.REVERT_FAILURE:
            return NOTHING
        # Each who asks gets his own: what one changes in it, the others see as little as they would after a crash.
        return cell.value if is_plain(cell.value) else self._codec.decode(cell.result)

    def for_execution(self, cell: Cell) -> dict[str, Any]:
        """The arguments with which ``cell`` is executed.

        Raises:
            MissingDependencies: where who provides one was left out, or gave too little.
        """
        step = cell.step
        assert step is not None
        arguments = self._arguments(cell, step.arguments, step.optional)
        if cell.node.kind == "retry" and "history" in step.specials:  # type: ignore[attr-defined]  # of a RetryStep
            arguments["history"] = list(cell.history)
        return arguments

    def for_question(self, cell: Cell) -> dict[str, Any]:
        """The arguments with which a retry is asked what to do.

        Raises:
            MissingDependencies: where who provides one was left out, or gave too little.
        """
        step: RetryStep = cell.step  # type: ignore[assignment]  # only retries are asked
        arguments = self._arguments(cell, step.asks, step.asks_optional)
        if "history" in step.asks_specials:
            arguments["history"] = list(cell.history)
        return arguments

    def for_reversion(self, cell: Cell, failures: Callable[[], dict[str, Failure]]) -> dict[str, Any]:
        """The arguments with which ``cell`` is undone.

        Raises:
            MissingDependencies: where who provides one was left out, or gave too little.
        """
        step = cell.step
        assert step is not None
        arguments = self._arguments(cell, step.undo_arguments, step.undo_optional)
        for name in step.undo_specials:
            if name == "history":
                arguments[name] = list(cell.history)
            elif name in ("failures", "flow_failures"):
                arguments[name] = failures()
            else:
                arguments[name] = cell.failure if cell.failure is not None else self.of(cell)
        return arguments

    def _arguments(self, cell: Cell, wanted: Mapping[str, str], optional: frozenset[str]) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for parameter, name in wanted.items():
            value = self._find(cell, name)
            if value is not NOTHING:
                arguments[parameter] = value
            elif parameter not in optional:
                raise MissingDependencies(
                    f"{cell.node.kind} {cell.name!r} asks for {name!r}, and nobody before it gave that: who provides "
                    "it was left out, undone, or gave too little"
                )
        return arguments

    def _find(self, cell: Cell, name: str) -> Any:
        """The nearest value of ``name``."""
        assert cell.step is not None
        if name in cell.step.inject:
            return cell.step.inject[name]
        if name in self.store:
            given = self.store[name]
            return given if is_plain(given) else self._codec.decode(self._codec.encode(given))
        for giver in givers(self._plan, cell.node, name):
            value = self._named(self._cells[giver.number], name)
            if value is not NOTHING:
                return value
        return NOTHING

    def _named(self, cell: Cell, name: str) -> Any:
        value = self.of(cell)
        return value if value is NOTHING or cell.step is None else _part(cell.step.provides, name, value)

    def provided(self) -> dict[str, Any]:
        """All that steps gave, by name; where several gave a name, the last of them in the order of the flow."""
        return {name: values[-1] for name, values in self._gathered().items()}

    def known(self) -> dict[str, list[Any]]:
        """All values of each name, those that the flow was given first."""
        known = {name: [value] for name, value in self.store.items()}
        for name, values in self._gathered().items():
            known.setdefault(name, []).extend(values)
        return known

    def _gathered(self) -> dict[str, list[Any]]:
        gathered: dict[str, list[Any]] = {}
        for name, nodes in self._plan.providers.items():
            values = (self._named(self._cells[node.number], name) for node in nodes)
            if there := [value for value in values if value is not NOTHING]:
                gathered[name] = there
        return gathered

    def results(self, numbers: Sequence[int]) -> dict[str, Any]:
        """What those of ``numbers`` gave that were executed, by their own names."""
        cells = [self._cells[number] for number in numbers]
        return {cell.name: self.of(cell) for cell in cells if cell.result is not None}


def _part(provides: Provides, name: str, value: Any) -> Any:
    """What ``value`` has for ``name``."""
    if isinstance(provides, str):
        return value
    if isinstance(provides, frozenset):
        return cast("Mapping[str, Any]", value).get(name, NOTHING) if isinstance(value, Mapping) else NOTHING
    parts = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else ()
    place = provides.index(name) if provides else 0
    return parts[place] if place < len(parts) else NOTHING
