"""Every duration in the public API is a number of seconds or a timedelta, and is checked immediately."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import re
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import backoff, bridges, control, errors, flows, handlers, journal, observe, runtime, sources, workers
from lifecycle.errors import PoolClosed
from lifecycle.testing import Clock, VirtualLoop, running
from lifecycle.workers import pool
from tests.test_docs import public_names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    #: A call of the public API with a duration. An awaitable result is awaited.
    Use = Callable[[Any], object]


# -- the public API's parameters ---------------------------------------------------------------------------------------

#: Words that mean a duration when a parameter's name contains them.
_WORDS = (
    "after age debounce deadline dedupe delay duration every grace idle interval jitter lease older period poll rate "
    "remember seconds step timeout tolerance ttl wait window within"
)
#: Parameters that are times, readings or factors, although their names or types suggest a duration.
_OTHERS = {
    "a time": "accepted at before began changed created created_at due ended enqueued leased now started_at time until"
    " updated_at",
    "an event, a row or a number to continue after": "JobQueue.jobs(after) JobStore.rows(after) Store.changes(after)"
    " MemoryStore.changes(after) SQLStore.changes(after) Store.signals(after) MemoryStore.signals(after)"
    " SQLStore.signals(after)",
    "a time, in stores": "Store.flows(since) MemoryStore.flows(since) SQLStore.flows(since) Store.reset_schedule(seen)"
    " MemoryStore.reset_schedule(seen) SQLStore.reset_schedule(seen)",
    "the number of an operation": "StepFailed(step)",
    "a factor": "Backoff(jitter) Backoff(multiplier)",
    "a function, or times": "Backoff.delay(chance) Intensity.add(restarts) Intensity.exceeded(restarts)",
    "a reading in a record that the library makes": "duration waited RouteInfo(debounce) PoolStats(idle)"
    " Limits(per) PoolStats(run_p50) PoolStats(run_p95) PoolStats(saturation) PoolStats(wait_p50) PoolStats(wait_p95)",
    "implemented by users and called by the library, with seconds": "Worker.stop(timeout) Part.stop(left)",
    "called by the library only": "PoolWorker.request_stop(timeout) VirtualLoop.jump(seconds) Watch(interval)"
    " JobQueue.give_back(seconds) VirtualLoop.shutdown_default_executor(timeout)"
    " Lifetime.own_delay(seconds)",
}


def parameters() -> Iterator[tuple[str, str]]:
    """Yield each public parameter as ``owner(name)``, and its annotation."""
    for package, name in public_names():
        thing = getattr(importlib.import_module(f"lifecycle.{package}"), name)
        yield from _parameters_of(name, thing)
        for part in dir(thing) if inspect.isclass(thing) else ():
            member = inspect.getattr_static(thing, part)
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function) and not part.startswith("_") and "lifecycle" in function.__module__:
                yield from _parameters_of(function.__qualname__, function)


def _parameters_of(owner: str, called: Any) -> Iterator[tuple[str, str]]:
    with suppress(TypeError, ValueError):  # the object is a constant, or an alias of a type
        for each in inspect.signature(called).parameters.values():
            kind = str(each.annotation)
            if settings := re.fullmatch(r"Unpack\[(\w+)\]", kind):
                given = called.__globals__[settings[1]].__annotations__
                yield from ((f"{owner}({name})", str(kind)) for name, kind in given.items())
            else:
                yield f"{owner}({each.name})", kind


def accepts_durations(kind: str) -> bool:
    return re.search(r"\bDuration\b|\b(Optional)?DurationField\b", kind) is not None


def test_parameters_named_like_durations_accept_them() -> None:
    others = {each for names in _OTHERS.values() for each in names.split()}
    lacking: list[str] = []
    for parameter, kind in parameters():
        name = parameter.partition("(")[2].removesuffix(")")
        like = "float" in kind or not set(_WORDS.split()).isdisjoint(name.split("_"))
        if like and not accepts_durations(kind) and others.isdisjoint({name, parameter}):
            lacking.append(f"{parameter}: {kind}")
    assert lacking == []


# -- accepted values -----------------------------------------------------------------------------------------------


async def nothing() -> None:
    pass


async def made(_: object) -> None:
    pass


def in_flows(use: Callable[[flows.Flows, Any], Awaitable[object]]) -> Use:
    async def run(given: Any) -> None:
        async with flows.Flows(store=flows.MemoryStore()) as opened:
            await use(opened, given)

    return run


def in_queue(use: Callable[[flows.JobQueue, Any], Awaitable[object]]) -> Use:
    return in_flows(lambda opened, given: use(flows.JobQueue(opened), given))


def in_workflow(use: Callable[[Any], Awaitable[object] | None]) -> Use:
    @flows.workflow
    async def once() -> None:
        if (used := use(given_to[0])) is not None:
            await used

    given_to: list[Any] = []

    def run(given: Any) -> object:
        given_to[:] = [given]
        return in_flows(lambda opened, _: opened.start(once))(given)

    return run


async def extend(queue: flows.JobQueue, given: Any) -> None:
    await queue.enqueue("flow")
    job = await queue.claim()
    assert job is not None
    await queue.extend(job, given)


async def release(queue: flows.JobQueue, given: Any) -> None:
    await queue.enqueue("flow")
    job = await queue.claim()
    assert job is not None
    await queue.release(job, after=given)


async def work(queue: flows.JobQueue, given: Any) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await queue.work({"nothing": flows.task(nothing)}, lease=given)


async def suspend_run(opened: flows.Flows, given: Any) -> None:
    await opened.start(flows.task(nothing)).suspend(cancel_after=given)


async def stop_started(stop: Callable[[workers.TaskWorker], object]) -> None:
    async with workers.TaskWorker("worker", nothing) as worker:
        done = stop(worker)
        if inspect.isawaitable(done):
            await done


async def sleep(given: Any) -> None:
    async with runtime.lifetime(signals=False):
        await runtime.sleep(given)


async def in_lease(use: Callable[[pool.Lease], object]) -> None:
    async with pool.Pool("pool", "builtins:str", size=(1, 1)) as running, running.lease() as worker:
        done = use(worker)
        if inspect.isawaitable(done):
            await done


def accept(given: Any) -> None:
    class Nothing:
        lastrowid = rowcount = 1

        def execute(self, *_: object) -> Nothing:
            return self

    journal.Queue("queue").accept(Nothing(), b"", now=0.0, key="key", remember=given)  # type: ignore[arg-type]  # in place of a database


def of(called: Callable[..., object], name: str, *args: Any, **settings: Any) -> Use:
    return lambda given: called(*args, **settings, **{name: given})


def in_thread(name: str) -> Use:
    return lambda given: asyncio.to_thread(runtime.run, nothing, **{name: given})


idle = partial(pool.Pool, "pool", "builtins:str")


async def _call(given: Any) -> None:
    router = control.Router()
    router.handle("a", print)
    async with running(router):
        await router.call(control.Event("a"), timeout=given)


USES: dict[str, Use] = {
    **{f"Backoff({name})": of(backoff.Backoff, name) for name in ("initial", "maximum", "reset_after", "within")},
    "Intensity(within)": of(backoff.Intensity, "within", 3),
    # control
    "Debounce(wait)": of(control.Debounce, "wait"),
    "Debounce(max_wait)": of(control.Debounce, "max_wait", 0.1),
    "debounce(wait)": of(control.debounce, "wait", print),
    "debounce(max_wait)": of(control.debounce, "max_wait", print, 0.1),
    "timeout(seconds)": of(control.timeout, "seconds"),
    "Router(drain_timeout)": of(control.Router, "drain_timeout"),
    "Router.handle(debounce)": lambda given: control.Router().handle("a", print, debounce=given),
    "Router.call(timeout)": _call,
    "Router.observe(debounce)": lambda given: control.Router().observe("a", print, debounce=given),
    "Router.on(debounce)": lambda given: control.Router().on("a", debounce=given)(print),
    # runtime
    **{f"run({name})": in_thread(name) for name in ("reset_after", "hook_timeout", "shutdown_timeout", "exit_timeout")},
    "sleep(seconds)": sleep,
    # sources and handlers
    "FileWatchSource(step)": of(sources.FileWatchSource, "step", "."),
    "FileWatchSource(settled)": of(sources.FileWatchSource, "settled", "."),
    "FileWatchSource(poll)": of(sources.FileWatchSource, "poll", "."),
    "HealthCheckSource(interval)": of(sources.HealthCheckSource, "interval", "check", print),
    "HealthCheckSource(timeout)": of(sources.HealthCheckSource, "timeout", "check", print),
    "Inbox(dedupe)": of(sources.Inbox, "dedupe", "inbox.db"),
    "Limits(rate)": lambda given: sources.Limits(rate=(10, given)),
    **{f"Limits({name})": of(sources.Limits, name) for name in ("header_timeout", "body_timeout", "answer_timeout")},
    "ScheduleSource(jitter)": of(sources.ScheduleSource, "jitter", "@daily", timezone="UTC"),
    "Refused(retry_after)": of(sources.Refused, "retry_after", 429, "later"),
    "InvalidBody(retry_after)": of(errors.InvalidBody, "retry_after", 400, "no JSON"),
    "Slack(tolerance)": of(sources.Slack, "tolerance", "secret"),
    "StandardWebhooks(tolerance)": of(sources.StandardWebhooks, "tolerance", "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"),
    "Stripe(tolerance)": of(sources.Stripe, "tolerance", "secret"),
    "TickerSource(interval)": of(sources.TickerSource, "interval"),
    "WebhookSource(dedupe)": of(sources.WebhookSource, "dedupe"),
    "Escalator(window)": of(handlers.Escalator, "window", print, print),
    "ReloadHandler(timeout)": of(handlers.ReloadHandler, "timeout", print),
    "SuspendHandler(timeout)": of(handlers.SuspendHandler, "timeout"),
    # workers
    "BaseWorker(stop_timeout)": of(workers.BaseWorker, "stop_timeout", "worker"),
    "BaseWorker.stop(timeout)": lambda given: stop_started(lambda worker: worker.stop(given)),
    "BaseWorker.ask_to_stop(timeout)": lambda given: stop_started(lambda worker: worker.ask_to_stop(given)),
    "stop_and_wait(timeout)": lambda given: stop_started(lambda worker: workers.stop_and_wait(worker, given)),
    "TaskWorker(stop_timeout)": of(workers.TaskWorker, "stop_timeout", "worker", nothing),
    "ThreadWorker(stop_timeout)": of(workers.ThreadWorker, "stop_timeout", "worker", print),
    "ProcessWorker(stop_timeout)": of(workers.ProcessWorker, "stop_timeout", "worker", "true"),
    "ProcessWorker(start_timeout)": of(workers.ProcessWorker, "start_timeout", "worker", "true"),
    "ContainerWorker(stop_timeout)": of(workers.ContainerWorker, "stop_timeout", "worker", "image"),
    "Gate.suspend(timeout)": lambda given: workers.Gate().suspend(given),
    **{
        f"Spec({name})": of(workers.Spec, name, "child", ["true"])
        for name in ("stop_timeout", "start_timeout", "probe_interval", "probe_timeout")
    },
    # pools
    **{f"Heartbeat({name})": of(pool.Heartbeat, name) for name in ("every", "timeout")},
    **{f"Process({name})": of(pool.Process, name) for name in ("grace", "stop_timeout", "start_timeout")},
    **{f"Recycle({name})": of(pool.Recycle, name) for name in ("age", "idle")},
    "Sessions(ttl)": of(pool.Sessions, "ttl"),
    "Pool(deadline)": of(idle, "deadline"),
    "Pool.call(deadline)": lambda given: idle().call("upper", deadline=given),
    "Pool.stream(deadline)": lambda given: idle().stream("upper", deadline=given),
    "Pool.lease(deadline)": lambda given: idle().lease(deadline=given),
    "Pool.map(deadline)": lambda given: idle().map("upper", [], deadline=given),
    "Lease.call(deadline)": lambda given: in_lease(lambda worker: worker.call("upper", deadline=given)),
    "Lease.stream(deadline)": lambda given: in_lease(lambda worker: worker.stream("upper", deadline=given)),
    # flows
    "Flows(stop_timeout)": of(flows.Flows, "stop_timeout"),
    "Flows.suspend(cancel_after)": in_flows(lambda opened, given: opened.suspend(cancel_after=given)),
    "Flows.list(since)": in_flows(lambda opened, given: opened.list(since=given)),
    "Flows.purge(older_than)": in_flows(lambda opened, given: opened.purge(given)),
    "step(timeout)": in_workflow(lambda given: flows.step(nothing, timeout=given)),
    "undo(timeout)": in_workflow(lambda given: flows.undo(nothing, timeout=given)),
    "wait_for(timeout)": in_workflow(lambda given: flows.wait_for("signal", timeout=given)),
    "JobQueue(per)": in_flows(lambda opened, given: made(flows.JobQueue(opened, limit=1, per=given))),
    "Run.suspend(cancel_after)": in_flows(suspend_run),
    "JobQueue.begin(lease)": in_queue(lambda queue, given: queue.begin([], given, 1)),
    "JobQueue.claim(lease)": in_queue(lambda queue, given: queue.claim(lease=given)),
    "JobQueue.enqueue(after)": in_queue(lambda queue, given: queue.enqueue("flow", after=given)),
    "JobQueue.extend(lease)": in_queue(extend),
    "JobQueue.purge(older_than)": in_queue(lambda queue, given: queue.purge(given)),
    "JobQueue.release(after)": in_queue(release),
    "JobQueue.work(lease)": in_queue(work),
    "Times(backoff)": of(flows.Times, "backoff", 3),
    "task(timeout)": lambda given: flows.task(nothing, timeout=given),
    # bridges, observe, testing, journal
    "Leader(lease)": of(bridges.Leader, "lease", "leader", "nats://localhost"),
    "NatsBridge(ack_wait)": of(bridges.NatsBridge, "ack_wait", "nats://localhost", group="group", publish="**"),
    "OpenTelemetryMetrics(flush_timeout)": of(observe.OpenTelemetryMetrics, "flush_timeout"),
    "OpenTelemetryTraces(flush_timeout)": of(observe.OpenTelemetryTraces, "flush_timeout"),
    "ProbeServer(drain_delay)": of(observe.ProbeServer, "drain_delay"),
    "watch(interval)": lambda given: observe.watch(control.Router(), interval=given),
    "Clock.advance(seconds)": lambda given: Clock().advance(given),
    "Queue.accept(remember)": accept,
}
#: Parameters that can be negative, because a time in the past means "immediately".
_NEGATIVE = {"BaseWorker.ask_to_stop(timeout)", "BaseWorker.stop(timeout)", "stop_and_wait(timeout)"}
#: Parameters that can be 0. An entry without a class or function applies to all parameters with that name.
_ZERO = (
    "after cancel_after debounce dedupe drain_delay drain_timeout exit_timeout grace hook_timeout initial jitter "
    "maximum older_than remember reset_after retry_after shutdown_timeout since stop_timeout Backoff(within) "
    "Clock.advance(seconds) "
    "Debounce(wait) Gate.suspend(timeout) Times(backoff) debounce(wait) sleep(seconds) wait_for(timeout)"
)
#: Parameters that must be finite. An entry without a class or function applies to all parameters with that name.
_FINITE = (
    "ack_wait after age dedupe drain_delay every flush_timeout grace idle jitter lease poll step ttl "
    "retry_after settled "
    "Clock.advance(seconds) HealthCheckSource(interval) HealthCheckSource(timeout) Heartbeat(timeout) "
    "Process(start_timeout) Process(stop_timeout) TickerSource(interval) JobQueue(per) wait_for(timeout)"
)


def test_each_duration_of_the_public_api_is_tested() -> None:
    found = {parameter for parameter, kind in parameters() if accepts_durations(kind)}
    assert set(USES) == found


async def use(parameter: str, given: object) -> Any:
    used = USES[parameter](given)
    return await used if inspect.isawaitable(used) else used


def run(parameter: str, given: object) -> Any:
    """Call the function that has the parameter, in virtual time unless it starts a process."""
    loop = None if parameter.startswith("Lease.") else VirtualLoop
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(use(parameter, given))


@pytest.mark.parametrize("parameter", USES)
def test_durations_can_be_timedeltas(parameter: str) -> None:
    with suppress(PoolClosed, TimeoutError):
        used = run(parameter, timedelta(minutes=1.5))
        stored = getattr(used, parameter.partition("(")[2].removesuffix(")"), None)
        assert (
            stored is None or (type(stored), stored) == (float, 90.0) or parameter in {"Limits(rate)", "Times(backoff)"}
        )


@pytest.mark.parametrize("parameter", USES)
def test_errors_of_durations_name_the_parameter_the_type_and_the_value(parameter: str) -> None:
    names = {parameter, parameter.partition("(")[2].removesuffix(")")}
    refused: list[Any] = [math.nan, "5", True]
    if parameter not in _NEGATIVE:
        refused += [-1, timedelta(seconds=-1)]
        refused += [0] if names.isdisjoint(_ZERO.split()) else []
    refused += [] if names.isdisjoint(_FINITE.split()) else [math.inf]
    for given in refused:
        with pytest.raises(TypeError if given in ("5", True) else ValueError) as raised:
            run(parameter, given)
        assert re.search(rf"^\w.* must be .*seconds,? or a timedelta, got {re.escape(repr(given))}$", str(raised.value))


def test_other_numbers_are_durations() -> None:
    assert control.Debounce(Decimal("0.5")).wait == 0.5  # type: ignore[arg-type]  # declared as float
