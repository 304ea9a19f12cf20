"""Plays the steps of one case with our engine and a store, and records each outcome in the case file's format.

TaskFlow's engine compiles and prepares a flow, while our engine takes a compiled plan. The first step that needs our
engine therefore creates it. It is created again after the store has been edited.
"""

from __future__ import annotations

import builtins
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lifecycle.errors import InvalidState
from lifecycle.flows import JSON, Batch, Failure, FlowRow, FlowState, MemoryStore, Options, Snapshot, StepState
from lifecycle.flows.engine import Engine
from lifecycle.flows.plan import compile_flow
from lifecycle.flows.stores.postgres import PostgresStore
from lifecycle.flows.stores.sqlite import SQLiteStore
from tests import postgres
from tests.conformance.flow_building import Unknown, World, only

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lifecycle.flows import Change, EngineState, StepRow, Store

__all__ = ["STORES", "Crash", "Outcome", "Stage"]

Json = Any

#: The kinds of store. Each function creates a store in a directory or on a server.
STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda directory: SQLiteStore(directory / "flows.db"),
    "postgres": lambda _: PostgresStore(postgres.server().cleared()),
}

_ID = "case"
_SAID = {"SUCCESS", "FAILURE", "REVERTED", "REVERT_FAILURE"}
#: Options that suspend the engine at its n-th state. TaskFlow can suspend in several ways.
_SUSPENDING = ("suspend_at_state", "suspend_call_at_state", "close_at_state")
_RUN = {"op", "suspend_when", "throw_at_state", "crash_at", *_SUSPENDING}


class Crash(BaseException):
    """The simulated death of the process."""


@dataclass
class Outcome:
    """The outcome of one step."""

    events: list[Json] = field(default_factory=list)
    #: Transitions of steps that start again after a crash. Our table allows them, and TaskFlow does not announce them.
    restarted: list[str] = field(default_factory=list)
    engine_states: list[str] = field(default_factory=list)
    raised: BaseException | None = None
    flow_state: str = "PENDING"
    steps: dict[str, list[str]] = field(default_factory=dict)
    fetch_all: dict[str, Any] = field(default_factory=dict)


class Stage:
    """A store and its current engine."""

    def __init__(self, case: Json, store: Store) -> None:
        self._case, self.store = case, store
        self._spec = case["flow"]
        self._world = World()
        self._codec = JSON()
        options = dict(case.get("options", {}))
        if "max_workers" in options:
            options["concurrency"] = options.pop("max_workers")
        self._options = Options(**options)
        self._engine: Engine | None = None
        self._prepared = False
        self._created = False
        self._known: dict[str, Any] = dict(case.get("store", {}))
        self._thrown: BaseException = RuntimeError()

    @property
    def id(self) -> str:
        """The flow's id."""
        return _ID

    def executed_too_often(self, changes: Sequence[Change]) -> list[str]:
        """Describe the tasks that were executed more often than the store recorded."""
        begun = Counter(change.name for change in changes if change.kind == "task" and change.new == "RUNNING")
        return [
            f"{name} was executed {times} times, and {begun[name]} times that is stored"
            for name, times in self._world.calls.items()
            if times > begun[name]
        ]

    async def perform(self, step: Json, expected: Json = None) -> Outcome | None:
        """Perform ``step``. Return None if the file expects no outcome for it.

        Some steps throw an error into the engine. The file names that error only in the outcome, ``expected``.

        Raises:
            Unknown: if the step is unknown.
        """
        self._thrown = _error((expected or {}).get("raised") or {})
        op = step.get("op")
        if op not in _STEPS:
            raise Unknown(f"unknown step {op!r}; expected one of {sorted(_STEPS)}")
        known, method = _STEPS[op]
        only(step, known, f"the step {op!r}")
        return await getattr(self, method)(step)  # type: ignore[no-any-return]  # one of the methods below

    # -- steps without an outcome ----------------------------------------------------------------------------------

    async def _reload(self, step: Json) -> None:
        self._spec = step.get("flow", self._spec)
        self._engine, self._prepared = None, False

    async def _flag(self, step: Json) -> None:
        self._world.flags |= step["set"]

    async def _storage(self, step: Json) -> None:
        flow, steps, _ = await self.store.load(_ID)
        values = None
        for op, *arguments in step["ops"]:
            if op == "set_flow_state":
                flow = flow._replace(state=FlowState(arguments[0]).value)
            elif op == "inject":
                values = self._codec.encode(self._codec.decode(values or flow.store) | arguments[0])
            elif op == "uninject":
                values = self._codec.encode({})
            elif op in _EDITS:
                name = arguments[0]
                steps[name] = _EDITS[op](steps[name], *arguments[1:])
            else:
                raise Unknown(
                    f"unknown store operation {op!r}; expected {sorted(_EDITS)}, (un)inject or set_flow_state"
                )
        batch = Batch(_ID, flow.epoch, flow.state, flow.seq, 0.0, list(steps.values()), [], values)
        await self.store.commit(batch)
        self._engine = None

    # -- steps that use the engine ------------------------------------------------------------------------------------

    async def _run(self, step: Json) -> Outcome:
        outcome = Outcome()
        try:
            engine = await self._ready()
            self._watch(engine, outcome, step)
            if not self._prepared or engine.scheduler.state is FlowState.REVERTED:
                self._prepared = True
                await engine.prepare()
            await engine.run()
            outcome.raised = engine.error()
        except (Exception, Crash) as error:  # noqa: BLE001  # the error is compared
            outcome.raised = error
        return await self._seen(outcome)

    async def _prepare(self, step: Json) -> Outcome:
        self._prepared = True
        return await self._asked(step, Engine.prepare)

    async def _reset(self, step: Json) -> Outcome:
        return await self._asked(step, Engine.reset)

    async def _suspend(self, step: Json) -> Outcome:
        if self._engine is None:
            error = InvalidState("there is nothing that could be suspended: an engine is made of a compiled plan")
            return await self._seen(Outcome(raised=error))
        return await self._asked(step, _suspended)

    async def _asked(self, step: Json, what: Callable[[Engine], Any]) -> Outcome:
        outcome = Outcome()
        try:
            engine = await self._ready()
            self._watch(engine, outcome, step)
            await what(engine)
        except Exception as error:  # noqa: BLE001  # the error is compared
            outcome.raised = error
        return await self._seen(outcome)

    async def _ready(self) -> Engine:
        """Return the engine, or a new one that continues from the stored state."""
        if self._engine is None:
            plan = compile_flow(self._world.build(self._spec))
            if not self._created:
                values = self._codec.encode(self._case.get("store", {}))
                await self.store.create(FlowRow(_ID, plan.name, epoch=1, store=values))
                self._created = True
            snapshot = await self.store.load(_ID)
            self._engine = Engine(plan, snapshot, store=self.store, codec=self._codec, options=self._options)
        return self._engine

    def _watch(self, engine: Engine, outcome: Outcome, step: Json) -> None:
        def on_change(change: Change) -> None:
            if change.reason == "restarted":
                outcome.restarted.append(change.name)
                return
            outcome.events.append(_event(change))
            if [change.kind, change.name, change.new] == step.get("suspend_when"):
                engine.suspend()
            if len(outcome.events) == step.get("crash_at"):
                raise Crash

        def entered(state: EngineState) -> None:
            seen = len(outcome.engine_states)
            if seen == step.get("throw_at_state") and not engine.scheduler.errors and state.value == "WAITING":
                engine.scheduler.errors.append(("", Failure.of(self._thrown)))
            if state.value == "FAILURE" or seen in (step.get("close_at_state"), step.get("throw_at_state")):
                # Stop recording the engine.
                return
            outcome.engine_states.append(state.value)
            if any(step.get(way) == seen + 1 for way in _SUSPENDING):
                engine.suspend()
            if step.get("throw_at_state") == seen + 1 and state.value in ("WAITING", "ANALYZING"):
                engine.scheduler.errors.append(("", Failure.of(self._thrown)))

        engine.listeners[:] = [on_change]
        engine.watchers[:] = [entered]

    async def _seen(self, outcome: Outcome) -> Outcome:
        """Run an operation, and record the results that are visible from outside."""
        if isinstance(outcome.raised, Crash):
            self._engine, self._prepared = None, False
        flow, rows, _ = await self.store.load(_ID) if self._created else Snapshot(FlowRow(_ID, ""), {})
        if self._engine is not None:
            known = self._engine.scheduler.values.known()
            self._known = {name: values[0] if len(values) == 1 else values for name, values in known.items()}
        outcome.flow_state = flow.state
        outcome.steps = {name: [row.state, row.intention] for name, row in rows.items()}
        outcome.fetch_all = self._known
        return outcome


