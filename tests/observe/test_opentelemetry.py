"""OpenTelemetry receives the same metrics as Prometheus, and a span for each operation. Every span is ended."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import StatusCode

from lifecycle import Event, Router, TaskWorker, hooks, lifetime, on_shutdown, run
from lifecycle._util import current_span
from lifecycle.errors import NotHandled
from lifecycle.flows import Flows, Times, linear, task
from lifecycle.observe import LabelPolicy, OpenTelemetryMetrics, OpenTelemetryTraces
from lifecycle.observe.metrics import COUNTERS, GAUGES, HISTOGRAMS
from lifecycle.testing import VirtualLoop, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from opentelemetry.sdk.trace import ReadableSpan

TRACE, SENDER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Webhook(Event):
    """An event with headers, like a webhook event."""

    def __init__(self, topic: str, headers: Mapping[Any, Any]) -> None:
        super().__init__(topic)
        object.__setattr__(self, "headers", headers)


class Tally(SpanProcessor):
    """Records open and ended spans."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.open.add(span.context.span_id)

    def on_end(self, span: ReadableSpan) -> None:
        assert span.context is not None
        self.open.remove(span.context.span_id)
        self.ended.append(span)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.ended if span.name == name]

    def outcomes(self, name: str) -> list[object]:
        return [(span.attributes or {})["lifecycle.outcome"] for span in self.named(name)]


def traced() -> tuple[OpenTelemetryTraces, Tally]:
    tally, provider = Tally(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(tally)
    return OpenTelemetryTraces(provider), tally


def above(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def identity(span: ReadableSpan) -> int:
    context = span.context
    assert context is not None
    return int(context.span_id)


async def fails(_event: object) -> None:
    raise OSError("no")


# -- spans -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("clock")
async def test_an_event_that_a_handler_emits_is_below_that_handler() -> None:
    tracer, tally = traced()
    router = Router()

    @router.on("first")
    async def first(_event: object) -> None:
        await (await router.emit(Event("second")))

    router.handle("second", lambda _: None)
    async with tracer, running(router):
        await (await router.emit(Event("first")))
    [handler], [second] = tally.named("handle first"), tally.named("event second")
    assert above(second) == identity(handler)
    assert {span.context.trace_id for span in tally.ended if span.context} == {second.context.trace_id}


@pytest.mark.usefixtures("clock")
async def test_a_handlers_span_is_the_current_one_in_it_and_not_after_it() -> None:
    tracer, tally = traced()
    router = Router()
    seen: list[tuple[int, str]] = []

    def look(_event: object) -> None:
        seen.append((trace.get_current_span().get_span_context().span_id, current_span.get()))

    router.handle("job", look)
    async with tracer, running(router):
        for _ in range(2):
            await (await router.emit(Event("job")))
    look(None)
    handlers = tally.named("handle job")
    assert [span_id for span_id, _ in seen] == [*map(identity, handlers), 0]
    assert [text[36:52] for _, text in seen] == [*(f"{identity(span):016x}" for span in handlers), ""]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ({"traceparent": f"00-{TRACE}-{SENDER}-01"}, True),
        ({"traceparent": f"00-{TRACE}-{SENDER}-01", "tracestate": "a=b"}, True),
        ({"traceparent": f"00-{'0' * 32}-{SENDER}-01"}, False),
        ({"traceparent": "nonsense\r\n"}, False),
        ({"traceparent": 7}, False),
        ({"traceparent": b"00"}, False),
        ({}, False),
        ([("traceparent", "00")], False),
        (None, False),
    ],
)
async def test_a_sender_names_the_span_above_and_nonsense_names_none(headers: Any, taken: bool) -> None:
    tracer, tally = traced()
    router = Router()
    router.handle("hook", lambda _: None)
    async with tracer, running(router):
        await (await router.emit(Webhook("hook", headers)))
    [event] = tally.named("event hook")
    assert above(event) == (int(SENDER, 16) if taken else None)


