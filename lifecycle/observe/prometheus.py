"""`PrometheusMetrics`: the program's metrics in the Prometheus format.

This module needs ``prometheus_client``, from the extra ``prometheus``.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from lifecycle._util import needs_extra
from lifecycle.observe import metrics
from lifecycle.observe.hook_observer import HookObserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AsyncExitStack

    from prometheus_client import CollectorRegistry, Histogram, Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from lifecycle.observe.metrics import LabelPolicy
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["PrometheusMetrics"]


class PrometheusMetrics(HookObserver):
    """Counts and durations from hooks, and gauges that are read at each scrape.

    ``ProbeServer(metrics=…)`` serves the metrics at ``/metrics``. Pass this object to `run`, preferably first, so that
    it misses nothing. It counts until the shutdown hooks have run. You can use ``async with`` instead, but outside a
    lifetime, there are no gauges. You can scrape the metrics from any thread and, apart from the gauges, even after
    this object is closed.

    Args:
        registry: the registry for the metrics, such as ``prometheus_client.REGISTRY``; by default, a separate one.
        labels: The policy for label values.

    Raises:
        ModuleNotFoundError: if prometheus_client is not installed.
        TypeError: if the registry or the policy has the wrong type.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, labels: LabelPolicy | None = None) -> None:
        super().__init__()
        client = _client()
        if registry is not None and not callable(getattr(registry, "register", None)):
            raise TypeError(f"registry must be a prometheus_client.CollectorRegistry, got {registry!r}")
        self._own_registry = registry is None
        self._registry = client.CollectorRegistry() if registry is None else registry
        self._collector = _Collector(metrics.checked_policy(labels))
        if self._own_registry:
            self._registry.register(self._collector)

    def __repr__(self) -> str:
        return "<PrometheusMetrics>"

    @property
    def registry(self) -> CollectorRegistry:
        """The registry that contains the metrics while this object is open."""
        return self._registry

    def expose(self, accept: str = "") -> tuple[bytes, str]:
        """Return the registry's metrics as text, and the content type of that text.

        Args:
            accept: the request's ``Accept`` header.
        """
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _begin(self, held: AsyncExitStack, lifetime: Lifetime | None) -> None:
        self._collector.reader = metrics.GaugeReader(lifetime)
        held.callback(setattr, self._collector, "reader", None)
        if not self._own_registry:
            self._registry.register(self._collector)
            held.callback(self._registry.unregister, self._collector)
        self._connect(held, self._collector.receivers)


class _Collector:
    """A single collector that exports all metrics to a registry."""

    def __init__(self, policy: LabelPolicy) -> None:
        self._policy = policy
        #: Reads the gauges. None while the metrics are closed.
        self.reader: metrics.GaugeReader | None = None
        self._histograms: list[Histogram] = []
        self._counts: list[tuple[metrics.Counter, dict[tuple[str, ...], _Count]]] = []
        self.receivers = [
            *((each.hook, self._timed(each)) for each in metrics.HISTOGRAMS),
            *((each.hook, self._counted(each)) for each in metrics.COUNTERS),
        ]

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without their values."""
        for each in self._histograms:
            yield from each.describe()
        yield from (_counter(metric) for metric, _ in self._counts)
        yield from (_gauge(metric) for metric in metrics.GAUGES)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with their current values."""
        for each in self._histograms:
            yield from each.collect()
        for metric, counts in self._counts:
            counter = _counter(metric)
            for labels, count in list(counts.items()):
                counter.add_metric(labels, count.number, count.created)
            yield counter
        readings = {} if self.reader is None else self.reader.read()
        for gauge in metrics.GAUGES:
            family = _gauge(gauge)
            for labels, value in gauge.series(readings.get(gauge.name, {}), self._policy).items():
                family.add_metric(labels, value)
            yield family

    def _timed(self, metric: metrics.Histogram) -> Callable[..., None]:
        histogram: Histogram = _client().Histogram(
            metric.plain_name, metric.help, metric.labels, unit="seconds", buckets=metrics.BUCKETS, registry=None
        )
        self._histograms.append(histogram)
        return metrics.timing(metric, self._policy, lambda labels: histogram.labels(*labels).observe)

    def _counted(self, metric: metrics.Counter) -> Callable[..., None]:
        counts: dict[tuple[str, ...], _Count] = {}
        self._counts.append((metric, counts))

        def increment(labels: tuple[str, ...]) -> Callable[[], None]:
            return counts.setdefault(labels, _Count()).increment

        if not metric.labels:
            # A counter without labels starts at zero, so that Prometheus can see its first increase.
            increment(())
        return metrics.counting(metric, self._policy, increment)


class _Count:
    """A counter that is faster to scrape than the one in prometheus_client."""

    __slots__ = ("_lock", "created", "number")

    def __init__(self) -> None:
        self.number = 0
        self.created = time.time()
        # Hooks can be called from any thread.
        self._lock = threading.Lock()

    def increment(self) -> None:
        """Add one."""
        with self._lock:
            self.number += 1


def _counter(metric: metrics.Counter) -> CounterMetricFamily:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(metric.plain_name, metric.help, labels=metric.labels)


def _gauge(metric: metrics.Gauge) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(metric.plain_name, metric.help, labels=metric.labels)


def _client() -> Any:
    try:
        import prometheus_client
    except ModuleNotFoundError as error:
        text = needs_extra("PrometheusMetrics", "prometheus-client", "prometheus")
        raise ModuleNotFoundError(text, name=error.name) from error
    return prometheus_client
