"""Replays recordings of TaskFlow's job queues and workers on our queue.

Our queue follows TaskFlow's ZooKeeper queue, which has no expiry. Claims expire as in TaskFlow's Redis queue. Waiting
jobs are ordered by priority and then by age, as TaskFlow documents. A worker's death is noticed when its claim expires.
The tests advance the queue's clock, so they do not sleep.
"""

from __future__ import annotations

import asyncio
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle.flows import Flows, Job, JobQueue, JobState, linear, task
from lifecycle.flows.records import Priority
from tests.conformance.flow_betterment import JOB_ERRORS
from tests.conformance.flow_building import Unknown, only

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from lifecycle.flows import Flow, Store

__all__ = ["WORKED", "check_job", "check_worker"]

Json = Any

#: The timeout for expected events, and the default duration of a claim, in seconds.
_LIMIT, _LEASE = 30.0, 5.0


async def check_job(case: Json, store: Store) -> list[str]:
    """Return the differences for a queue case."""
    only(case, {"id", "ops", "zookeeper", "redis", "source"}, "the case")
    expires = any(op.split()[0] in ("claim_exp", "extend") for op in case["ops"])
    expected = case["redis"] if expires or "zookeeper" not in case else case["zookeeper"]
    if len(case["ops"]) != len(expected):
        raise Unknown(f"{len(case['ops'])} operations, but {len(expected)} outcomes; expected one for each")
    async with Flows(store=store) as flows:
        stage = _Stage(flows)
        found = []
        for op, wanted in zip(case["ops"], expected, strict=True):
            got = await stage.perform(op)
            if not _same(op, got, stage.in_order(wanted)):
                found.append(f"{op}: expected {wanted!r}, got {got!r}")
    return found


def _same(op: str, ours: Json, theirs: Json) -> bool:
    if isinstance(theirs, str) and theirs.startswith("!"):
        return (op.split(maxsplit=1)[0], ours) in JOB_ERRORS.get(theirs[1:], ()) or ours == theirs
    return bool(ours == theirs)


class _Stage:
    """A queue, a second connection to the same queue, and a clock."""

    def __init__(self, flows: Flows) -> None:
        self._now = 0.0
        self._queue, self._other = [JobQueue(flows), JobQueue(flows)]
        for queue in (self._queue, self._other):
            # The case advances this clock, so that claims expire without sleeping.
            queue.now = lambda: self._now
        self._jobs: dict[str, Job] = {}

    def in_order(self, wanted: Json) -> Json:
        """Return the jobs in our order: the highest priority first, then the oldest."""
        if not isinstance(wanted, list):
            return wanted
        first = list(Priority)
        enqueued = list(self._jobs)
        return sorted(wanted, key=lambda name: (first.index(self._jobs[name].priority), enqueued.index(name)))

    async def perform(self, op: str) -> Json:
        """Execute ``op``, and return its result in the format of the case file."""
        verb, *arguments = shlex.split(op)
        if verb not in _VERBS:
            raise Unknown(f"unknown operation {op!r}; expected one of {sorted(_VERBS)}")
        try:
            return await _VERBS[verb](self, *arguments)
        except Unknown:
            raise
        except Exception as error:  # noqa: BLE001  # the error is compared
            return f"!{type(error).__name__}"

    async def post(self, name: str, priority: str = "NORMAL") -> str:
        self._jobs[name] = await self._queue.enqueue("flow", id=name, priority=priority.lower())
        return "ok"

    async def state(self, name: str) -> str:
        return (await self._queue.get(name)).state.value

    async def owner(self, name: str) -> str | None:
        return (await self._queue.get(name)).owner

    async def iter_all(self) -> list[str]:
        return [job.id for job in await self._queue.jobs()]

    async def iter_unclaimed(self) -> list[str]:
        return [job.id for job in await self._queue.jobs(JobState.UNCLAIMED)]

    async def claim(self, name: str, who: str) -> str:
        await self._queue.claim(self._jobs[name], who)
        return "ok"

    async def claim_for_a_while(self, name: str, who: str, seconds: str) -> str:
        await self._queue.claim(self._jobs[name], who, lease=float(seconds))
        return "ok"

    async def claim_elsewhere(self, name: str, who: str) -> str:
        await self._other.claim(await self._other.get(name), who, lease=_LEASE)
        return "ok"

    async def die_elsewhere(self) -> str:
        """Do nothing, because a dead worker never extends its claim."""
        return "ok"

    async def extend(self, name: str, seconds: str) -> bool:
        await self._queue.extend(self._jobs[name], float(seconds))
        return True

    async def consume(self, name: str, who: str) -> str:
        await self._queue.complete(self._jobs[name], who)
        return "ok"

    async def abandon(self, name: str, who: str) -> str:
        await self._queue.release(self._jobs[name], who)
        return "ok"

    async def trash(self, name: str, who: str) -> str:
        await self._queue.discard(self._jobs[name], who)
        return "ok"

    async def sleep(self, seconds: str) -> None:
        self._now += float(seconds)

    async def wait(self, _: str) -> str:
        """Return immediately whether a job is available. TaskFlow waits, and raises an error if no job arrives."""
        return "nothing" if await self._queue.claim() is None else "ok"

    async def wait_for_end(self, name: str, seconds: str) -> bool:
        if (await self._queue.get(name)).state is JobState.COMPLETE:
            async with asyncio.timeout(_LIMIT):
                await self._jobs[name]
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(float(seconds)):
                await self._jobs[name]
                return True
        return False


