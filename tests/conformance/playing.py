"""Runs one case on a real supervisor in virtual time, with OTP's interface mapped to ours.

If a caller restarts or removes a running child, OTP returns an error, but our supervisor executes the request. In these
cases the result is OTP's error, and our supervisor is not called.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lifecycle.errors import LifecycleError
from lifecycle.workers import Status
from tests.conformance.actors import Diary
from tests.conformance.trees import AT_ONCE, spec, tree

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.workers import Supervisor, WorkerState

__all__ = ["ACTIONS", "Outcome", "play"]

Json = Any

#: Seconds that the recording waited after a death, after a kill, and at the end of a case.
_AFTER_DEATH, _AFTER_KILL, _AT_THE_END = 0.06, 0.08, 0.03
_OVER: Any = object()
_AT_WORK = (Status.STARTING, Status.RUNNING, Status.SUSPENDED, Status.STOPPING)


class Outcome:
    """The result of a case, in the format of the case files."""

    def __init__(self) -> None:
        self.start: Json = "ok"
        self.events: list[Json] = []
        self.results: list[Json] = []
        self.alive = False
        self.ended = False


async def play(case: Json) -> Outcome:
    """Start the supervisor of ``case``, carry out its actions, and return the result."""
    diary, outcome = Diary(), Outcome()
    try:
        supervisor = tree(diary, "sup", case["flags"], case["children"])
        await supervisor.start()
    except (LifecycleError, ValueError, TypeError) as error:
        outcome.start = ["error", str(error)]
        outcome.events = list(diary.events)
        return outcome
    stage = _Stage(diary, supervisor, case)
    try:
        for action, *arguments in case["actions"]:
            await stage.perform(action, *arguments)
        await asyncio.sleep(_AT_THE_END)
        outcome.events, outcome.results = list(diary.events), stage.results
        outcome.alive = stage.alive
        outcome.ended = supervisor.status not in _AT_WORK
    finally:
        await supervisor.stop()
    return outcome


class _Stage:
    """A supervisor, and the actions that a case performs on it."""

    def __init__(self, diary: Diary, supervisor: Supervisor, case: Json) -> None:
        self._diary = diary
        self._supervisor = supervisor
        self._children: dict[str, Json] = {child["id"]: child for child in case["children"]}
        simple = case["flags"].get("strategy") == "simple_one_for_one"
        self._template: Json = case["children"][0] if simple else None
        self.results: list[Json] = []

    @property
    def alive(self) -> bool:
        return self._supervisor.status in _AT_WORK

    async def perform(self, action: str, *arguments: Json) -> None:
        await ACTIONS[action](self, *arguments)

    def _answer(self, result: Json, *call: Json) -> None:
        self.results.append([list(call), result])

    # -- events ---------------------------------------------------------------------------------------------------

    async def sleep(self, ms: float) -> None:
        await asyncio.sleep(ms / 1000)

    async def die(self, name: str, reason: Json) -> None:
        for actor in self._diary.living.get(name, [])[:1]:
            actor.die(reason)
        await asyncio.sleep(_AFTER_DEATH)

    async def kill(self, name: str) -> None:
        for actor in self._diary.living.get(name, [])[:1]:
            actor.die("killed")
        await asyncio.sleep(_AFTER_KILL)

    async def unlink(self, _: str) -> None:
        """Do nothing, because our children have no links."""

    # -- requests ---------------------------------------------------------------------------------------------------

    async def _in_turn(self) -> None:
        """Wait like a caller of OTP's supervisor, which starts and stops its children before it replies.

        OTP's supervisor executes pending restarts only after it has replied to the waiting callers.
        """
        if self._any(Status.PENDING):
            await self._until(lambda: self._any(Status.STARTING))
        await self._until(lambda: not self._any(Status.STARTING, Status.STOPPING))

    async def _until(self, condition: Callable[[], bool]) -> None:
        changes = self._supervisor.watch()
        while not condition():
            if await anext(changes, _OVER) is _OVER:
                return
            # During this pause, the supervisor can decide how to react to a change, but cannot act yet.
            await asyncio.sleep(AT_ONCE / 10)

    def _any(self, *statuses: Status) -> bool:
        return any(each.status in statuses for each in self._supervisor.workers())

    async def stop(self, reason: str) -> None:
        await self._in_turn()
        await self._supervisor.stop()
        self._answer(["sup_down", reason], "stop", reason)

    async def report_alive(self) -> None:
        self._answer(self.alive, "alive")

    async def which(self) -> None:
        """Return the running children, newest first."""
        await self._in_turn()
        shown = [["undefined" if self._template else each.name, _pid(each)] for each in self._shown()]
        self._answer(shown[::-1], "which")

    async def count(self) -> None:
        await self._in_turn()
        shown = self._shown()
        supervisors = sum(self._children.get(each.name, {}).get("type") == "supervisor" for each in shown)
        counts = {
            "specs": 1 if self._template else len(shown),
            "active": sum(each.status in _AT_WORK for each in shown),
            "supervisors": supervisors,
            "workers": len(shown) - supervisors,
        }
        self._answer([list(pair) for pair in counts.items()], "count")

    async def term(self, name: str) -> None:
        await self._in_turn()
        if error := self._refusal(name):
            self._answer(["error", error], "term", name)
        elif self._children[name].get("restart") == "temporary":
            await self._supervisor.remove(name)
        else:
            await self._supervisor.stop_child(name)

    async def restart(self, name: str) -> None:
        await self._in_turn()
        refusal = self._refusal(name) or self._occupied(name)
        self._answer(
            ["error", refusal] if refusal else await self._started(self._supervisor.restart(name), name),
            "restart",
            name,
        )

    async def delete(self, name: str) -> None:
        await self._in_turn()
        refusal = self._refusal(name) or self._occupied(name)
        if refusal:
            self._answer(["error", refusal], "delete", name)
        else:
            await self._supervisor.remove(name)

    async def add(self, child: Json) -> None:
        await self._in_turn()
        if self._template:
            name = f"{self._template['id']}#{len(self._children)}"
            self._answer(await self._added(self._template, name), "add", child)
            return
        name = child.get("id")
        shown = {each.name: each for each in self._shown()}
        if name in shown:
            taken = "already_started" if shown[name].status in _AT_WORK else "already_present"
            self._answer(["error", taken], "add", name)
            return
        if name in self._supervisor:
            await self._supervisor.remove(name)
        self._answer(await self._added(child, name), "add", name)

    async def _added(self, child: Json, name: str) -> Json:
        try:
            added = spec(self._diary, child, name)
        except (ValueError, TypeError) as error:
            return ["error", str(error)]
        self._children[name] = child
        return await self._started(self._supervisor.add(added), name)

    async def _started(self, start: Awaitable[None], name: str) -> Json:
        try:
            await start
        except (LifecycleError, ValueError) as error:
            return ["error", str(error)]
        return ["ok", _pid(self._supervisor.state().children[[*self._names()].index(name)])]

    def _names(self) -> list[str]:
        return [each.name for each in self._supervisor.workers()]

    def _refusal(self, name: str) -> str | None:
        if self._template:
            return "simple_one_for_one"
        return None if name in {each.name for each in self._shown()} else "not_found"

    def _occupied(self, name: str) -> str | None:
        status = next(each.status for each in self._supervisor.workers() if each.name == name)
        if status in _AT_WORK:
            return "running"
        return "restarting" if status is Status.PENDING else None

    def _shown(self) -> list[WorkerState]:
        """Return the children that OTP would list.

        OTP lists a temporary child, or a dynamic child of a simple supervisor, only while it runs.
        """
        return [
            each
            for each in self._supervisor.workers()
            if each.status in _AT_WORK
            or not (self._template or self._children.get(each.name, {}).get("restart") == "temporary")
        ]


def _pid(child: WorkerState) -> str:
    if child.status in _AT_WORK:
        return "pid"
    return "restarting" if child.status is Status.PENDING else "undefined"


#: The actions that a case may contain.
ACTIONS: dict[str, Callable[..., Awaitable[None]]] = {
    "add": _Stage.add,
    "alive": _Stage.report_alive,
    "cast_unlink": _Stage.unlink,
    "count": _Stage.count,
    "delete": _Stage.delete,
    "die": _Stage.die,
    "kill": _Stage.kill,
    "restart": _Stage.restart,
    "sleep": _Stage.sleep,
    "stop": _Stage.stop,
    "term": _Stage.term,
    "which": _Stage.which,
}
