"""User code with tasks, flows and jobs."""

from collections.abc import Mapping
from typing import Any, assert_type

from lifecycle import FlowHandler, Flows, ForEach, JobQueue, Router, Times, current_task, graph, linear, task, unordered
from lifecycle.flows import (
    Attempt,
    Change,
    Failure,
    Flow,
    FlowState,
    Job,
    Retry,
    Run,
    RunInfo,
    SentEvent,
    Task,
    TaskContext,
    Verdict,
    send,
)


@task
async def fetch(url: str) -> bytes:
    assert_type(current_task(), TaskContext)
    return url.encode()


@task(provides="size", timeout=3, inject={"unit": "kB"})
def measure(fetch: bytes, unit: str) -> int:
    return len(fetch)


@fetch.revert
async def forget(result: bytes | Failure, failures: Mapping[str, Failure]) -> None: ...


# The revert of a failed task receives a `Failure`, unless it is called only for completed tasks.
@measure.revert(only_if_done=True)
def shrink(result: int) -> None: ...


@task(provides=["left", "right"])
def split(size: int) -> tuple[int, int]:
    return size, size


def plain(left: int) -> None: ...


# `Task` is one type for all functions, so that lists of tasks have one type.
assert_type(fetch, Task)
assert_type(measure, Task)
assert_type(fetch.name, str)
assert_type([fetch, measure], list[Task])
# The decorator for a revert returns the task, which keeps its name.
assert_type(forget, Task)
assert_type(shrink, Task)

# A name is not a function.
task("fetch")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
# No such setting exists.
measure.revert(only_if_failed=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
task(plain, retries=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
# A timeout is a number.
task(plain, timeout="3s")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]

# -- flows ------------------------------------------------------------------------------------------------------------

flow = linear(
    "all",
    fetch,
    unordered("both", measure, split, retry=Times(3, (0.1, 2.0, 10.0))),
    graph("last", plain, retry=ForEach(["a", "b"], provides="mirror")).when(measure, split, lambda results: True),
)
assert_type(flow, Flow)


class Patient:
    """A custom retry with the required methods."""

    def execute(self, history: list[Attempt]) -> int:
        return len(history)

    def on_failure(self, history: list[Attempt]) -> Verdict:
        return Verdict.RETRY if len(history) < 3 else Verdict.REVERT


retry: Retry = Patient()

# A flow begins with its name.
linear(fetch, measure)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# Names are not tasks.
linear("all", "fetch", "measure")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A number of attempts is not a retry.
linear("all", fetch, retry=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A wait must be seconds, a triple or a `Backoff`.
Times(3, "1s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A single value is not a sequence.
ForEach(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def runs(router: Router) -> None:
    async with Flows("flows.db", durable=True) as flows:
        run = flows.start(flow, id="7", url="http://localhost")
        assert_type(run, Run)
        assert_type(await run, dict[str, Any])
        assert_type(run.state, FlowState)
        assert_type(run.info(), RunInfo)
        async for change in run:
            assert_type(change, Change)
        assert_type(await run.suspend(), FlowState)
        assert_type(await flows.recover(flow), list[Run[Any]])
        router.handle("deploy/*", FlowHandler(flows, flow))
        router.add_source(flows.outbox())
        # An id is a string.
        flows.start(flow, id=7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
        # Only `task` turns a function into a task.
        flows.start(plain)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
        # `Flows` has no method for closing, because leaving the block closes it.
        flows.close()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    # `Flows` must be entered with ``async with``.
    with Flows():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass


async def jobs(flows: Flows, event: SentEvent) -> None:
    queue = JobQueue(flows)
    assert_type(event.topic, str)
    assert_type(await queue.enqueue("all", url="a", priority="high", after=3), Job)
    # A flow's arguments must be keyword arguments.
    await queue.enqueue("all", {"url": "a"})  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]


@task
def tell() -> None:
    send("told", {"n": 1})
