"""The operations that the functions of workflows call.

Each operation that a function calls (`step`, `sleep`, `wait_for`, `child`, `gather`, `undo`)
gets a number when it is called. After a restart, the function runs again from its start, and the operations that have
finished return their stored results. `WorkflowEngine` in `workflow_engine` carries them out.
"""

from __future__ import annotations

import asyncio
import inspect
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, overload

from lifecycle._durations import in_seconds, in_seconds_or_none
from lifecycle._util import short_name
from lifecycle.errors import FlowError
from lifecycle.flows.definition import Flow, Task, Workflow
from lifecycle.flows.retries import Times
from lifecycle.flows.stores.base import storable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
    from types import CoroutineType, FrameType
    from typing import Self

    from lifecycle._durations import Duration
    from lifecycle.flows.definition import Item

__all__ = [
    "BRANCH",
    "RESERVED",
    "Branch",
    "Call",
    "Operations",
    "Watched",
    "child",
    "gather",
    "patch",
    "sleep",
    "step",
    "undo",
    "wait_for",
]

T = TypeVar("T")

#: Signals whose names begin with this prefix are sent by this library.
RESERVED = "lifecycle."


# -- the running workflow ----------------------------------------------------------------------------------------------


class Operations(Protocol):
    """The engine that carries out operations: `WorkflowEngine`. Each operation has its number and its name."""

    async def step(self, call: Call) -> Any:
        """Call a step's function until it succeeds or has no attempts left, and store the outcome."""

    def undo(self, call: Call) -> None:
        """Register a call for the case that the workflow fails."""

    async def sleep(self, name: str, seconds: float) -> None:
        """Wait until the recorded time."""

    async def wait_for(self, name: str, signal: str, limit: float | None) -> Any:
        """Wait for a signal, and record that it was received."""

    async def child(
        self,
        name: str,
        item: Item,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        id: str | None,  # noqa: A002  # the natural name
    ) -> Any:
        """Start a child, wait for its end, and record its result."""

    async def gather(self, number: str, awaitables: Sequence[Awaitable[Any]]) -> list[Any]:
        """Run ``awaitables`` at the same time, each in a branch of its own, and return their results in order."""
        ...

    def patch(self, branch: Branch, name: str) -> bool:
        """Return True if the new code must run."""
        ...

    def refuse(self, error: FlowError) -> None:
        """Stop because the workflow's function does what it must not do. Nothing is recorded."""


class Branch:
    """A line of execution in a workflow: its function, or one of the awaitables of a `gather`."""

    __slots__ = ("busy", "count", "engine", "interrupted", "prefix", "step", "task", "wait")

    def __init__(self, engine: Operations, prefix: str = "") -> None:
        self.engine: Operations = engine
        self.prefix: str = prefix
        #: The number of the last operation that the branch has called.
        self.count: int = 0
        self.task: asyncio.Task[Any] | None = None
        #: True while an operation is carried out.
        self.busy: bool = False
        #: The name of the step whose function is running, or empty.
        self.step: str = ""
        #: The durable wait that blocks the branch.
        self.wait: Any = None
        #: True if the engine has cancelled the running step.
        self.interrupted: bool = False

    def next(self) -> str:
        """Return the number of a new operation."""
        self.count += 1
        return f"{self.prefix}{self.count}"


#: The branch that the current task runs.
BRANCH: ContextVar[Branch] = ContextVar("lifecycle_workflow")


class Call(NamedTuple):
    """A call of `step` or `undo`."""

    kind: str
    #: The number and the name.
    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    retry: Times | None
    timeout: float | None


def _branch(operation: str) -> Branch:
    """Return the branch that calls an operation.

    Raises:
        LookupError: if the caller is not a workflow.
        FlowError: if the caller is a step, or a task that the workflow's function has created.
    """
    try:
        branch = BRANCH.get()
    except LookupError:
        raise LookupError(
            f"{operation}() was called outside a workflow; call it from a function decorated with @workflow"
        ) from None
    if branch.step:
        raise FlowError(f"{operation}() was called in step {branch.step!r}; call it from the workflow's function")
    if branch.task is not asyncio.current_task():
        raise FlowError(
            f"{operation}() was called in a task that the workflow does not know; use gather from lifecycle.flows "
            "instead of asyncio.gather, create_task or a task group"
        )
    return branch


