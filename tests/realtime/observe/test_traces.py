"""One trace through a program with a real socket, pool workers, a flow's tasks, and the shutdown."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import subprocess
import sys
import threading
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from lifecycle import Router
from lifecycle.control import Event
from lifecycle.errors import PoolBusy, RemoteError, WorkerLost
from lifecycle.flows import Flows, linear, task
from lifecycle.observe import OpenTelemetryTraces
from lifecycle.sources import GitHub, WebhookSource
from lifecycle.testing import running
from lifecycle.workers import ProcessWorker
from lifecycle.workers.pool import Pool, Process

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

LIMIT = 30
SECRET = b"It's a Secret to Everybody"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SENDER = "00f067aa0ba902b7"


def traced() -> tuple[OpenTelemetryTraces, InMemorySpanExporter]:
    """Return a tracer and its finished spans."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OpenTelemetryTraces(provider), exporter


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def w3c(span: ReadableSpan) -> str:
    context = span.context
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def above(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def identity(span: ReadableSpan) -> str:
    context = span.context
    assert context is not None
    return f"{context.span_id:016x}"


def pool_of(target: str = "seen", **how: Any) -> Pool:
    return Pool("desk", f"tests.realtime.observe.traced:{target}", size=(1, 1), process=Process(contain="group"), **how)


async def test_a_signed_webhook_a_call_of_a_pool_and_tasks_of_a_flow_are_one_trace() -> None:
    """Code in a pool worker and in a flow's task can access its span."""
    tracer, exporter = traced()
    router, hook = Router(), WebhookSource(port=0, verify=GitHub(SECRET))
    seen: list[Any] = []

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(tracer)
        pool = await stack.enter_async_context(pool_of())
        flows = await stack.enter_async_context(Flows())

        @task
        async def ask() -> list[str]:
            return list(await pool.call("seen"))

        @task
        def tell(ask: list[str]) -> None:
            seen.append(ask)

        @router.on("webhook/deploy")
        async def deploy(_event: object) -> None:
            seen.append(await pool.call("seen"))
            await flows.start(linear("release", ask, tell))

        router.add_source(hook)
        await stack.enter_async_context(running(router))
        body = b'{"ref": "main"}'
        headers = {
            "X-Hub-Signature-256": "sha256=" + hmac.new(SECRET, body, hashlib.sha256).hexdigest(),
            "traceparent": f"00-{TRACE}-{SENDER}-01",
        }
        client = await stack.enter_async_context(aiohttp.ClientSession())
        async with client.post(f"{hook.url}/deploy", data=body, headers=headers) as answer:
            assert answer.status == 202
        async with asyncio.timeout(LIMIT):
            while "event webhook/deploy" not in by_name(exporter):
                await asyncio.sleep(0.005)

    spans = exporter.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {TRACE}
    named = by_name(exporter)
    event, handler = named["event webhook/deploy"], named["handle webhook/deploy"]
    first, second = sorted((span for span in spans if span.name == "call seen"), key=lambda span: span.start_time or 0)
    assert [above(event), above(handler), above(first)] == [SENDER, identity(event), identity(handler)]
    assert [above(named["task ask"]), above(named["task tell"])] == [identity(handler)] * 2
    assert above(second) == identity(named["task ask"])
    assert [event.kind, handler.kind, first.kind] == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT]
    assert seen == [[w3c(first)] * 2, [w3c(second)] * 2]


@pytest.mark.parametrize(("target", "concurrency"), [("seen", 1), ("seen", 4), ("seen_async", 4)])
async def test_each_way_in_which_a_member_calls_has_the_span_of_its_call(target: str, concurrency: int) -> None:
    tracer, exporter = traced()
    async with tracer, pool_of(target, concurrency=concurrency) as pool:
        results = await asyncio.gather(*[pool.call(target) for _ in range(4)])
    assert sorted(results) == sorted([w3c(span)] * 2 for span in exporter.get_finished_spans())


async def test_a_call_without_a_tracer_has_no_span_after_one_with_a_tracer() -> None:
    tracer, _ = traced()
    async with pool_of() as pool:
        async with tracer:
            assert (await pool.call("seen"))[0]
        assert await pool.call("seen") == ["", ""]


