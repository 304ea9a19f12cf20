"""What a worker that is started again is told of its life before: the same for processes, tasks and threads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.workers.model import Exit

__all__ = ["ATTEMPT", "PREV_EXIT", "RESUME_ID", "Handover", "given", "handover", "previous_exit"]

RESUME_ID: Final = "LIFECYCLE_RESUME_ID"
PREV_EXIT: Final = "LIFECYCLE_PREV_EXIT"
ATTEMPT: Final = "LIFECYCLE_ATTEMPT"

#: What the worker that runs here was given before its start; a process has its environment instead.
given: ContextVar[Mapping[str, str] | None] = ContextVar("lifecycle_handover", default=None)


class Handover(Mapping[str, str]):
    """The variables ``LIFECYCLE_…`` of a worker, as text; the attributes are the same, read.

    Without a supervisor there are none, and the attributes say so: ``""``, 0 and 1.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = {name: text for name, text in variables.items() if name in (RESUME_ID, PREV_EXIT, ATTEMPT)}

    def __repr__(self) -> str:
        return f"Handover({self._variables!r})"

    def __getitem__(self, name: str) -> str:
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    @property
    def resume_id(self) -> str:
        """A UUID that stays the same however often the worker is started again."""
        return self.get(RESUME_ID, "")

    @property
    def prev_exit(self) -> int:
        """How the life before ended: its exit code, minus a signal's number, -1 for an error without a code."""
        return int(self.get(PREV_EXIT, "0"))

    @property
    def attempt(self) -> int:
        """The number of this start; the first is 1."""
        return int(self.get(ATTEMPT, "1"))


def handover() -> Handover:
    """What this worker was handed over: asked in its task, in its thread, or anywhere in its process."""
    variables = given.get()
    return Handover(os.environ if variables is None else variables)


def previous_exit(ended: Exit | None) -> str:
    """What the next life is told of ``ended``: its exit code, or 0 and -1 where there is none."""
    if ended is None:
        return "0"
    if ended.exit_code is not None:
        return str(ended.exit_code)
    return "0" if ended.error is None else "-1"