@pytest.mark.usefixtures("clock")
async def test_a_source_that_a_handler_adds_works_for_the_router_and_not_for_that_handler() -> None:
    tracer, tally = traced()
    router = Router()
    seen: list[str] = []

    async def source() -> AsyncIterator[Event]:
        seen.append(current_span.get())
        yield Event("second")

    router.handle("first", lambda _: router.add_source(source))
    router.handle("second", lambda _: None)
    async with tracer, running(router):
        await (await router.emit(Event("first")))
        await asyncio.sleep(1)
    assert [above(span) for span in tally.named("event second")] == [None]
    assert seen == [""]


@pytest.mark.usefixtures("clock")
async def test_an_event_with_headers_that_a_handler_emits_is_below_the_handler() -> None:
    """The handler passes the event on with the original headers."""
    tracer, tally = traced()
    router = Router()
    headers = {"traceparent": f"00-{TRACE}-{SENDER}-01"}

    @router.on("first")
    async def first(_event: object) -> None:
        await (await router.emit(Webhook("second", headers)))

    router.handle("second", lambda _: None)
    async with tracer, running(router):
        await (await router.emit(Webhook("first", headers)))
    assert above(tally.named("event second")[0]) == identity(tally.named("handle first")[0])


@pytest.mark.usefixtures("clock")
async def test_merged_events_are_linked_and_are_nobodys_parent() -> None:
    tracer, tally = traced()
    router = Router()
    router.handle("file/*", lambda _: None, debounce=1.0)
    async with tracer, running(router):
        deliveries = [await router.emit(Event(f"file/{number}")) for number in range(3)]
        await asyncio.gather(*deliveries)
    *merged, call = tally.named("event file/*")
    [handler] = tally.named("handle file/*")
    assert tally.outcomes("event file/*") == ["merged"] * 3 + ["handled"]
    assert [link.context.span_id for link in call.links] == [identity(span) for span in merged]
    assert above(call) is None
    assert above(handler) == identity(call)


@pytest.mark.usefixtures("clock")
async def test_a_burst_without_end_links_to_a_bounded_number() -> None:
    tracer, tally = traced()
    router = Router()
    router.handle("file/*", lambda _: None, debounce=1.0)
    async with tracer, running(router):
        deliveries = [await router.emit(Event(f"file/{number}")) for number in range(300)]
        await asyncio.gather(*deliveries)
    assert len(tally.named("event file/*")[-1].links) == 128


@pytest.mark.usefixtures("clock")
async def test_a_failure_is_recorded_and_a_dropped_event_is_not_a_failure() -> None:
    tracer, tally = traced()
    router, release = Router(), asyncio.Event()

    async def hold(_event: object) -> None:
        await release.wait()

    router.handle("bad", fails)
    router.handle("busy", hold, busy="drop")
    async with tracer, running(router):
        deliveries = [await router.emit(Event(topic)) for topic in ("bad", "busy", "busy")]
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*deliveries, return_exceptions=True)
        with pytest.raises(NotHandled):
            await router.emit(Event("nobody"))
    for name in ("handle bad", "event bad"):
        [span] = tally.named(name)
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "OSError: no"
        assert [each.name for each in span.events] == ["exception"]
    assert sorted(map(str, tally.outcomes("event busy"))) == ["dropped", "handled"]
    assert tally.outcomes("event") == ["unrouted"]
    assert all(span.status.status_code is StatusCode.UNSET for span in tally.named("event busy"))


@pytest.mark.usefixtures("clock")
async def test_a_span_shows_no_secret_of_an_error() -> None:
    tracer, tally = traced()
    router = Router()

    def fail(_event: object) -> None:
        raise ValueError("no database at postgres://bob:hunter2@db")

    router.handle("bad", fail)
    async with tracer, running(router):
        with pytest.raises(ValueError, match="hunter2"):
            await (await router.emit(Event("bad")))
    [span] = tally.named("handle bad")
    [recorded] = span.events
    shown = {str(span.status.description), *map(str, (recorded.attributes or {}).values())}
    assert "ValueError: no database at postgres://bob:***@db" in shown
    assert "hunter2" not in "".join(shown)