def _call(  # the parts of a call
    kind: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    name: str | None,
    retry: Times | None,
    timeout: Duration | None,
) -> tuple[Branch, Call]:
    branch = _branch(kind)
    if isinstance(fn, Task):
        retry, timeout, name = retry or fn.retry, timeout or fn.timeout, name or fn.name
        fn = fn.fn
    if isinstance(fn, (Flow, Workflow)) or not callable(fn):
        raise TypeError(f"{kind}() takes a function or a task, got {fn!r}; run flows and workflows with child(…)")
    if retry is not None and not isinstance(retry, Times):
        raise TypeError(f"{kind}(): retry must be Times(…), got {retry!r}")
    seconds = in_seconds_or_none("timeout", timeout)
    text = short_name(fn) if name is None else storable(name)
    return branch, Call(kind, f"{branch.next()} {text}", fn, args, kwargs, retry, seconds)


async def _carry_out(operation: Callable[..., Awaitable[Any]], *given: Any) -> Any:
    # `gather` may have moved the operation to a branch of its own.
    branch = BRANCH.get()
    branch.busy = True
    try:
        return await operation(*given)
    finally:
        branch.busy = False


#: Modules and names of functions that wait for a time, and what a workflow's author calls them.
_SLEEPS = {("asyncio.tasks", "sleep"): "asyncio.sleep", ("lifecycle.runtime.waiting", "sleep"): "lifecycle.sleep"}


class Watched:
    """Awaits the coroutine of a branch, and refuses sleeps that are not durable, such as `asyncio.sleep`.

    Whenever the coroutine waits outside an operation, this looks at the coroutines that it awaits.
    """

    __slots__ = ("_branch", "_steps", "_work")

    def __init__(self, branch: Branch, work: CoroutineType[Any, Any, Any]) -> None:
        self._branch, self._work = branch, work
        self._steps = work.__await__()

    @property
    def cr_frame(self) -> FrameType | None:
        """The frame of the coroutine. Stacks of tasks are printed with it."""
        return self._work.cr_frame

    @property
    def cr_await(self) -> Any:
        """The object that the coroutine awaits. Stacks of tasks are printed with it."""
        return self._work.cr_await

    def __await__(self) -> Generator[Any, Any, Any]:
        return self  # type: ignore[return-value]  # it has the methods that are used

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        awaited = self._steps.__next__()
        # `asyncio.sleep(0)` awaits nothing.
        if awaited is not None and not self._branch.busy:
            self._look()
        return awaited

    def throw(self, *error: Any) -> Any:
        """Raise an error where the coroutine waits."""
        awaited = self._steps.throw(*error)
        if awaited is not None and not self._branch.busy:
            self._look()
        return awaited

    def close(self) -> None:
        """Close the coroutine."""
        self._steps.close()

    def _look(self) -> None:
        work: Any = self._work
        caller: FrameType | None = None
        while inspect.iscoroutine(work) and (frame := work.cr_frame) is not None:
            called = _SLEEPS.get((str(frame.f_globals.get("__name__")), work.cr_code.co_name))
            if called is not None:
                self._branch.engine.refuse(_sleeps(called, caller))
                return
            work, caller = work.cr_await, frame


def _sleeps(called: str, caller: FrameType | None) -> FlowError:
    place = "" if caller is None else f" at {caller.f_code.co_filename}:{caller.f_lineno}"
    return FlowError(
        f"the workflow calls {called}{place}, which starts over after a restart; call lifecycle.flows.sleep instead, "
        f"or {called} in a step"
    )


# -- operations --------------------------------------------------------------------------------------------------------


@overload
def step(
    fn: Task,
    /,
    *args: Any,
    name: str | None = None,
    retry: Times | None = None,
    timeout: Duration | None = None,
    **kwargs: Any,
) -> Coroutine[Any, Any, Any]: ...
@overload
def step(
    fn: Callable[..., Coroutine[Any, Any, T]],
    /,
    *args: Any,
    name: str | None = None,
    retry: Times | None = None,
    timeout: Duration | None = None,
    **kwargs: Any,
) -> Coroutine[Any, Any, T]: ...
@overload
def step(
    fn: Callable[..., T],
    /,
    *args: Any,
    name: str | None = None,
    retry: Times | None = None,
    timeout: Duration | None = None,
    **kwargs: Any,
) -> Coroutine[Any, Any, T]: ...
def step(
    fn: Callable[..., Any],
    /,
    *args: Any,
    name: str | None = None,
    retry: Times | None = None,
    timeout: Duration | None = None,
    **kwargs: Any,
) -> Coroutine[Any, Any, Any]:
    """Call a function and store its result. After a restart, return the stored result instead.

    A synchronous function runs in a thread. If the process dies while the function runs, or if the function fails while
    the program stops, it runs again, with the same idempotency key (see `current_task`).

    Args:
        fn: The function, async or not, or a task.
        args: Its arguments.
        name: The name of the step. By default, the function's name.
        retry: How often to attempt the step, and on which errors. By default, once.
        timeout: Seconds that one attempt may take. After this time, it is cancelled and fails with `TimeoutError`.
        kwargs: Its keyword arguments, except ``name``, ``retry`` and ``timeout``. Pass those with `functools.partial`.

    Returns:
        The function's result, as the codec returns it.

    Raises:
        StepFailed: if the last attempt has failed. The cause is its error, unless the program was restarted since.
        LookupError: if called outside a workflow.
    """
    branch, call = _call("step", fn, args, kwargs, name=name, retry=retry, timeout=timeout)
    return _carry_out(branch.engine.step, call)


