"""`PrometheusMetrics`: what a program does, as Prometheus reads it.

Needs ``prometheus_client``, the extra ``prometheus``. What is measured is in ``_meters``.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from lifecycle.observe._meters.readings import Reader
from lifecycle.observe._meters.series import counting, timing
from lifecycle.observe._meters.tables import BUCKETS, COUNTED, READ, TIMED
from lifecycle.observe.hook_observer import HookObserver
from lifecycle.observe.labels import policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AsyncExitStack

    from prometheus_client import CollectorRegistry, Histogram, Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from lifecycle.observe._meters.tables import Counted, Read, Timed
    from lifecycle.observe.labels import LabelPolicy
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["PrometheusMetrics"]


class PrometheusMetrics(HookObserver):
    """Counts and times what the hooks tell of, and reads how things are at each scrape.

    ``ProbeServer(metrics=…)`` serves it at ``/metrics``. As a main of `run` it is best the first, so that nothing
    happens before it looks, and goes on until the shutdown hooks have run; ``async with`` looks on as well, and outside
    a lifetime nothing is read. Afterwards it still says what it has counted. It may be scraped in any thread.

    Args:
        registry: where the meters are put beside others, such as ``prometheus_client.REGISTRY``; by default they are
            in one of their own.
        labels: which values labels may have.

    Raises:
        ModuleNotFoundError: if prometheus_client is not installed.
        TypeError: for what is no registry, and no policy.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, labels: LabelPolicy | None = None) -> None:
        super().__init__()
        client = _client()
        if registry is not None and not callable(getattr(registry, "register", None)):
            raise TypeError(f"registry={registry!r} is none; give a prometheus_client.CollectorRegistry")
        self._is_ours = registry is None
        self._registry = client.CollectorRegistry() if registry is None else registry
        self._meters = _Meters(policy_of(labels))
        if self._is_ours:
            self._registry.register(self._meters)

    def __repr__(self) -> str:
        return "<PrometheusMetrics>"

    @property
    def registry(self) -> CollectorRegistry:
        """Where the meters are while this is entered."""
        return self._registry

    def expose(self, accept: str = "") -> tuple[bytes, str]:
        """All of the registry as a text, and what kind of text that is.

        Args:
            accept: what the asker wants: the header of that name.
        """
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _begin(self, held: AsyncExitStack, lifetime: Lifetime | None) -> None:
        self._meters.reader = Reader(lifetime)
        held.callback(setattr, self._meters, "reader", None)
        if not self._is_ours:
            self._registry.register(self._meters)
            held.callback(self._registry.unregister, self._meters)
        self._connect(held, self._meters.receivers)


class _Meters:
    """The meters as one collector of a registry."""

    def __init__(self, policy: LabelPolicy) -> None:
        self._policy = policy
        #: Reads how things are; None while nobody looks.
        self.reader: Reader | None = None
        self._histograms: list[Histogram] = []
        self._counts: list[tuple[Counted, dict[tuple[str, ...], _Count]]] = []
        self.receivers = [
            *((each.hook, self._timed(each)) for each in TIMED),
            *((each.hook, self._counted(each)) for each in COUNTED),
        ]

    def describe(self) -> Iterator[Metric]:
        """The meters, without figures."""
        for each in self._histograms:
            yield from each.describe()
        yield from (_counter(meter) for meter, _ in self._counts)
        yield from (_gauge(meter) for meter in READ)

    def collect(self) -> Iterator[Metric]:
        """The meters with their figures; a registry calls this."""
        for each in self._histograms:
            yield from each.collect()
        for meter, counts in self._counts:
            counter = _counter(meter)
            for labels, count in list(counts.items()):
                counter.add_metric(labels, count.number, count.created)
            yield counter
        readings = {} if self.reader is None else self.reader.take()
        for read in READ:
            gauge = _gauge(read)
            for labels, value in read.settled(readings.get(read.name, {}), self._policy).items():
                gauge.add_metric(labels, value)
            yield gauge

    def _timed(self, meter: Timed) -> Callable[..., None]:
        histogram: Histogram = _client().Histogram(
            meter.plain_name, meter.help, meter.labels, unit="seconds", buckets=BUCKETS, registry=None
        )
        self._histograms.append(histogram)
        return timing(meter, self._policy, lambda labels: histogram.labels(*labels).observe)

    def _counted(self, meter: Counted) -> Callable[..., None]:
        counts: dict[tuple[str, ...], _Count] = {}
        self._counts.append((meter, counts))

        def more(labels: tuple[str, ...]) -> Callable[[], None]:
            return counts.setdefault(labels, _Count()).more

        if not meter.labels:
            # It has one series, which is there from the beginning: that it grows can be seen then.
            more(())
        return counting(meter, self._policy, more)


class _Count:
    """How often something happened. A scrape of many takes less time than it takes of the client's own counters."""

    __slots__ = ("_lock", "created", "number")

    def __init__(self) -> None:
        self.number = 0
        self.created = time.time()
        # Hooks may be announced in any thread.
        self._lock = threading.Lock()

    def more(self) -> None:
        """Once more."""
        with self._lock:
            self.number += 1


def _counter(meter: Counted) -> CounterMetricFamily:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(meter.plain_name, meter.help, labels=meter.labels)


def _gauge(meter: Read) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(meter.plain_name, meter.help, labels=meter.labels)


def _client() -> Any:
    try:
        import prometheus_client
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "PrometheusMetrics needs prometheus_client, which is not installed; install lifecycle-control[prometheus]",
            name=error.name,
        ) from error
    return prometheus_client