@pytest.mark.usefixtures("clock")
async def test_each_handler_of_a_passed_event_has_a_span() -> None:
    tracer, tally = traced()
    router = Router()

    async def no(_event: object) -> None:
        raise NotHandled

    router.handle("file/a", no)
    router.handle("file/*", lambda _: None)
    async with tracer, running(router):
        await (await router.emit(Event("file/a")))
    [event] = tally.named("event file/a")
    first, second = tally.named("handle file/a") + tally.named("handle file/*")
    assert (above(first), above(second)) == (identity(event), identity(event))
    assert tally.outcomes("handle file/a") == ["passed"]


@pytest.mark.usefixtures("clock")
async def test_each_attempt_of_a_task_and_its_revert_has_a_span() -> None:
    tracer, tally = traced()
    attempts: list[int] = []

    @task
    def flaky() -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError("no")

    @task
    def before() -> None:
        pass

    @before.revert
    def undo() -> None:
        pass

    async with tracer, Flows() as flows:
        await flows.start(linear("release", before, flaky, retry=Times(3)))
    assert len(tally.named("task flaky")) == 3
    assert tally.outcomes("task flaky") == ["failed", "failed", "handled"]
    assert len(tally.named("revert before")) == 2
    assert (tally.named("task flaky")[0].attributes or {})["lifecycle.flow"] == "release"
    assert not tally.open


@pytest.mark.usefixtures("clock")
async def test_a_task_that_is_cancelled_has_a_span_that_ends_and_another_when_it_is_done_again() -> None:
    tracer, tally = traced()
    release = asyncio.Event()

    @task
    async def wait() -> None:
        await release.wait()

    async with tracer, Flows() as flows:
        run = flows.start(linear("release", wait))
        await asyncio.sleep(1)
        await run.suspend(cancel_after=1)
        assert tally.outcomes("task wait") == ["cancelled"]
        release.set()
        await run.resume()
        await run
    assert tally.outcomes("task wait") == ["cancelled", "handled"]
    assert not tally.open


@pytest.mark.usefixtures("clock")
async def test_events_with_a_bad_topic_are_traced_too(caplog: pytest.LogCaptureFixture) -> None:
    tracer, tally = traced()
    router = Router()
    router.handle("file/*", lambda _: None)
    async with tracer, running(router):
        with pytest.raises(NotHandled):
            await router.emit(SimpleNamespace(topic=7))
        await (await router.emit(Event("file/\udcff")))
    assert tally.outcomes("event") == ["unrouted"]
    assert (tally.named("event file/*")[0].attributes or {})["lifecycle.topic"] == "file/?"
    assert "receiver" not in caplog.text


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "ok",
                "bad",
                "busy",
                "again",
                "merge",
                "merge/bad",
                "pass",
                "pass/none",
                "tell",
                "nobody",
                "No Topic",
                "slow",
            ]
        ),
        st.sampled_from([0.0, 0.5, 3.0]),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.booleans())
def test_every_span_ends_with_every_outcome(actions: list[tuple[str, float]], cancelled: bool) -> None:
    """The outcomes: handled, failed, dropped, merged, restarted, passed on, unrouted, refused, stopped."""
    tracer, tally = traced()

    async def story() -> None:
        router = _router_of_all_sorts()
        async with tracer:
            life = asyncio.create_task(router.run())
            await asyncio.sleep(0)
            for topic, pause in actions:
                with suppress(NotHandled, ValueError):
                    await router.emit(Event(topic))
                await asyncio.sleep(pause)
            if not cancelled:
                await asyncio.sleep(60)
            life.cancel()
            await asyncio.wait({life})
            assert not tally.open
        assert not tally.open

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    ended = [identity(span) for span in tally.ended]
    assert len(ended) == len(set(ended))


