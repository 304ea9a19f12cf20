"""`PrometheusMetrics`: what a program does, as Prometheus reads it.

Needs ``prometheus_client``, the extra ``prometheus``. What is measured is in ``_meters``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lifecycle.observe._meters import BUCKETS, COUNTED, READ, TIMED
from lifecycle.observe._onlookers import Onlooker
from lifecycle.observe._readings import Look
from lifecycle.observe._series import counting, timing
from lifecycle.observe.labels import LabelPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AsyncExitStack

    from prometheus_client import CollectorRegistry, Counter, Metric
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.metrics import MetricWrapperBase

    from lifecycle.observe._meters import Counted, Read, Timed
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["PrometheusMetrics"]


class PrometheusMetrics(Onlooker):
    """Counts and times what the hooks tell of, and reads how things are at each scrape.

    ``ProbeServer(metrics=…)`` serves it at ``/metrics``. As a main of `run` it is best the first, so that nothing
    happens before it looks; ``async with`` looks on as well, and outside a lifetime nothing is read. Afterwards it
    still says what it has counted. It may be scraped in any thread.

    Args:
        registry: where the meters are put beside others, such as ``prometheus_client.REGISTRY``; by default they are
            in one of their own.
        labels: which values labels may have.

    Raises:
        ModuleNotFoundError: if prometheus_client is not installed.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, labels: LabelPolicy | None = None) -> None:
        super().__init__()
        client = _client()
        self._is_ours = registry is None
        self._registry = client.CollectorRegistry() if registry is None else registry
        self._meters = _Meters(labels or LabelPolicy())
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

    def _open(self, held: AsyncExitStack, lifetime: Lifetime | None) -> None:
        self._meters.look = Look(lifetime)
        held.callback(setattr, self._meters, "look", None)
        if not self._is_ours:
            self._registry.register(self._meters)
            held.callback(self._registry.unregister, self._meters)
        for hook, receiver in self._meters.receivers:
            self._connect(held, hook, receiver)


class _Meters:
    """The meters as one collector of a registry."""

    def __init__(self, policy: LabelPolicy) -> None:
        self._policy = policy
        #: Reads how things are; None while nobody looks.
        self.look: Look | None = None
        self._kept: list[MetricWrapperBase] = []
        self.receivers = [
            *((each.hook, self._timed(each)) for each in TIMED),
            *((each.hook, self._counted(each)) for each in COUNTED),
        ]

    def describe(self) -> Iterator[Metric]:
        """The meters, without figures."""
        for each in self._kept:
            yield from each.describe()
        for meter in READ:
            yield _family(meter)

    def collect(self) -> Iterator[Metric]:
        """The meters with their figures; a registry calls this."""
        for each in self._kept:
            yield from each.collect()
        readings = {} if self.look is None else self.look.take()
        for meter in READ:
            yield self._read(meter, readings.get(meter.name, {}))

    def _timed(self, meter: Timed) -> Callable[..., None]:
        histogram = _client().Histogram(
            meter.plain_name, meter.help, meter.labels, unit="seconds", buckets=BUCKETS, registry=None
        )
        self._kept.append(histogram)
        return timing(meter, self._policy, lambda labels: histogram.labels(*labels).observe)

    def _counted(self, meter: Counted) -> Callable[..., None]:
        counter = _client().Counter(meter.plain_name, meter.help, meter.labels, registry=None)
        self._kept.append(counter)

        def inc(labels: tuple[str, ...]) -> Callable[[], None]:
            series: Counter = counter.labels(*labels) if labels else counter
            return series.inc

        return counting(meter, self._policy, inc)

    def _read(self, meter: Read, readings: Mapping[tuple[object, ...], float]) -> Metric:
        family = _family(meter)
        for labels, value in meter.settled(readings, self._policy).items():
            family.add_metric(labels, value)
        return family


def _family(meter: Read) -> GaugeMetricFamily:
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