_VERBS: dict[str, Callable[..., Awaitable[Json]]] = {
    "post": _Stage.post,
    "state": _Stage.state,
    "owner": _Stage.owner,
    "iter_all": _Stage.iter_all,
    "iter_unclaimed": _Stage.iter_unclaimed,
    "claim": _Stage.claim,
    "claim_exp": _Stage.claim_for_a_while,
    "claim2": _Stage.claim_elsewhere,
    "kill2": _Stage.die_elsewhere,
    "extend": _Stage.extend,
    "consume": _Stage.consume,
    "abandon": _Stage.abandon,
    "trash": _Stage.trash,
    "sleep": _Stage.sleep,
    "wait": _Stage.wait,
    "jobwait": _Stage.wait_for_end,
}


# -- workers --------------------------------------------------------------------------------------------------------


async def _five() -> int:
    return 5


async def _fails() -> None:
    raise RuntimeError("Woot!")


async def _cannot_be_undone() -> None:
    raise RuntimeError("Gotcha!")


async def _passes_on(x: int) -> int:
    return x


def _flow(*functions: Callable[..., Any]) -> Flow:
    return linear("flow", *(task(fn, name=f"t{number}") for number, fn in enumerate(functions)))


def _nasty() -> Flow:
    return linear("flow", task(_five, name="t0").revert(_cannot_be_undone), task(_fails, name="t1"))


def _endless(begun: asyncio.Event) -> Flow:
    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    return _flow(_five, wait)


#: A function that creates the flow, and the job's arguments, for each worker case. The flow may set the given event
#: when it has started.
_GIVEN: dict[str, tuple[Callable[[asyncio.Event], Flow], dict[str, Any]]] = {
    "K01-success-consumed": (lambda _: _flow(_five), {}),
    "K02-reverted-flow-is-still-consumed": (lambda _: _flow(_five, _fails), {}),
    "K03-revert-failure-is-still-consumed": (lambda _: _nasty(), {}),
    "K05-stop-suspends-and-abandons": (_endless, {}),
    "K06-missing-arguments-consumed": (lambda _: _flow(_passes_on), {}),
    "K07-job-store": (lambda _: _flow(_passes_on), {"x": 5}),
    "K11-no-flow-uuid-single-flow-ok": (lambda _: _flow(_five), {}),
}

WORKED: Collection[str] = tuple(_GIVEN)


async def check_worker(case: Json, store: Store) -> list[str]:
    """Return the differences for a worker case, in the results of the job and of its flow."""
    only(case, {"id", "zookeeper", "redis", "source"}, "the case")
    make, values = _GIVEN[case["id"]]
    wanted = {name: case["zookeeper"][name] for name in ("job_state", "flow_state")}
    async with Flows(store=store, stop_timeout=0.0) as flows:
        queue = JobQueue(flows)
        job = await queue.enqueue("flow", id="job", **values)
        begun = asyncio.Event()
        working = asyncio.create_task(queue.work({"flow": make(begun)}))
        async with asyncio.timeout(_LIMIT):
            await (job if wanted["job_state"] == "COMPLETE" else begun.wait())
        working.cancel()
        await asyncio.wait([working])
        flow_state = (await flows.store.load("job")).flow.state
        got = {"job_state": (await queue.get("job")).state.value, "flow_state": flow_state}
    if wanted["flow_state"] is None:
        # TaskFlow's flow has no state before it runs, while our flow is stored when the job is claimed.
        wanted["flow_state"] = "PENDING"
    return [] if got == wanted else [f"expected {wanted!r}, got {got!r}"]