def _router_of_all_sorts() -> Router:
    router = Router(buffer=2)

    async def slow(_event: object) -> None:
        await asyncio.sleep(2)

    async def no(_event: object) -> None:
        raise NotHandled

    async def tell(_event: object) -> None:
        await router.emit(Event("slow"))

    router.handle("ok", lambda _: None)
    router.handle("bad", fails)
    router.handle("slow", slow)
    router.handle("busy", slow, busy="drop")
    router.handle("again", slow, busy="restart")
    router.handle("merge", slow, debounce=1.0)
    router.handle("merge/bad", fails, debounce=1.0, busy="drop")
    router.handle("pass", no)
    router.handle("pass/**", slow, busy="restart")
    router.handle("pass/none", no)
    router.handle("tell", tell)
    return router


@pytest.mark.usefixtures("clock")
async def test_open_spans_end_when_tracing_ends() -> None:
    tracer, tally = traced()
    router, release = Router(), asyncio.Event()

    async def hold(_event: object) -> None:
        await release.wait()

    router.handle("job", hold)
    async with running(router):
        async with tracer:
            delivery = await router.emit(Event("job"))
            await asyncio.sleep(0)
            assert len(tally.open) == 2
        assert not tally.open
        assert tally.outcomes("event job") == ["unknown"]
        release.set()
        await delivery
    assert len(tally.ended) == 2


@pytest.mark.usefixtures("clock")
async def test_when_the_tracer_is_left_a_span_stays_the_current_one_of_its_handler_alone() -> None:
    tracer, _ = traced()
    router = Router()
    seen: list[tuple[bool, str]] = []

    async def look(_event: object) -> None:
        await asyncio.sleep(1)
        seen.append((trace.get_current_span().get_span_context().is_valid, current_span.get()[:2]))

    router.handle("job", look)
    connected = len(hooks.delivery_ended.receivers)
    async with running(router):
        async with tracer:
            jobs = [await router.emit(Event("job")) for _ in range(3)]
            await asyncio.sleep(0.5)
        for job in jobs:
            await job
    assert seen == [(True, "00"), (False, ""), (False, "")]
    assert len(hooks.delivery_ended.receivers) == connected


@pytest.mark.usefixtures("clock")
async def test_without_an_sdk_the_context_of_the_sender_goes_through() -> None:
    """The API without the SDK creates no spans, and passes on the context that it receives."""
    router = Router()
    seen: list[str] = []
    router.handle("hook", lambda _: seen.append(current_span.get()))
    async with OpenTelemetryTraces(trace.NoOpTracerProvider()), running(router):
        await (await router.emit(Webhook("hook", {"traceparent": f"00-{TRACE}-{SENDER}-01"})))
        await (await router.emit(Event("hook")))
    assert seen == [f"00-{TRACE}-{SENDER}-01", ""]


# -- metrics -----------------------------------------------------------------------------------------------------


