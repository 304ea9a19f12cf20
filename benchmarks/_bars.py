"""Limits for figures, parsed from text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["SLACK", "Bar"]

#: The factor by which a new figure may be worse than the stored one. On an idle machine, two runs differ by up to a
#: fifth. Ratios that involve a disk differ slightly more.
SLACK = 1.3

_WORDS = re.compile(r"(at most|at least|under) ([\d.,]+)(?P<more> .*)?")


@dataclass(frozen=True)
class Bar:
    """A limit, and whether higher or lower is better. ``limit`` is None for a figure without a limit."""

    better: Literal["less", "more"] | None
    limit: float | None

    @classmethod
    def read(cls, words: str) -> Bar:
        """Parse ``at most 1.8``, ``at least 0.7``, ``under 0.5``, ``0`` or ``printed``. A remark may follow ``;``.

        A limit with an expression, such as ``at most 500 + 3 x spawn_ms``, is not evaluated.
        """
        if words in {"0", "none"}:
            return cls("less", 0.0)
        found = _WORDS.fullmatch(words.partition(";")[0])
        if found is None:
            return cls(None, None)
        limit = None if found["more"] else float(found[2].replace(",", ""))
        return cls("more" if found[1] == "at least" else "less", limit)

    def met(self, figure: float) -> bool | None:
        """Return whether ``figure`` is within the limit, or None if there is no limit."""
        if self.limit is None:
            return None
        return figure >= self.limit if self.better == "more" else figure <= self.limit

    def worse(self, figure: float, stored: float) -> bool:
        """Return whether ``figure`` is worse than ``stored`` by more than the machine's noise."""
        if self.better == "more":
            return figure < stored / SLACK
        # If the stored figure is 0, any other value is worse.
        return self.better == "less" and figure > stored * SLACK