async def test_streams_leases_and_maps_are_calls_too_and_errors_are_recorded() -> None:
    tracer, exporter = traced()
    async with tracer, pool_of() as pool:
        async with pool.stream("tests.realtime.observe.traced:seen_stream", 3) as stream:
            streamed = [item async for item in stream]
        async with pool.lease() as worker:
            leased = await worker.call("seen")
        with pytest.raises(RemoteError):
            await pool.call("tests.realtime.observe.traced:spoilt")
    stream_span, lease_span, spoilt = exporter.get_finished_spans()
    assert streamed == [[w3c(stream_span)] * 2] * 3
    assert leased == [w3c(lease_span)] * 2
    assert spoilt.status.status_code is StatusCode.ERROR
    assert [each.name for each in spoilt.events] == ["exception"]
    assert dict(spoilt.attributes or {})["lifecycle.member"] == "desk-1"


async def test_the_span_of_a_call_ends_with_every_outcome() -> None:
    """The call returns, raises, is rejected, cannot be sent, is cancelled, times out, or loses its worker."""
    tracer, exporter = traced()
    here = "tests.realtime.observe.traced:"
    async with tracer, pool_of(queue=1) as pool:
        await pool.call("seen")
        with pytest.raises(RemoteError):
            await pool.call(here + "spoilt")
        with pytest.raises(TypeError):
            await pool.call("seen", threading.Lock())
        with pytest.raises(TimeoutError):
            await pool.call(here + "sleep", deadline=0.05)
        async with pool.lease():
            waiting = asyncio.create_task(pool.call("seen"))
            await asyncio.sleep(0)
            with pytest.raises(PoolBusy):
                await pool.call("seen")
            waiting.cancel()
            await asyncio.wait({waiting})
        running_call = asyncio.create_task(pool.call(here + "sleep"))
        await asyncio.sleep(0)
        running_call.cancel()
        await asyncio.wait({running_call})
        with pytest.raises(WorkerLost):
            await pool.call(here + "die")
        outcomes = [dict(span.attributes or {})["lifecycle.outcome"] for span in exporter.get_finished_spans()]
    assert outcomes == ["handled", *["failed"] * 4, "cancelled", "cancelled", "failed"]


async def test_processes_started_in_a_span_get_its_context(tmp_path: Path) -> None:
    tracer, exporter = traced()
    router = Router()
    results: list[str] = []

    @router.on("go")
    async def start(_event: object) -> None:
        code = "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(os.environ['TRACEPARENT'])"
        async with ProcessWorker("child", sys.executable, "-c", code, str(tmp_path / "child")) as child:
            await child.wait()
        results.append((tmp_path / "child").read_text())
        async with pool_of("environment") as pool:
            results.append(await pool.call("environment"))

    async with tracer, running(router):
        await (await router.emit(Event("go")))
    handler = by_name(exporter)["handle go"]
    assert results == [w3c(handler)] * 2


PROGRAM = """
import asyncio, json, sys, time
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from lifecycle import Router, run
from lifecycle.control import Event
from lifecycle.observe import OpenTelemetryTraces

class Exporter(SpanExporter):
    def export(self, spans):
        if sys.argv[1] == "hangs":
            time.sleep(3600)
        if sys.argv[1] == "fails":
            raise OSError("no route to the collector")
        for span in spans:
            print(span.name, flush=True)
        return SpanExportResult.SUCCESS

provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(BatchSpanProcessor(Exporter()))
router = Router()
router.handle("job", lambda _: None)

async def main():
    await (await router.emit(Event("job")))

limit = 0.5 if sys.argv[1] == "hangs" else 20
run(OpenTelemetryTraces(provider, flush_timeout=limit), router, main, hook_timeout=20, exit_timeout=60)
print("ended", flush=True)
"""


@pytest.mark.parametrize(
    ("exporter", "printed"),
    [("works", ["handle job", "event job", "ended"]), ("fails", ["ended"]), ("hangs", ["ended"])],
)
def test_spans_are_sent_at_the_end_and_a_failing_exporter_delays_nothing(exporter: str, printed: list[str]) -> None:
    """The program exits with its own exit status, without a forced exit."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, exporter], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.stdout.splitlines() == printed, done.stderr
    assert done.returncode == 0, done.stderr
    assert ("could not send all" in done.stderr) == (exporter == "hangs")
