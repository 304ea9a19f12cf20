"""`Scheduler`: processes step results, and decides which step to execute or revert next.

This module does not await anything, read a clock or use a store, so tests can check every decision. The only user
functions that it calls are deciders and ``on_failure``, which must be synchronous and fast.
"""

from __future__ import annotations

import heapq
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from lifecycle.errors import FlowError, InvalidState
from lifecycle.flows.definition import Depth, RetryStep, Task
from lifecycle.flows.execution import NOTHING, NodeState, UnitOfWork, Values
from lifecycle.flows.records import Failure
from lifecycle.flows.retries import Attempt, Verdict
from lifecycle.flows.states import FlowState, Intention, StepState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lifecycle.flows.plan import Condition, Node, Plan
    from lifecycle.flows.records import OutboxRow, Snapshot, StepRow
    from lifecycle.flows.serializers import Codec

__all__ = ["Call", "Options", "Scheduler", "StepResult"]

_STARTED = (FlowState.RUNNING, FlowState.SUSPENDING, FlowState.RESUMING)
_RESETTABLE = (FlowState.PENDING, FlowState.SUCCESS, FlowState.FAILURE, FlowState.REVERTED)
_AT_WORK = frozenset({StepState.RUNNING, StepState.REVERTING})
_DONE = frozenset({StepState.SUCCESS, StepState.IGNORE})
#: All depths, from narrowest to widest.
_DEPTHS = [Depth.STEP, Depth.NEIGHBORS, Depth.FLOW, Depth.ALL]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options for running flows.

    Raises:
        ValueError: if ``concurrency`` is below 1.
    """

    #: The maximum number of steps that a flow runs at the same time; None means no limit.
    concurrency: int | None = None
    #: True to end a flow after a failure without reverting any steps.
    never_resolve: bool = False
    #: True to consult the enclosing retry if a retry returns REVERT. Without an enclosing retry, everything is
    #: reverted.
    defer_reverts: bool = False
    #: True to run the function of each workflow again when it has ended, with the recorded results. If it calls other
    #: operations or returns another value, the run stops with `WorkflowChanged`. Meant for tests.
    check_replay: bool = False

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, or None, got {self.concurrency!r}")


class Call(NamedTuple):
    """A call to one of a step's functions, and its arguments."""

    node: NodeState
    #: True to revert the step, False to execute it.
    reverting: bool
    arguments: dict[str, Any]
    #: The events that the function sends while it runs.
    sent: list[OutboxRow]
    #: Seconds to wait before the call.
    pause: float = 0.0


class StepResult(NamedTuple):
    """A function's result, and the text that is stored for it."""

    text: str
    #: The result, or `NOTHING` if it is decoded only when needed.
    value: Any

    @property
    def announced(self) -> Any:
        """The value to announce, or None if it was not decoded because there are no listeners."""
        return None if self.value is NOTHING else self.value


