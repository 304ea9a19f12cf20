"""Metrics of real processes over real sockets, as a scraper sees them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from lifecycle import Event, Router, Spec, Supervisor, lifetime, on_shutdown, run, shutdown
from lifecycle.errors import PoolBusy, RemoteError
from lifecycle.flows import Flows, JobQueue, linear, task
from lifecycle.observe import OpenTelemetryMetrics, ProbeServer, PrometheusMetrics
from lifecycle.sources import Inbox, WebhookSource
from lifecycle.testing import running
from lifecycle.workers.pool import Pool, Process
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from opentelemetry.sdk.metrics.export import MetricsData

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
#: The Accept header that a current Prometheus sends.
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


async def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as client, client.request(method, url, headers=headers) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


def pool_of(name: str, **how: Any) -> Pool:
    target = "tests.realtime.observe.traced:seen"
    return Pool(name, target, size=(1, 1), process=Process(contain="group"), **how)


@pytest.mark.parametrize(
    ("accept", "kind", "read"),
    [
        ("*/*", "text/plain; version=0.0.4; charset=utf-8", plain),
        (OPENMETRICS, "application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics),
        (PROMETHEUS, "application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics),
    ],
)
async def test_a_scraper_gets_the_format_that_it_accepts(accept: str, kind: str, read: Any) -> None:
    router = Router()
    router.handle("job", lambda _: None)
    metrics = PrometheusMetrics()
    async with metrics, ProbeServer(port=0, metrics=metrics) as probes, running(router):
        await (await router.emit(Event("job")))
        status, content_type, text = await ask(probes.url + "/metrics?x=1", Accept=accept)
        assert (status, content_type.startswith(kind)) == (200, True)
        samples = {
            (each.name, each.labels.get("pattern")): each.value for family in read(text) for each in family.samples
        }
        assert samples["lifecycle_handler_duration_seconds_count", "job"] == 1
        assert await ask(probes.url + "/metrics", "HEAD", Accept=accept) == (200, content_type, "")
        assert (await ask(probes.url + "/metrics", "POST"))[0] == 405


async def test_without_metrics_there_is_nothing_under_that_path() -> None:
    async with ProbeServer(port=0) as probes:
        status, _, text = await ask(probes.url + "/metrics")
        assert status == 404
        assert "/metrics" not in text


async def test_a_collector_that_raises_costs_its_scrape_and_no_probe(caplog: pytest.LogCaptureFixture) -> None:
    class Bad:
        def collect(self) -> Iterator[Any]:
            raise OSError("the password is hunter2")

    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    registry.register(Bad())
    async with ProbeServer(port=0, metrics=metrics) as probes:
        status, _, text = await ask(probes.url + "/metrics")
        assert (status, "hunter2" in text) == (500, False)
        assert (await ask(probes.url + "/livez"))[0] == 200
    assert "could not return its metrics" in caplog.text


def test_an_object_without_metrics_is_refused() -> None:
    with pytest.raises(TypeError, match=r"metrics must be PrometheusMetrics\(\), .* got CollectorRegistry"):
        ProbeServer(metrics=_Named())  # type: ignore[arg-type]  # a user's mistake


class _Named:
    def __repr__(self) -> str:
        return "CollectorRegistry"


def test_as_mains_of_a_program_both_are_up_before_the_others() -> None:
    metrics, router = PrometheusMetrics(), Router()
    probes = ProbeServer(port=0, metrics=metrics)
    router.handle("job", lambda _: None)
    texts: list[str] = []

    async def main() -> None:
        await (await router.emit(Event("job")))
        texts.append((await ask(probes.url + "/metrics"))[2])
        shutdown()

    run(metrics, probes, router, main)
    assert 'lifecycle_handler_duration_seconds_count{pattern="job"} 1.0' in texts[0]


async def test_a_pool_is_seen_alone_and_in_a_supervisor() -> None:
    """The metrics cover used slots, calls' waiting and running times, and failures."""
    alone, inner = pool_of("alone", queue=0), pool_of("inner")
    async with lifetime(), PrometheusMetrics() as metrics, alone, Supervisor("top", Spec("inner", lambda: inner)):
        await alone.call("seen")
        with pytest.raises(RemoteError):
            await inner.call("tests.realtime.observe.traced:spoilt")
        async with alone.lease():
            with pytest.raises(PoolBusy):
                await alone.call("seen")
            text = metrics.expose()[0].decode()
    for line in (
        'lifecycle_pool_saturation{pool="alone"} 1.0',
        'lifecycle_pool_saturation{pool="inner"} 0.0',
        'lifecycle_pool_call_duration_seconds_count{function="seen",pool="alone"} 2.0',
        'lifecycle_pool_call_errors_total{error="RemoteError",pool="inner"} 1.0',
        'lifecycle_pool_call_errors_total{error="PoolBusy",pool="alone"} 1.0',
        'lifecycle_workers{status="running",worker_type="member"} 2.0',
        'lifecycle_workers{status="running",worker_type="pool"} 2.0',
    ):
        assert line in text.splitlines()


def nothing() -> None: ...


async def test_inboxes_and_queues_are_gauges(tmp_path: Path) -> None:
    """Inboxes and queues are counted outside the event loop, so the figures are slightly late."""
    router, release = Router(), asyncio.Event()
    hook = WebhookSource(port=0, inbox=Inbox(tmp_path / "hooks.db"))

    @router.on("webhook/**")
    async def hold(_event: object) -> None:
        await release.wait()

    router.add_source(hook)
    async with lifetime(), PrometheusMetrics() as metrics, running(router), Flows(tmp_path / "flows.db") as flows:
        await JobQueue(flows).enqueue("nobody")
        for _ in range(3):
            assert (await ask(hook.url + "/a", "POST"))[0] == 202
        working = asyncio.create_task(JobQueue(flows).work({"other": linear("other", task(nothing))}))
        await until(lambda: _depths(metrics) >= {("lifecycle_inbox_letters", 3), ("lifecycle_queue_jobs", 1)})
        release.set()
        working.cancel()
        await asyncio.wait({working})


def _depths(metrics: PrometheusMetrics) -> set[tuple[str, float]]:
    """Return each gauge, summed over all states."""
    families = {family.name: family.samples for family in plain(metrics.expose()[0].decode())}
    names = ("lifecycle_inbox_letters", "lifecycle_queue_jobs")
    return {(name, sum(sample.value for sample in families[name])) for name in names}


class Kept(MetricExporter):
    """Stores the names of exported metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: object) -> MetricExportResult:
        for resource in metrics_data.resource_metrics:
            self.names |= {each.name for scope in resource.scope_metrics for each in scope.metrics}
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: object) -> None: ...


def test_a_periodic_reader_exports_at_the_end_of_the_program() -> None:
    """The export includes the effects of the shutdown hooks."""
    kept, router = Kept(), Router()
    provider = MeterProvider([PeriodicExportingMetricReader(kept, 3_600_000)], shutdown_on_exit=False)
    router.handle("job", lambda _: None)

    async def main() -> None:
        on_shutdown(lambda: 1 / 0)
        await (await router.emit(Event("job")))

    run(OpenTelemetryMetrics(provider, flush_timeout=20), router, main, hook_timeout=20, exit_timeout=60)
    assert {"lifecycle.handler.duration", "lifecycle.hook.errors"} <= kept.names
    provider.shutdown()
