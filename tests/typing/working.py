"""User code with workers, supervisors, pools, and their states."""

import sys
import threading
from typing import Any, assert_type

from lifecycle import (
    Backoff,
    BaseWorker,
    ContainerWorker,
    Exit,
    Gate,
    Heartbeat,
    Intensity,
    Pool,
    ProbeResult,
    ProcessWorker,
    Recycle,
    Restart,
    Sessions,
    Spec,
    Status,
    StatusEvent,
    Strategy,
    Supervisor,
    TaskWorker,
    ThreadWorker,
    WorkerState,
    handover,
    stop_and_wait,
)
from lifecycle.handlers import PoolHandler
from lifecycle.workers import Worker


async def serve() -> None: ...


async def loop(gate: Gate) -> None:
    await gate.checkpoint()


async def of_a_number(number: int) -> None: ...


def blocking(stop: threading.Event) -> None:
    stop.wait()


def plain() -> None: ...


class Own:
    """A custom worker with the required methods."""

    @property
    def status(self) -> Status:
        return Status.RUNNING

    async def start(self) -> None: ...

    async def stop(self, timeout: float | None = None) -> None: ...

    async def wait(self) -> Exit:
        raise NotImplementedError

    def state(self) -> WorkerState:
        raise NotImplementedError


class Derived(BaseWorker):
    """A worker that inherits from `BaseWorker`."""

    async def probe(self) -> ProbeResult:
        return ProbeResult(healthy=True)


async def workers() -> None:
    worker = ProcessWorker("api", sys.executable, "-c", "pass", env={"A": "1"}, output=print, ready="port:80")
    worker.set_env("B", "2")
    async with worker as entered:
        assert_type(entered, ProcessWorker)
        assert_type(worker.status, Status)
        assert_type(worker.state().children, tuple[WorkerState, ...])
    assert_type(await stop_and_wait(worker, timeout=3), Exit)
    assert_type((await worker.wait()).exit_code, int | None)
    TaskWorker("job", serve)
    TaskWorker("job", loop, stop_timeout=3)
    ThreadWorker("thread", blocking)
    ContainerWorker("db", "postgres", env={"A": "1"})
    # An object with the right methods is also a worker at run time.
    assert isinstance(Own(), Worker)
    shaped: Worker = Own()
    assert_type(await stop_and_wait(shaped), Exit)
    # The async function must not take arguments.
    TaskWorker("job", of_a_number)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # A plain function needs a ThreadWorker.
    TaskWorker("job", plain)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # A thread's function must take the event that stops it.
    ThreadWorker("thread", plain)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # A command's words are separate arguments, not a list.
    ProcessWorker("api", [sys.executable, "-c", "pass"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# -- supervisors ------------------------------------------------------------------------------------------------------

tree = Supervisor(
    "tree",
    Spec("task", serve),
    Spec("gate", loop, restart="on_failure", backoff=Backoff(initial=1), first_start="retry"),
    Spec("dash", serve, restart="on-failure"),
    Spec("process", [sys.executable, "-c", "pass"], ready="port:80", restart=Restart.NEVER),
    Spec("settings", ["true"], env={"A": "1"}, cwd="/", output=print, start_timeout=3, user="nobody"),
    Spec("probe", serve, probe="cmd:true", probe_interval=3),
    Spec("worker", lambda: ProcessWorker("api", "true")),
    Spec("own", Own, significant=True),
    Spec("tree", lambda: Supervisor("below", Spec("task", serve))),
    strategy="rest_for_one",
    intensity=Intensity(5, within=30),
    stop_order="parallel",
)
Supervisor("tree", strategy=Strategy.ONE_FOR_ALL, on_limit="pause", auto_shutdown="any_significant")


def make(name: str) -> ProcessWorker:
    return ProcessWorker(name, "true")


async def make_slowly(name: str) -> ProcessWorker:
    return ProcessWorker(name, "true")


# A default argument binds the loop variable's current value.
for name in ("a", "b"):
    Spec(name, lambda name=name: make(name))
    Spec(name, lambda name=name: make_slowly(name))

# The function must return a worker.
Spec("task", plain)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A spec takes a function, not a coroutine.
Spec("task", serve())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A spec takes a function, not a worker, because each start needs a new worker.
Spec("task", TaskWorker("job", serve))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# The async function must not take arguments.
Spec("task", of_a_number)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# This is not a valid value of restart.
Spec("task", serve, restart="sometimes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# Settings are keyword arguments.
Spec("task", serve, "never")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
# This is not a valid strategy.
Supervisor("tree", strategy="one_for_two")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# A child needs a spec.
Supervisor("tree", serve)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def supervised() -> None:
    async with tree:
        await tree.add(Spec("late", serve))
        await tree.restart("late")
        assert_type(tree.workers(), tuple[WorkerState, ...])
        async for event in tree.watch():
            assert_type(event, StatusEvent)
    assert_type(handover().attempt, int)
    # A spec is immutable.
    Spec("task", serve).name = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


# -- pools ------------------------------------------------------------------------------------------------------------

pool = Pool(
    "numbers",
    "package.module:Class",
    size=(1, 4),
    recycle=Recycle(),
    sessions=Sessions(mode="strict"),
    heartbeat=Heartbeat(),
)
PoolHandler(pool, "add")


def add(a: int, b: int) -> int:
    return a + b


async def calls() -> None:
    # The codec may change the result's type (a tuple may become a list), so only the caller can declare it.
    total: int = await pool.call("add", 1, b=2, session="s", deadline=3)
    assert_type(await pool.call(add, 1, 2), Any)
    async for row in pool.stream("rows"):
        assert_type(row, Any)
    async for square in pool.map("square", range(total), ordered=False):
        assert_type(square, Any)
    async with pool.lease("session") as member:
        await member.call("add", 1, 2)
    assert_type(await pool.resize(1, 2), None)
    assert_type(await pool.probe(), ProbeResult)
    # A target is a name or a function.
    await pool.call(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # A range of sizes has a minimum and a maximum.
    Pool("numbers", "package.module:Class", size=4)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # This is not a valid mode.
    Sessions(mode="sticky")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # A call must be awaited.
    pool.call("add").bit_length()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