class Scheduler:
    """Makes all decisions for one flow, starting from the state in ``snapshot``."""

    def __init__(self, plan: Plan, snapshot: Snapshot, codec: Codec, options: Options) -> None:
        self._plan, self._options = plan, options
        self._id = snapshot.flow.id
        #: The errors that end the flow immediately: failed reverts, missing arguments, and errors raised by deciders
        #: and retries.
        self.errors: list[tuple[str, Failure]] = []
        self.nodes: list[NodeState] = [NodeState(node) for node in plan.nodes]
        self.steps: list[NodeState] = [node for node in self.nodes if node.step is not None]
        self.values: Final = Values(plan, self.nodes, codec, codec.decode(snapshot.flow.store))
        self.work: Final = UnitOfWork(snapshot.flow, codec, self.nodes)
        #: The current time by the store's clock. The engine sets it before each call to `schedule`.
        self.now: float = 0.0
        # True if everything must be reverted. Stays True until the flow is reset.
        self._reverting_all = False
        # All steps that have failed, by number, even if they succeeded later.
        self._failed: dict[int, NodeState] = {}
        # The ready steps: highest priority first, then in flow order.
        self._ready: list[tuple[int, int]] = []
        # `take_back` uses these to undo the last call to `schedule`: the previous states, the nodes that were started,
        # and the previous number of errors.
        self._before: list[tuple[NodeState, tuple[Any, ...]]] = []
        self._begun: list[NodeState] = []
        self._errors_before = 0
        self._load(snapshot.steps, codec)

    def _load(self, rows: dict[str, StepRow], codec: Codec) -> None:
        for node in self.steps:
            if (row := rows.get(node.name)) is not None:
                node.load(row, codec)
                if node.failure is not None:
                    self._failed[node.number] = node
            else:
                self.work.add(node)
        names = {node.name for node in self.steps}
        removed = ((name, row.failure or row.revert_failure) for name, row in rows.items() if name not in names)
        # The failures of steps that were removed from the flow.
        self._removed = {name: Failure.decode(text) for name, text in removed if text}

    @property
    def state(self) -> FlowState:
        """The state that the flow will have once all changes are written."""
        return self.work.state

    def failures(self) -> dict[str, Failure]:
        """Return the failures, by step name, of steps that have not run again since they failed."""
        failed = [self._failed[number] for number in sorted(self._failed)]
        return {node.name: node.failure for node in failed if node.failure is not None} | self._removed

    # -- between runs -------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Prepare a loaded flow to run.

        A flow interrupted by a crash becomes SUSPENDED, and a REVERTED flow is reset.
        """
        if self.state in _STARTED:
            self.work.move_flow(FlowState.RESUMING)
            self.work.move_flow(FlowState.SUSPENDED)
        elif self.state is FlowState.REVERTED:
            self.reset()

    def reset(self) -> None:
        """Delete all results, but keep the steps' attempt counts.

        Raises:
            InvalidState: if the flow is neither PENDING nor ended.
        """
        if self.state not in _RESETTABLE:
            raise InvalidState(
                f"flow {self._id!r} is {self.state} and cannot be reset; the state must be SUCCESS, FAILURE or REVERTED"
            )
        for planned in self._plan.resets:
            node = self.nodes[planned.number]
            if node.state in _AT_WORK:
                # This happens after the flow's job was discarded.
                self.work.move(node, node.before_work, reason="cancelled")
            self.work.renew(node, "reset")
        self.work.move_flow(FlowState.PENDING, "reset")
        self.errors.clear()
        self._failed.clear()
        self._reverting_all = False

    def begin(self) -> None:
        """Move the flow to RUNNING.

        Raises:
            InvalidState: if the transition is not allowed.
        """
        self.errors.clear()
        self.work.move_flow(FlowState.RUNNING)

    def resume(self) -> None:
        """Handle steps that were interrupted, or that failed without a verdict, before the flow was loaded."""
        for node in self.steps:
            if node.state is StepState.FAILURE and node.failure is not None and not self._options.never_resolve:
                self._resolve(node, node.failure)
        for node in self.steps:
            if node.revert_failure is not None:
                # A revert already failed in an earlier run, so we don't revert any further steps.
                self.errors.append((node.name, node.revert_failure))
            if node.state is StepState.RETRYING:
                self._renew_after(node)
            node.restart = node.state in _AT_WORK
        self.work.count(self.nodes)
        self.find_ready()

    # -- starting steps -----------------------------------------------------------------------------------------------

    def find_ready(self) -> None:
        """Call the deciders of newly ready steps, and queue the steps that may run."""
        # The list can grow during the loop, because skipping a step may make others ready.
        became_ready = self.work.became_ready
        for node in became_ready:
            if self.errors:
                break
            if not node.queued and node.is_ready() and self._conditions_hold(node):
                self._queue(node)
        became_ready.clear()

    def _queue(self, node: NodeState) -> None:
        assert node.step is not None
        node.queued = True
        heapq.heappush(self._ready, (-node.step.priority, node.number))

    def _conditions_hold(self, node: NodeState) -> bool:
        """Return True if the deciders for ``node`` allow it to run. If not, skip the node and its dependents."""
        if not node.planned.conditions or node.state is not StepState.PENDING:
            return True
        try:
            skipped = _skipped(self._plan, node.planned, self.values, self.nodes)
        except Exception as error:  # noqa: BLE001  # a decider's error ends the flow, and nothing else
            self.errors.append((node.name, Failure.of(error)))
            return False
        for number in skipped:
            if self.nodes[number].state is StepState.PENDING:
                self.work.move(self.nodes[number], StepState.IGNORE, intention=Intention.IGNORE)
        return not skipped

    @property
    def may_schedule(self) -> bool:
        """True if a step can start now."""
        return self.state is FlowState.RUNNING and bool(self._ready) and not self.errors

    def schedule(self, limit: int | None) -> list[Call]:
        """Start up to ``limit`` ready steps."""
        self._before, self._begun, self._errors_before = [], [], len(self.errors)
        calls: list[Call] = []
        while self.may_schedule and (limit is None or len(calls) < limit):
            node = self.nodes[heapq.heappop(self._ready)[1]]
            node.queued = False
            if not node.is_ready():
                continue
            self._before.append((node, node.saved()))
            self._begun.append(node)
            try:
                calls.append(self._start(node))
            except Exception as error:  # noqa: BLE001  # it ends the flow; the step has not started
                self.errors.append((node.name, Failure.of(error)))
        return calls

    def take_back(self, seq: int) -> None:
        """Undo the last call to `schedule`. Its changes, numbered from ``seq``, were stored but not announced."""
        for node, saved in reversed(self._before):
            node.restore(saved)
            self.work.add(node)
        del self.errors[self._errors_before :]
        self.work.count(self.nodes)
        self.work.became_ready.clear()
        for node in self._begun:
            self._queue(node)
        self.work.take_back(seq)

    def _start(self, node: NodeState) -> Call:
        assert node.step is not None
        if node.state is StepState.REVERTING or (node.can_revert() and node.intention is Intention.REVERT):
            undo = node.undo
            arguments = {} if undo is None else self.values.arguments(node, undo, self.failures)
            self._move_to_work(node, StepState.REVERTING)
            return Call(node, True, arguments, [])
        arguments = self.values.arguments(node, node.step.function, self.failures)
        pause = self._pause(node)
        if node.intention is Intention.RETRY:
            node.answered = None
            self.work.move(node, StepState.RETRYING, intention=Intention.EXECUTE)
            self._renew_after(node)
        if not node.restart:
            node.round += 1
        node.attempt += 1
        self._move_to_work(node, StepState.RUNNING)
        return Call(node, False, arguments, [], pause)

    def _pause(self, node: NodeState) -> float:
        """Return how many seconds a step must still wait before its next attempt.

        A crash does not restart the wait.
        """
        delay = getattr(node.step.retry, "delay", None) if node.step is not None else None
        seconds: float = delay(list(node.history)) if delay else 0.0
        if seconds <= 0:
            return 0.0
        if not node.due:
            node.due = self.now + seconds
            return seconds
        # A change to the clock must not prolong the wait.
        return min(max(0.0, node.due - self.now), seconds)

    def _move_to_work(self, node: NodeState, state: StepState) -> None:
        if node.restart:
            node.restart = False
            self.work.restarted(node)
        else:
            self.work.move(node, state)

    def _renew_after(self, retry: NodeState) -> None:
        """Make the steps after ``retry`` ready for another attempt."""
        for planned in self._plan.steps_after(retry.planned):
            node = self.nodes[planned.number]
            self._before.append((node, node.saved()))
            self.work.renew(node)

    # -- results ------------------------------------------------------------------------------------------------------

    def finish(self, call: Call, outcome: StepResult | Failure) -> None:
        """Process the outcome of a finished call."""
        node = call.node
        if call.reverting:
            self._finish_revert(node, outcome)
        elif isinstance(outcome, Failure) and self._tries_again(node, outcome):
            # The next attempt belongs to the same round and has the same idempotency key.
            node.round -= 1
            self.work.move(node, StepState.PENDING, reason="retry", result=outcome)
        elif isinstance(outcome, Failure):
            node.failure = outcome
            self._failed[node.number] = node
            self.work.move(node, StepState.FAILURE, result=outcome, text=outcome.encode())
            if self._options.never_resolve:
                self.errors.append((node.name, outcome))
            else:
                self._resolve(node, outcome)
        else:
            node.result, node.value = outcome
            if node.kind == "retry":
                node.history = [*node.history, Attempt(outcome.value, {})]
                node.due = 0.0
            self.work.move(node, StepState.SUCCESS, result=outcome.announced, text=outcome.text)
        if isinstance(outcome, StepResult):
            self.work.send(call.sent)

    @staticmethod
    def _tries_again(node: NodeState, failure: Failure) -> bool:
        """Add a failed attempt to the history of a task, and return True if the task has another one."""
        if not isinstance(node.step, Task) or node.step.retry is None or node.intention is not Intention.EXECUTE:
            return False
        node.history, node.due = [*node.history, Attempt(None, {node.name: failure})], 0.0
        return node.step.retry.allows(node.history)

    def _finish_revert(self, node: NodeState, outcome: StepResult | Failure) -> None:
        if isinstance(outcome, Failure):
            # Once a revert has failed, we don't revert any other steps.
            node.revert_failure = outcome
            self.work.move(node, StepState.REVERT_FAILURE, result=outcome, text=outcome.encode())
            self.errors.append((node.name, outcome))
            return
        node.result, node.value = None, NOTHING
        node.history = []
        if node.undo is not None:
            node.undone = node.round
        self.work.move(node, StepState.REVERTED, result=outcome.announced, text=outcome.text)

    def cancel(self, node: NodeState) -> None:
        """Treat a step that was cancelled while it ran as if it had never started."""
        state = node.before_work
        if state is StepState.PENDING:
            # The next attempt belongs to the same round and has the same idempotency key.
            node.round -= 1
        self.work.move(node, state, reason="cancelled")

    # -- failures -----------------------------------------------------------------------------------------------------

    def _resolve(self, node: NodeState, failure: Failure) -> None:
        """Ask the retries around ``node`` for a verdict, innermost first, and set the resulting intentions."""
        try:
            verdict, retry = self._verdict(node, failure)
        except Exception as error:  # noqa: BLE001  # a retry's error ends the flow, and nothing else
            self.errors.append((node.name, Failure.of(error)))
            return
        for other, intention in self._intentions(verdict, retry):
            self.work.set_intention(other, intention)

    def _verdict(self, node: NodeState, failure: Failure) -> tuple[Verdict, NodeState | None]:
        """Return the verdict on a failure, and the retry whose flow is affected, or None if everything is affected.

        Raises:
            Exception: any error raised by a retry, or `FlowError` if the retry did not return a verdict.
        """
        if node.planned.retry is None:
            return Verdict.REVERT_ALL, None
        retry = self.nodes[node.planned.retry]
        verdict = self._ask(retry, node, failure)
        if verdict is not Verdict.REVERT:
            return verdict, retry
        above, outer = self._verdict(retry, failure)
        if self._options.defer_reverts or (outer is not None and above is not Verdict.REVERT):
            return above, outer
        return Verdict.REVERT, retry

    def _ask(self, retry: NodeState, node: NodeState, failure: Failure) -> Verdict:
        """Add the failure to the history of ``retry``, and return its verdict."""
        step = cast("RetryStep", retry.step)
        if retry.history:
            failures = cast("dict[str, Failure]", retry.history[-1].failures)
            failures[node.name] = failure
            self.work.touch(retry)
        answer = step.question.fn(**self.values.arguments(retry, step.question, self.failures))
        try:
            return Verdict(answer)
        except ValueError:
            raise FlowError(f"the retry {retry.name!r} must return a Verdict, got {answer!r}") from None

    def _intentions(self, verdict: Verdict, retry: NodeState | None) -> Iterable[tuple[NodeState, Intention]]:
        """Return the intentions to set, or nothing if an earlier failure already set them."""
        if self._reverting_all:
            return []
        if verdict is Verdict.REVERT_ALL or retry is None:
            self._reverting_all = True
            return [(node, Intention.REVERT) for node in self.steps]
        intention = Intention.REVERT if verdict is Verdict.REVERT else Intention.RETRY
        if retry.answered in (intention, Intention.REVERT):
            return []
        retry.answered = intention
        after = [(self.nodes[node.number], Intention.REVERT) for node in self._plan.steps_after(retry.planned)]
        # Keep reverting a retry that is already being reverted.
        keep = intention is Intention.RETRY and retry.intention is Intention.REVERT
        return after if keep else [(retry, intention), *after]

    # -- ending the flow ----------------------------------------------------------------------------------------------

    def ending(self) -> FlowState:
        """Return the state that the flow would end in if it ended now.

        FAILURE means that a step was not reverted, either because its revert failed or because reverting is disabled.
        The state is SUSPENDED if there are steps left to run, SUCCESS if all steps are done, and REVERTED otherwise.
        """
        states = {(node.state, node.intention) for node in self.steps}
        unresolved = (StepState.FAILURE, Intention.EXECUTE) in states
        if self.errors or unresolved or any(state is StepState.REVERT_FAILURE for state, _ in states):
            return FlowState.FAILURE
        if any(node.is_ready() or node.state in _AT_WORK or node.state is StepState.RETRYING for node in self.steps):
            return FlowState.SUSPENDED
        return FlowState.SUCCESS if all(state in _DONE for state, _ in states) else FlowState.REVERTED

    def end(self) -> FlowState:
        """Move the flow to its final state. Call this only when no steps are running."""
        state = self.ending()
        self.work.move_flow(state)
        return state

    def error(self) -> BaseException | None:
        """Return the error or exception group that the flow failed with, or None if it did not fail."""
        if self.state not in (FlowState.FAILURE, FlowState.REVERTED):
            return None
        not_undone = [(node.name, node.revert_failure) for node in self.steps if node.revert_failure]
        if self.state is FlowState.FAILURE and (self.errors or not_undone):
            return _joined(self._plan.name, self.errors or not_undone)
        failures = [*self.failures().items(), *not_undone]
        return _joined(self._plan.name, failures) if failures else None


def _joined(flow: str, failures: Sequence[tuple[str, Failure]]) -> BaseException:
    """Return the error, or an exception group if there are several."""
    errors = [failure.exception(name) for name, failure in failures]
    if len(errors) == 1:
        return errors[0]
    kind = ExceptionGroup if all(isinstance(each, Exception) for each in errors) else BaseExceptionGroup
    return kind(f"several tasks of the flow {flow!r} failed", errors)  # type: ignore[type-var]  # the kind fits


# -- deciders ----------------------------------------------------------------------------------------------------------


def _skipped(plan: Plan, node: Node, values: Values, nodes: Sequence[NodeState]) -> list[int]:
    """Call the deciders for ``node``. If any of them returns false, return the nodes to skip, including ``node``.

    A decider is not called if every step whose result it would receive was skipped.

    Raises:
        Exception: any error raised by a decider.
    """
    conditions = [each for each in node.conditions if _counts(each, nodes)]
    numbers = sorted({number for each in conditions for number in each.sources})
    results = values.results(numbers)
    against = [each.depth for each in conditions if not _holds(each, dict(results))]
    if not against:
        return []
    return [node.number, *_dependents(plan, node, max(against, key=_DEPTHS.index))]


def _counts(condition: Condition, nodes: Sequence[NodeState]) -> bool:
    sources = condition.sources
    return not sources or any(nodes[number].state is not StepState.IGNORE for number in sources)


def _holds(condition: Condition, results: dict[str, Any]) -> object:
    answer = condition.decider(results)
    if inspect.isawaitable(answer):
        # A coroutine object is always true.
        if inspect.iscoroutine(answer):
            answer.close()
        raise FlowError(f"the decider {condition.decider!r} returned an awaitable; return whether to run the step")
    return answer


def _dependents(plan: Plan, node: Node, depth: Depth) -> list[int]:
    """Return the steps to skip together with ``node``."""
    if depth is Depth.ALL:
        return [each.number for each in plan.steps_after(node)]
    if depth is Depth.NEIGHBORS:
        return [number for number in node.successors if plan.nodes[number].kind == "task"]
    if depth is Depth.STEP:
        return []
    # The steps that follow in the same flow, excluding those in nested flows.
    seen: set[int] = set()
    ways = [node]
    while ways:
        for number in ways.pop().successors:
            if number not in seen and plan.nodes[number].step is not None:
                seen.add(number)
                ways.append(plan.nodes[number])
    return sorted(seen)
