"""Random flows, each built from a number: the same number produces the same flow in every process.

A flow's outcome depends only on its number, not on timing or on whether its process is killed. Whether a task fails
depends on the value of its retry, not on the number of calls. Arguments from tasks that may be skipped are optional,
and reverts fail only in sequential flows.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

from lifecycle.flows import (
    AlwaysRevert,
    AlwaysRevertAll,
    Depth,
    Flow,
    ForEach,
    Task,
    Times,
    Verdict,
    graph,
    linear,
    task,
    unordered,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from lifecycle.flows import Attempt, Retry, StepView

__all__ = ["NumberedFlow", "left_of"]

#: The maximum depth of nested flows, and the maximum number of items in each.
_DEEP, _WIDE = 3, 4
_ENOUGH = 12


async def _at_once() -> None:
    """Do nothing."""


class NumberedFlow:
    """Create the flow for one number. ``effect`` is awaited in each task and revert, and may read `current_task`."""

    def __init__(self, number: int, effect: Callable[[], Awaitable[None]] = _at_once) -> None:
        self._chance = Random(number)
        self._effect = effect
        self._count = 0
        #: True if tasks never run at the same time. In that case, each step always ends in the same state.
        self.sequential = self._chance.random() < 0.4
        self.flow = self._flow(f"flow_{number}", 0, None, [])

    def _maybe(self, probability: float) -> bool:
        return self._chance.random() < probability

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def _flow(self, name: str, depth: int, attempt: str | None, known: Sequence[str]) -> Flow:
        pattern = linear if self.sequential else self._chance.choice([linear, unordered, graph])
        outermost = self.sequential or attempt is None
        retry = self._retry(f"{name}_attempt", all_of_it=outermost) if self._maybe(0.5) else None
        attempt = f"{name}_attempt" if retry else attempt
        items: list[Task | Flow] = []
        names = list(known)
        for _ in range(self._chance.randint(1, _WIDE)):
            item = self._item(depth, attempt, names)
            items.append(item)
            if pattern is not unordered and isinstance(item, Task):
                names.append(item.name)
        flow = pattern(name, *items, retry=retry)
        if pattern is not unordered:
            for before, after in pairwise(items):
                if self._maybe(0.35):
                    flow.when(before, after, self._decider(), depth=self._chance.choice(list(Depth)))
        return flow

    def _item(self, depth: int, attempt: str | None, known: Sequence[str]) -> Task | Flow:
        if depth < _DEEP and self._count < _ENOUGH and self._maybe(0.35):
            return self._flow(self._name("f"), depth + 1, attempt, known)
        return self._task(attempt, known)

    def _task(self, attempt: str | None, known: Sequence[str]) -> Task:
        asks = self._chance.sample(known, min(len(known), self._chance.randint(0, 2)))
        salt, fails_before = self._chance.randint(0, 9), self._fails_before(attempt)

        async def execute(**given: Any) -> int:
            await self._effect()
            tried = given.pop(attempt, None) if attempt else None
            if fails_before > (1 if tried is None else tried):
                raise RuntimeError(f"{salt} is not ready before {fails_before}")
            return salt + sum(int(value or 0) for value in given.values())

        _asking(execute, [*asks, attempt] if attempt else asks)
        made: Task = task(execute, name=self._name("t"), priority=self._chance.randint(0, 1))
        undo = self._undoing()
        # A task with a revert gets a new key for each attempt, so that each attempt's effects can be distinguished.
        return made.revert(undo) if self._maybe(0.8) or attempt else made

    def _fails_before(self, attempt: str | None) -> int:
        """Return the first attempt at which a task succeeds. The flow may end before that attempt."""
        if attempt is not None and self._maybe(0.25):
            return self._chance.randint(2, 3)
        return 99 if self._maybe(0.06) else 0

    def _undoing(self) -> Callable[[Any], Awaitable[str]]:
        nasty = self.sequential and self._maybe(0.05)

        async def undo(result: Any) -> str:
            await self._effect()
            if nasty:
                raise RuntimeError("cannot be undone")
            return f"undone: {type(result).__name__}"

        return undo

    def _decider(self) -> Callable[[dict[str, Any]], bool]:
        salt = self._chance.randint(0, 9)
        return lambda history: (salt + sum(value for value in history.values() if isinstance(value, int))) % 3 > 0

    def _retry(self, provides: str, *, all_of_it: bool) -> Retry:
        """Return a random retry. It can revert the whole flow only if ``all_of_it`` is true."""
        kind = self._chance.randrange(8)
        revert_all = all_of_it and self._maybe(0.3)
        if kind == 0:
            return AlwaysRevert(provides=provides)
        if kind == 1 and all_of_it:
            return AlwaysRevertAll(provides=provides)
        if kind == 2:
            return ForEach([1, 2, 3][: self._chance.randint(1, 3)], provides=provides, revert_all=revert_all)
        if kind == 3:
            return _Stubborn(provides, self._effect)
        return Times(attempts=self._chance.randint(1, 3), provides=provides, revert_all=revert_all)


def _asking(fn: Any, names: Sequence[str]) -> None:
    """Add the optional parameters ``names`` to ``fn``."""
    kind = inspect.Parameter.KEYWORD_ONLY
    fn.__signature__ = inspect.Signature([inspect.Parameter(name, kind, default=None) for name in names])


@dataclass(frozen=True)
class _Stubborn:
    """A custom retry with an effect. It makes three attempts."""

    provides: str
    effect: Callable[[], Awaitable[None]]

    async def execute(self, history: Sequence[Attempt]) -> int:
        await self.effect()
        return len(history) + 1

    def on_failure(self, history: Sequence[Attempt]) -> Verdict:
        return Verdict.RETRY if len(history) < 3 else Verdict.REVERT

    async def revert(self) -> None:
        await self.effect()


def left_of(steps: Mapping[str, StepView], state: str, *, exactly: bool) -> dict[str, str]:
    """Return the result of each step of a flow that reached ``state``.

    Unless ``exactly`` is true, a step that did not begin and a step that was undone are considered equal. If two tasks
    run at the same time, the first to finish decides whether later tasks are skipped before the flow is undone. A crash
    can change which task finishes first. In a flow that did not succeed, a skipped task is therefore considered undone.
    """
    return {name: str(view.state) if exactly else _left(view, state) for name, view in sorted(steps.items())}


def _left(view: StepView, state: str) -> str:
    not_begun = view.state in ("PENDING", "IGNORE")
    undone = view.state == "REVERTED" or (not_begun and (view.intention == "REVERT" or state != "SUCCESS"))
    return "nothing" if undone else str(view.state)
