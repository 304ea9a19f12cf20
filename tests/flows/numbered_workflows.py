"""Random workflows, each built from a number: the same number produces the same workflow in every process.

A workflow's outcome depends only on its number, not on timing or on whether its process is killed. Each signal has a
name that only one place in the workflow waits for, and signals that are awaited with a timeout are never sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from lifecycle.errors import StepFailed
from lifecycle.flows import (
    Times,
    child,
    current_task,
    gather,
    linear,
    patch,
    sleep,
    step,
    task,
    undo,
    wait_for,
    workflow,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

__all__ = ["READY", "Expected", "Programs", "expected", "script_of"]

#: The name of the step after which a workflow that never ends is cancelled.
READY = "ready"
#: Seconds of sleeps and timeouts, and between attempts. A workflow that waits for more than a second is parked.
_PAUSES = (0.0, 0.02, 0.1, 1.3)
#: The maximum depth of nested loops, branches, gathers and children.
_DEEP = 3

#: The operations of a workflow: each is its kind and its settings.
Script: TypeAlias = "list[tuple[Any, ...]]"


class _Writer:
    """Writes the script for a number."""

    def __init__(self, number: int) -> None:
        self._chance = Random(number)
        self._sites = 0

    def script(self, kind: str) -> Script:
        if kind == "doomed":
            # The parent is cancelled while it waits for this child.
            return [self._undo(), self._step(), ("endless",)]
        script = self._body(0 if kind == "top" else 1)
        ends: list[Script] = [[], [], [("fail",)], [("gather", [[self._step()], [self._step(), ("fail",)]])]]
        cancelled: list[Script] = [[("endless",)], [("doomed", self._site(), self._number())]]
        return script + self._chance.choice(ends + cancelled if kind == "top" else ends)

    def _body(self, depth: int) -> Script:
        return [self._operation(depth) for _ in range(self._chance.randint(1, 5 - depth))]

    def _operation(self, depth: int) -> tuple[Any, ...]:
        simple = [self._step, self._step, self._undo, self._sleep, self._wait, self._timeout, self._patch]
        nested = [self._loop, self._branch, self._gather, self._gather, self._child, self._flow]
        if depth < _DEEP and self._chance.random() < 0.4:
            return self._chance.choice(nested)(depth + 1)
        return self._chance.choice(simple)()

    def _site(self) -> int:
        self._sites += 1
        return self._sites

    def _number(self) -> int:
        return self._chance.randrange(2**32)

    def _step(self) -> tuple[Any, ...]:
        fails, attempts = self._chance.choice([(0, 1), (0, 1), (1, 2), (2, 3), (9, 2)])
        return "step", self._site(), fails, attempts, self._chance.choice(_PAUSES)

    def _undo(self) -> tuple[Any, ...]:
        fails, attempts = self._chance.choice([(0, 1), (0, 1), (0, 1), (1, 2), (9, 1)])
        return "undo", self._site(), fails, attempts, self._chance.choice(_PAUSES)

    def _sleep(self) -> tuple[Any, ...]:
        return "sleep", self._chance.choice(_PAUSES)

    def _wait(self) -> tuple[Any, ...]:
        return "wait", f"signal {self._site()}", self._chance.choice([None, 3600.0])

    def _timeout(self) -> tuple[Any, ...]:
        return "timeout", f"unsent {self._site()}", self._chance.choice(_PAUSES)

    def _patch(self) -> tuple[Any, ...]:
        return "patch", self._site()

    def _loop(self, depth: int) -> tuple[Any, ...]:
        # The ids of children must be different in each round, so loops have none.
        body = [each for each in self._body(depth) if each[0] not in ("child", "flow", "branch", "gather")]
        return "loop", self._chance.randint(1, 3), body

    def _branch(self, depth: int) -> tuple[Any, ...]:
        return "branch", self._site(), self._chance.random() < 0.5, self._body(depth), self._body(depth)

    def _gather(self, depth: int) -> tuple[Any, ...]:
        return "gather", [self._body(depth) for _ in range(self._chance.randint(1, 3))]

    def _child(self, depth: int) -> tuple[Any, ...]:
        # A child has no children of its own, so that workflows stay small.
        return ("child", self._site(), self._number()) if depth == 1 else self._step()

    def _flow(self, depth: int) -> tuple[Any, ...]:
        return ("flow", self._site()) if depth <= _DEEP else self._step()


def script_of(number: int, kind: str = "top") -> Script:
    """Return the operations of the workflow with this number."""
    return _Writer(number).script(kind)


# -- what happens to a workflow from outside ---------------------------------------------------------------------------


@dataclass
class Expected:
    """The signals that a workflow needs, by flow id, and the flows that it consists of."""

    #: Each flow, with the names of its signals in the order in which they must be sent.
    signals: dict[str, list[str]] = field(default_factory=dict[str, "list[str]"])
    #: The id of a flow whose step `READY` shows that another flow must be cancelled, and the id of that other flow.
    cancels: dict[str, str] = field(default_factory=dict[str, str])


def expected(flow: str, number: int, kind: str = "top") -> Expected:
    """Return what the workflow with this id and number needs."""
    found = Expected({flow: []})
    for operation in _walk(script_of(number, kind)):
        _expect(found, flow, operation)
    return found


def _expect(found: Expected, flow: str, operation: tuple[Any, ...]) -> None:
    match operation:
        case ("wait", name, _):
            found.signals[flow].append(name)
        case ("endless",):
            found.cancels[flow] = flow
        case ("flow", site):
            found.signals[f"{flow}.{site}"] = []
        case ("child" | "doomed" as kind, site, number):
            inner = expected(f"{flow}.{site}", number, kind)
            found.signals |= inner.signals
            # A doomed child is cancelled by its parent.
            found.cancels |= {ready: flow if kind == "doomed" else end for ready, end in inner.cancels.items()}
        case _:
            pass


def _walk(script: Script) -> Iterator[tuple[Any, ...]]:
    """Yield the operations in order, except those of branches that are not taken."""
    for operation in script:
        match operation:
            case ("loop", times, body):
                for _ in range(times):
                    yield from _walk(body)
            case ("branch", _, answer, first, second):
                yield from _walk(first if answer else second)
            case ("gather", bodies):
                for body in bodies:
                    yield from _walk(body)
            case _:
                yield operation


# -- running -----------------------------------------------------------------------------------------------------------


class Programs:
    """The workflow that runs any script, and the flow that it starts as a child.

    ``effect`` is awaited in each step, and may read `current_task`.
    """

    def __init__(self, effect: Callable[[], Awaitable[None]]) -> None:
        self._effect = effect
        self.pair = linear("pair", task(self._task, name="first"), task(self._task, name="second"))

        @workflow
        async def numbered(flow: str, number: int, kind: str = "top") -> list[Any]:
            return await self._run(flow, script_of(number, kind))

        self.numbered = numbered

    async def _task(self) -> None:
        await self._effect()

    async def _step(self, fails: int, value: Any) -> Any:
        await self._effect()
        if current_task().attempt <= fails:
            raise ConnectionError(f"attempt {current_task().attempt} failed")
        return value

    async def _run(self, flow: str, script: Script) -> list[Any]:
        return [await self._perform(flow, *operation) for operation in script]

    async def _perform(self, flow: str, kind: str, *settings: Any) -> Any:
        operation: Callable[..., Awaitable[Any]] = getattr(self, f"_do_{kind}")
        try:
            return await operation(flow, *settings)
        except (StepFailed, TimeoutError) as error:
            return str(error)

    async def _do_step(self, _: str, site: int, fails: int, attempts: int, pause: float) -> Any:
        return await step(self._step, fails, site, name=f"step {site}", retry=Times(attempts, pause))

    async def _do_undo(self, _: str, site: int, fails: int, attempts: int, pause: float) -> None:
        undo(self._step, fails, site, name=f"undo {site}", retry=Times(attempts, pause))

    async def _do_sleep(self, _: str, seconds: float) -> None:
        await sleep(seconds)

    async def _do_wait(self, _: str, name: str, limit: float | None) -> Any:
        return await wait_for(name, timeout=limit)

    async def _do_timeout(self, _: str, name: str, limit: float) -> Any:
        return await wait_for(name, timeout=limit)

    async def _do_patch(self, _: str, site: int) -> bool:
        if changed := patch(f"change {site}"):
            await step(self._step, 0, None, name="new")
        return changed

    async def _do_loop(self, flow: str, times: int, body: Script) -> list[Any]:
        return [await self._run(flow, body) for _ in range(times)]

    async def _do_branch(self, flow: str, site: int, answer: bool, first: Script, second: Script) -> list[Any]:
        taken = await step(self._step, 0, answer, name=f"ask {site}")
        return await self._run(flow, first if taken else second)

    async def _do_gather(self, flow: str, bodies: list[Script]) -> list[Any]:
        return await gather(*(self._run(flow, body) for body in bodies))

    async def _do_child(self, flow: str, site: int, number: int) -> Any:
        inner = f"{flow}.{site}"
        return await child(self.numbered, inner, number, "child", id=inner)

    async def _do_doomed(self, flow: str, site: int, number: int) -> Any:
        inner = f"{flow}.{site}"
        return await child(self.numbered, inner, number, "doomed", id=inner)

    async def _do_flow(self, flow: str, site: int) -> Any:
        return await child(self.pair, id=f"{flow}.{site}")

    async def _do_fail(self, _: str) -> None:
        raise ValueError("the workflow fails")

    async def _do_endless(self, _: str) -> None:
        await step(self._step, 0, None, name=READY)
        await wait_for("unsent")
