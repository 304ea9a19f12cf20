"""What a figure has to keep to, read from the words beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["SLACK", "Bar"]

#: How much worse than the stored figure a new one may be: what one run differs from another on a machine that is
#: otherwise idle is up to a fifth, and for the ratios of a disk a little more.
SLACK = 1.3

_WORDS = re.compile(r"(at most|at least|under) ([\d.,]+)(?P<more> .*)?")


@dataclass(frozen=True)
class Bar:
    """Which way is better, and how far is good enough; ``limit`` is None where a figure is only printed."""

    better: Literal["less", "more"] | None
    limit: float | None

    @classmethod
    def read(cls, words: str) -> Bar:
        """From ``at most 1.8``, ``at least 0.7``, ``under 0.5``, ``0`` or ``printed``; a remark may follow ``;``.

        A limit that is a sum, as in ``at most 500 + 3 x spawn_ms``, is for the reader to work out.
        """
        if words in {"0", "none"}:
            return cls("less", 0.0)
        found = _WORDS.fullmatch(words.partition(";")[0])
        if found is None:
            return cls(None, None)
        limit = None if found["more"] else float(found[2].replace(",", ""))
        return cls("more" if found[1] == "at least" else "less", limit)

    def met(self, figure: float) -> bool | None:
        """Whether ``figure`` is good enough; None where nothing is demanded."""
        if self.limit is None:
            return None
        return figure >= self.limit if self.better == "more" else figure <= self.limit

    def worse(self, figure: float, stored: float) -> bool:
        """Whether ``figure`` is so much worse than ``stored`` that the machine's moods do not explain it."""
        if self.better == "more":
            return figure < stored / SLACK
        # Where nothing is right, any is wrong.
        return self.better == "less" and figure > stored * SLACK
