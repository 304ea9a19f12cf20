"""The record that each storm returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Report", "Storm"]


@dataclass
class Report:
    """The observations from one storm."""

    #: The number of flows, jobs, events, calls, inputs or actions, and the number of kills, freezes and cuts.
    operations: int = 0
    kills: int = 0
    #: One line for each violation. Lost: a promised result is missing or wrong. Double: something ran or was accepted
    #: twice. Stuck: something did not finish in time, or is left over.
    lost: list[str] = field(default_factory=list[str])
    double: list[str] = field(default_factory=list[str])
    stuck: list[str] = field(default_factory=list[str])
    #: Further figures.
    notes: str = ""

    @property
    def violations(self) -> list[str]:
        """Return all violations, each with its kind."""
        kinds = {"lost": self.lost, "double": self.double, "stuck": self.stuck}
        return [f"{kind}: {line}" for kind, lines in kinds.items() for line in lines]


#: A function that runs for a number of seconds. The second argument is the seed of its random choices.
Storm: TypeAlias = "Callable[[float, int], Report]"