def metered(**options: Any) -> tuple[OpenTelemetryMetrics, Callable[[], dict[str, dict[frozenset[Any], Any]]]]:
    """Return the metrics, and a function that reads the value, or count and sum, of each series."""
    reader = InMemoryMetricReader()
    metrics = OpenTelemetryMetrics(MeterProvider([reader], shutdown_on_exit=False), **options)

    def read() -> dict[str, dict[frozenset[Any], Any]]:
        data = reader.get_metrics_data()
        found = [] if data is None else [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        return {
            each.name: {frozenset((p.attributes or {}).items()): _value(p) for p in each.data.data_points}
            for each in found
        }

    return metrics, read


def _value(point: Any) -> Any:
    return point.value if hasattr(point, "value") else (point.count, point.sum)


@pytest.mark.usefixtures("clock")
async def test_the_metrics_are_those_of_prometheus() -> None:
    router, release = Router(), asyncio.Event()

    @router.on("job/*")
    async def slow(_event: object) -> None:
        await asyncio.sleep(2)

    @router.on("wait")
    async def hold(_event: object) -> None:
        await release.wait()

    router.handle("bad", fails)
    metrics, read = metered()
    async with lifetime(), metrics, running(router), TaskWorker("alone", asyncio.Event().wait):
        for topic in ("job/1", "job/2", "bad"):
            await asyncio.gather(await router.emit(Event(topic)), return_exceptions=True)
        waiting = [await router.emit(Event("wait")) for _ in range(3)]
        await asyncio.sleep(0)
        shown = read()
        release.set()
        await asyncio.gather(*waiting)

    assert shown["lifecycle.handler.duration"][frozenset({("pattern", "job/*")})] == (2, 4.0)
    assert shown["lifecycle.handler.errors"][frozenset({("pattern", "bad"), ("error", "OSError")})] == 1
    assert shown["lifecycle.lane.waiting"][frozenset({("lane", "wait")})] == 2
    assert shown["lifecycle.workers"][frozenset({("worker_type", "task"), ("status", "running")})] == 1
    assert set(shown) <= {metric.name for metric in (*COUNTERS, *HISTOGRAMS, *GAUGES)}


@pytest.mark.usefixtures("clock")
async def test_attributes_keep_to_the_policy() -> None:
    router = Router()
    router.handle("job", lambda _: None)
    router.handle("other", lambda _: None)
    metrics, read = metered(labels=LabelPolicy({"pattern": ["job"]}, strict=True))
    async with metrics, running(router):
        for topic in ("job", "other"):
            await (await router.emit(Event(topic)))
    assert set(read()["lifecycle.handler.duration"]) == {frozenset({("pattern", "job")})}


async def test_gauges_are_read_in_the_loop_from_any_thread() -> None:
    """A periodic reader runs in a different thread. After the loop has stopped, the reader finds no data."""
    metrics, read = metered()
    shown: list[Any] = []
    async with lifetime(), metrics, TaskWorker("alone", asyncio.Event().wait):
        thread = threading.Thread(target=lambda: shown.append(read()))
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.001)
        thread.join()
    assert shown[0]["lifecycle.workers"][frozenset({("worker_type", "task"), ("status", "running")})] == 1
    assert "lifecycle.workers" not in read()


# -- flushing on exit ----------------------------------------------------------------------------------------------


class Provider(TracerProvider):
    """A tracer provider that counts flushes. Each flush succeeds, fails or raises."""

    def __init__(self, answer: Callable[[], bool]) -> None:
        super().__init__(shutdown_on_exit=False)
        self.answer, self.asked = answer, 0

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self.asked += 1
        return self.answer()


def _raises() -> bool:
    raise OSError("no route")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: True, ""),
        (lambda: False, "could not send all spans within 5 s"),
        (_raises, "could not send spans: OSError"),
    ],
)
def test_spans_and_metrics_are_sent_after_the_shutdown_hooks(
    answer: Callable[[], bool], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An event that a shutdown hook emits also has a span."""
    provider, tally, router = Provider(answer), Tally(), Router()
    provider.add_span_processor(tally)
    asked: list[int] = []

    async def main() -> None:
        @on_shutdown
        async def last() -> None:
            asked.append(provider.asked)
            with suppress(NotHandled):
                await router.emit(Event("last"))

        asked.append(provider.asked)

    run(OpenTelemetryTraces(provider), main)
    assert (asked, provider.asked) == ([0, 0], 1)
    assert tally.outcomes("event") == ["unrouted"]
    assert (said in caplog.text) if said else not caplog.records


async def test_spans_and_metrics_are_sent_when_it_is_left_early() -> None:
    provider = Provider(lambda: True)
    asked: list[int] = []
    async with lifetime():
        async with OpenTelemetryTraces(provider):
            asked.append(provider.asked)
        asked.append(provider.asked)
    assert [*asked, provider.asked] == [0, 1, 1]


async def test_a_hanging_exporter_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    async with OpenTelemetryTraces(Provider(lambda: release.wait(30)), flush_timeout=0.05):
        pass
    release.set()
    assert "could not send all spans within 0.05 s" in caplog.text


@pytest.mark.parametrize("name", ["OpenTelemetryMetrics", "OpenTelemetryTraces"])
def test_without_the_api_the_extra_is_named(name: str) -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        f"from lifecycle.observe import {name} as it\n"
        "try: it()\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip().endswith("pip install 'lifecycle-control[otel]'")