async def _suspended(engine: Engine) -> None:
    engine.suspend()


def _error(raised: Json) -> BaseException:
    kind, message = raised.get("type", ""), raised.get("message", "")
    if "failures" in raised:
        kind, _, message = raised["failures"][0].partition(": ")
    error: BaseException = getattr(builtins, kind, RuntimeError)(message)
    return error


def _event(change: Change) -> Json:
    event: list[Json] = [change.kind, change.name, str(change.old), str(change.new)]
    if change.kind != "flow" and change.new in _SAID:
        failed = isinstance(change.result, Failure)
        event.append({"failure": str(change.result)} if failed else change.result)
    return event


_STEPS = {
    "run": (_RUN, "_run"),
    "prepare": ({"op"}, "_prepare"),
    "reset": ({"op"}, "_reset"),
    "suspend": ({"op"}, "_suspend"),
    "reload": ({"op", "flow"}, "_reload"),
    "flag": ({"op", "set"}, "_flag"),
    "storage": ({"op", "ops"}, "_storage"),
}


# -- edits of the store ------------------------------------------------------------------------------------------------


def _save(row: StepRow, value: Json) -> StepRow:
    history = json.dumps([[json.dumps(value), {}]]) if row.kind == "retry" else None
    return row._replace(state="SUCCESS", result=json.dumps(value), history=history)


def _save_failure(row: StepRow, message: str) -> StepRow:
    return row._replace(state="FAILURE", failure=Failure("RuntimeError", message).encode())


def _save_retry_failure(row: StepRow, name: str, message: str) -> StepRow:
    history = json.loads(row.history or "[]")
    history[-1][1][name] = Failure("RuntimeError", message).encode()
    return row._replace(history=json.dumps(history))


def _set_state(row: StepRow, state: str) -> StepRow:
    return row._replace(state=StepState(state).value)


def _set_intention(row: StepRow, intention: str) -> StepRow:
    return row._replace(intention=intention)


_EDITS: dict[str, Callable[..., StepRow]] = {
    "save": _save,
    "save_failure": _save_failure,
    "save_retry_failure": _save_retry_failure,
    "set_atom_state": _set_state,
    "set_atom_intention": _set_intention,
}