def undo(
    fn: Callable[..., Any],
    /,
    *args: Any,
    name: str | None = None,
    retry: Times | None = None,
    timeout: Duration | None = None,
    **kwargs: Any,
) -> None:
    """Call a function if the workflow fails or is cancelled later.

    Such functions run one after another, the last one first, and are recorded like steps. If one of them fails, the
    others still run. The arguments are those of `step`.

    Raises:
        LookupError: if called outside a workflow.
    """
    branch, call = _call("undo", fn, args, kwargs, name=name, retry=retry, timeout=timeout)
    branch.engine.undo(call)


def sleep(seconds: Duration) -> Coroutine[Any, Any, None]:
    """Wait for a time that continues while the program does not run. A long wait needs no memory.

    In the function of a workflow, `asyncio.sleep` and `lifecycle.sleep` are refused. Steps may call them.

    Args:
        seconds: Seconds or a timedelta, from the first time the workflow gets here.

    Raises:
        LookupError: if called outside a workflow.
    """
    wait = in_seconds("seconds", seconds, least=0, finite=True)
    branch = _branch("sleep")
    return _carry_out(branch.engine.sleep, f"{branch.next()} sleep", wait)


def wait_for(name: str, *, timeout: Duration | None = None) -> Coroutine[Any, Any, Any]:
    """Wait for a signal sent with `Flows.signal`, and return its data.

    Signals of the same name are received in the order in which they were sent, each by one call. A signal that was sent
    before the call is kept for it.

    Args:
        name: The name of the signal.
        timeout: Seconds until `TimeoutError` is raised, which continue while the program does not run.

    Raises:
        TimeoutError: if no signal has arrived in time.
        LookupError: if called outside a workflow.
    """
    limit = in_seconds_or_none("timeout", timeout, least=0, finite=True)
    branch = _branch("wait_for")
    text = storable(name)
    return _carry_out(branch.engine.wait_for, f"{branch.next()} {text}", text, limit)


@overload
def child(
    item: Workflow[..., T],
    /,
    *args: Any,
    id: str | None = None,  # the natural name
    **kwargs: Any,
) -> Coroutine[Any, Any, T]: ...
@overload
def child(
    item: Flow | Task,
    /,
    *args: Any,
    id: str | None = None,  # the natural name
    **kwargs: Any,
) -> Coroutine[Any, Any, dict[str, Any]]: ...
def child(
    item: Item,
    /,
    *args: Any,
    id: str | None = None,  # noqa: A002  # the natural name
    **kwargs: Any,
) -> Coroutine[Any, Any, Any]:
    """Start a workflow or a flow with its own id, and wait for its result.

    Args:
        item: The workflow, the flow or the task.
        args: The arguments of the workflow.
        id: The id of the child. By default, this workflow's id and the number of the call: ``order-1/3``.
        kwargs: The keyword arguments of the workflow, or the values for the flow.

    Raises:
        StepFailed: if the child has failed or was cancelled.
        LookupError: if called outside a workflow.
    """
    branch = _branch("child")
    number = branch.next()
    return _carry_out(branch.engine.child, f"{number} {item.name}", item, args, kwargs, id)


def gather(*awaitables: Awaitable[T]) -> Coroutine[Any, Any, list[T]]:
    """Run several steps, or async functions that call steps, at the same time, and return their results in order.

    All of them run to their end. If any have failed, the error of the first in order is raised then.

    Raises:
        LookupError: if called outside a workflow.
    """
    branch = _branch("gather")
    return _carry_out(branch.engine.gather, branch.next(), awaitables)


def patch(name: str) -> bool:
    """Return True if a workflow that has changed should run its new code here, or False for its old code.

    A workflow that was past this point before the change gets False. All others get True. Remove the old code when no
    old workflow is left, and the call when no workflow that has called it is left.

    Args:
        name: The name of the change, which must be unique in the workflow.

    Raises:
        LookupError: if called outside a workflow.
    """
    branch = _branch("patch")
    return branch.engine.patch(branch, storable(name))
