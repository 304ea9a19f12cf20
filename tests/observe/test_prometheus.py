"""Prometheus output with arbitrary names, read by Prometheus' own parsers."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from lifecycle import Event, Router, Spec, Supervisor, TaskWorker, go, lifetime
from lifecycle.backoff import Backoff
from lifecycle.errors import NotHandled
from lifecycle.flows import Flows, linear, task
from lifecycle.observe import LabelPolicy, PrometheusMetrics
from lifecycle.observe.metrics import COUNTERS, GAUGES, HISTOGRAMS
from lifecycle.runtime import current, do
from lifecycle.testing import running

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.usefixtures("clock")

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
AWKWARD = 'a "quoted" <b>name</b>\nof two lines \\ 🙂'


def scraped(metrics: PrometheusMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return each sample by name and labels, as a scraper reads it."""
    return _samples(plain(metrics.expose()[0].decode()))


def _samples(families: Iterable[Any]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(metrics: PrometheusMetrics, name: str, **labels: str) -> float | None:
    return scraped(metrics).get((name, frozenset(labels.items())))


async def fails(_event: object = None) -> None:
    raise OSError("no")


async def forever() -> None:
    await asyncio.Event().wait()


async def test_handlers_are_counted_and_timed_by_pattern_never_by_topic() -> None:
    router = Router()

    @router.on("file/**")
    async def slow(_event: object) -> None:
        await asyncio.sleep(2)

    router.handle("bad/*", fails)
    async with PrometheusMetrics() as metrics, running(router):
        for topic in ("file/a", "file/b"):
            await (await router.emit(Event(topic)))
        with pytest.raises(OSError, match="no"):
            await (await router.emit(Event("bad/c")))
        with pytest.raises(NotHandled):
            await router.emit(Event("nobody/d"))

        assert value(metrics, "lifecycle_handler_duration_seconds_count", pattern="file/**") == 2
        assert value(metrics, "lifecycle_handler_duration_seconds_sum", pattern="file/**") == 4
        assert value(metrics, "lifecycle_handler_errors_total", pattern="bad/*", error="OSError") == 1
        assert value(metrics, "lifecycle_events_unrouted_total") == 1
        assert "file/a" not in metrics.expose()[0].decode()


async def test_waiting_and_dropped_events_are_entries() -> None:
    router, release = Router(), asyncio.Event()

    async def hold(_event: object) -> None:
        await release.wait()

    router.handle("wait/*", hold, lane="builds")
    router.handle("busy/*", hold, busy="drop")
    async with lifetime(), PrometheusMetrics() as metrics, running(router):
        deliveries = [await router.emit(Event(topic)) for topic in ("wait/1", "wait/2", "wait/3", "busy/1", "busy/2")]
        await asyncio.sleep(0)
        assert value(metrics, "lifecycle_lane_waiting", lane="builds") == 2
        assert value(metrics, "lifecycle_events_dropped_total", pattern="busy/*") == 1
        release.set()
        await asyncio.gather(*deliveries, return_exceptions=True)
        assert value(metrics, "lifecycle_lane_waiting", lane="builds") == 0


async def test_workers_are_counted_by_status_through_every_supervisor() -> None:
    inner = Supervisor("inner", Spec("task 3", forever), Spec("bad", fails, restart="never"))
    outer = Supervisor("outer", Spec("task 1", forever), Spec("task 2", forever), Spec("inner", lambda: inner))
    async with lifetime(), PrometheusMetrics() as metrics, outer, TaskWorker("alone", forever):
        await asyncio.sleep(1)
        assert value(metrics, "lifecycle_workers", worker_type="task", status="running") == 4
        assert value(metrics, "lifecycle_workers", worker_type="supervisor", status="running") == 2
        assert value(metrics, "lifecycle_workers", worker_type="task", status="failed") == 1
        assert value(metrics, "lifecycle_worker_failed_total", worker_type="task", worker="bad") == 1
        await inner.suspend()
        assert value(metrics, "lifecycle_workers", worker_type="supervisor", status="suspended") == 1
    assert value(metrics, "lifecycle_workers", worker_type="task", status="running") is None


async def test_restarts_and_circuits_are_counted_by_child() -> None:
    async def crash() -> None:
        await asyncio.sleep(1)
        raise OSError("no")

    given_up = Spec("flaky", crash, backoff=Backoff(initial=0.1, max_restarts=2))
    async with lifetime(), PrometheusMetrics() as metrics, Supervisor("top", given_up):
        await asyncio.sleep(30)
        assert value(metrics, "lifecycle_child_restarts_total", supervisor="top", child="flaky") == 2
        assert value(metrics, "lifecycle_circuit_breaker_triggered_total", supervisor="top", child="flaky") == 1


async def test_a_crash_loop_before_the_child_is_ready_counts_as_restarts() -> None:
    """The alert for a crash loop must fire although no worker ever runs."""

    def cannot_start() -> TaskWorker:
        raise OSError("no")

    spec = Spec("web", cannot_start, first_start="retry", backoff=Backoff(1, multiplier=1, jitter=0))
    async with lifetime(), PrometheusMetrics() as metrics, Supervisor("top", spec) as supervisor:
        await asyncio.sleep(3.5)
        assert supervisor.workers()[0].restarts == 3
        assert value(metrics, "lifecycle_child_restarts_total", supervisor="top", child="web") == 3


async def test_a_restart_is_counted_under_the_name_of_the_child() -> None:
    """Its worker may have another name."""
    spec = Spec("web", lambda: TaskWorker("other", forever))
    async with lifetime(), PrometheusMetrics() as metrics, Supervisor("top", spec) as supervisor:
        await supervisor.restart("web")
        assert value(metrics, "lifecycle_child_restarts_total", supervisor="top", child="web") == 1


async def test_flows_are_seen_while_they_run_and_counted_when_they_end() -> None:
    release = asyncio.Event()

    @task
    async def wait() -> None:
        await release.wait()

    async with lifetime(), PrometheusMetrics() as metrics, Flows() as flows:
        runs = [flows.start(linear("release", wait)), flows.start(linear("release", wait))]
        bad = flows.start(linear("broken", task(fails_flow)))
        with pytest.raises(OSError, match="no"):
            await bad
        assert value(metrics, "lifecycle_flows", flow="release", state="RUNNING") == 2
        release.set()
        await asyncio.gather(*runs)
        assert value(metrics, "lifecycle_flows", flow="release", state="RUNNING") is None
        assert value(metrics, "lifecycle_flow_ended_total", flow="release", state="SUCCESS") == 2
        assert value(metrics, "lifecycle_flow_ended_total", flow="broken", state="REVERTED") == 1


def fails_flow() -> None:
    raise OSError("no")


async def test_crashed_tasks_and_critical_sections_are_counted() -> None:
    async with lifetime(), PrometheusMetrics() as metrics:
        with pytest.raises(OSError, match="no"):
            await go(fails)
        with pytest.raises(OSError, match="no"):
            await do(fails)
        await do(asyncio.sleep, 1)
        assert value(metrics, "lifecycle_task_crashed_total") == 1
        assert value(metrics, "lifecycle_critical_section_finished_total", success="true") == 1
        assert value(metrics, "lifecycle_critical_section_finished_total", success="false") == 1


async def test_a_source_that_fails_is_counted_by_its_name() -> None:
    router = Router()

    async def numbers() -> Any:
        yield Event("number")
        raise OSError("no")

    router.add_source(numbers, backoff=Backoff(initial=1))
    router.handle("number", lambda _: None)
    async with PrometheusMetrics() as metrics, running(router):
        await asyncio.sleep(0.5)
        assert len([key for key in scraped(metrics) if key[0] == "lifecycle_source_failures_total"]) == 1


@pytest.mark.parametrize(
    ("accept", "content_type", "read"),
    [("", "text/plain", plain), (OPENMETRICS, "application/openmetrics-text", openmetrics)],
)
async def test_any_name_survives_the_way_to_a_scraper(accept: str, content_type: str, read: Any) -> None:
    """A supervisor and a child, in both formats, read by the parsers of Prometheus' own client."""
    names = (AWKWARD[:60], "a\u2028line", "not \udcff utf-8")
    supervisor = Supervisor(names[0], *[Spec(name, forever) for name in names])
    async with lifetime(), PrometheusMetrics() as metrics, supervisor:
        for name in names:
            await supervisor.restart(name)
        body, kind = metrics.expose(accept)
    assert kind.startswith(content_type)
    listed = {
        dict(labels)["child"]
        for name, labels in _samples(read(body.decode()))
        if name == "lifecycle_child_restarts_total"
    }
    assert listed == {names[0], "a\u2028line", "not ? utf-8"}


async def test_values_that_the_policy_makes_equal_are_added_up() -> None:
    policy = LabelPolicy({"child": ["known"]}, max_series=1)
    async with lifetime(), PrometheusMetrics(labels=policy) as metrics:
        async with Supervisor("top", *[Spec(name, forever) for name in ("known", "b", "c")]) as supervisor:
            for name in ("known", "b", "c"):
                await supervisor.restart(name)
        assert value(metrics, "lifecycle_child_restarts_total", supervisor="top", child="known") == 1
        assert value(metrics, "lifecycle_child_restarts_total", supervisor="other", child="other") == 2
        # Supervisors and tasks are also merged.
        assert [key for key in scraped(metrics) if key[0] == "lifecycle_workers"] == []


class Broken:
    """A component that raises when its state is read."""

    name, status = "broken", "running"

    def state(self) -> object:
        raise OSError("torn")


class Nameless(Broken):
    """A component that raises on every attribute."""

    @property
    def name(self) -> str:  # type: ignore[override]  # bad input
        raise OSError("no")


@pytest.mark.parametrize(("broken", "said"), [(Broken(), "Broken 'broken'"), (Nameless(), "Nameless")])
async def test_a_component_that_cannot_be_read_is_logged_once_and_hides_no_other(
    broken: Broken, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with lifetime(), PrometheusMetrics() as metrics, TaskWorker("sound", forever):
        added = current().add(broken)
        for _ in range(2):
            assert value(metrics, "lifecycle_workers", worker_type="task", status="running") == 1
        added.end()
    assert [record.message for record in caplog.records] == [
        f"{said} cannot be read for metrics: OSError: torn (logged once)"
    ]


async def test_metrics_are_in_a_given_registry_while_it_is_entered() -> None:
    registry = CollectorRegistry(auto_describe=True)
    Counter("mine", "Of my own.", registry=registry).inc()
    for _ in range(2):
        async with PrometheusMetrics(registry) as metrics:
            assert b"mine_total 1.0" in metrics.expose()[0]
            assert b"lifecycle_events_unrouted_total 0.0" in metrics.expose()[0]
    assert b"lifecycle" not in metrics.expose()[0]


async def test_it_counts_only_while_it_is_entered_and_keeps_its_counts() -> None:
    router = Router()
    router.handle("job", lambda _: None)
    metrics = PrometheusMetrics()
    async with running(router):
        await (await router.emit(Event("job")))
        async with metrics:
            await (await router.emit(Event("job")))
            with pytest.raises(RuntimeError, match="is already open"):
                await metrics.__aenter__()
        await (await router.emit(Event("job")))
    assert value(metrics, "lifecycle_handler_duration_seconds_count", pattern="job") == 1


async def test_a_program_in_which_nothing_has_happened_can_be_scraped() -> None:
    families = {family.name for family in plain(PrometheusMetrics().expose()[0].decode())}
    assert families == {
        *(metric.plain_name + "_seconds" for metric in HISTOGRAMS),
        *(metric.plain_name for metric in COUNTERS),
        *(metric.plain_name for metric in GAUGES),
    } | {name for name in families if name.endswith("_created")}


def test_the_page_shows_all_metrics_and_its_alerts_name_existing_ones() -> None:
    page = PAGE.read_text()
    assert "```{metrics}\n" in page
    assert "```{labels}\n" in page
    names = {metric.name for metric in (*HISTOGRAMS, *COUNTERS, *GAUGES)}
    alerts = page.partition("## When to alert\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(lifecycle\.[\w.]+)`", alerts))
    assert named
    assert named <= names


def test_an_object_that_is_not_a_registry_is_refused() -> None:
    with pytest.raises(TypeError, match=r"registry must be a prometheus_client\.CollectorRegistry, got 'app'"):
        PrometheusMetrics("app")  # type: ignore[arg-type]  # as a user might


def test_without_the_client_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from lifecycle.observe import PrometheusMetrics\n"
        "try: PrometheusMetrics()\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip().endswith("pip install 'lifecycle-control[prometheus]'")
