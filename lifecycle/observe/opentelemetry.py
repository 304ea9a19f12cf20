"""`OpenTelemetryMetrics` and `OpenTelemetryTraces`: metrics and spans for the SDK that your program configures.

This module needs OpenTelemetry's API (the extra ``otel``), but not its SDK.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lifecycle._durations import in_seconds
from lifecycle._util import needs_extra
from lifecycle.journal.threads import LoopThread
from lifecycle.observe import metrics
from lifecycle.observe.hook_observer import HookObserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AsyncExitStack

    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

    from lifecycle._durations import Duration
    from lifecycle.hooks import Hook
    from lifecycle.observe.metrics import LabelPolicy
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["OpenTelemetryMetrics", "OpenTelemetryTraces"]

_log = logging.getLogger("lifecycle.observe")

_NAME = "lifecycle"


class _Flusher:
    """Flushes ``provider`` in a thread, and waits at most ``seconds`` for the flush to finish."""

    def __init__(self, what: str, provider: Any, flush_timeout: Duration) -> None:
        self._what = what
        self._provider = provider
        self._seconds = in_seconds("flush_timeout", flush_timeout, finite=True)

    async def flush(self) -> None:
        """Send the remaining data. If not all of it is sent in time, log a warning."""
        force = getattr(self._provider, "force_flush", None)
        if not callable(force):
            return
        loop = asyncio.get_running_loop()
        thread = LoopThread(f"flush {self._what}", loop)
        try:
            async with asyncio.timeout(self._seconds):
                sent = await loop.run_in_executor(thread, force, int(self._seconds * 1000))
        except TimeoutError:
            sent = False
        except Exception as error:  # noqa: BLE001  # an exporter's error must not prevent a normal exit
            _log.error("could not send %s: %r", self._what, error)
            return
        finally:
            thread.shutdown(wait=False)
        # We do not test for falsehood, because some providers return None on success.
        if sent is False:
            _log.warning("could not send all %s within %g s", self._what, self._seconds)


class OpenTelemetryMetrics(HookObserver):
    """Counts and durations from hooks, and gauges that are read whenever the SDK collects metrics.

    The metrics are the same as in `PrometheusMetrics`. Pass this object to `run`, preferably first, or use ``async
    with``. When it closes, it flushes the provider. During a shutdown, it closes after the shutdown hooks have run.

    Args:
        provider: the meter provider; by default, the global one.
        labels: The policy for attribute values.
        flush_timeout: the maximum number of seconds to wait for the flush, which ``Lifetime.hook_timeout`` also limits.

    Raises:
        ModuleNotFoundError: if OpenTelemetry's API is not installed.
        ValueError: if ``flush_timeout`` is not greater than 0.
        TypeError: if ``labels`` is not a policy.
    """

    def __init__(
        self, provider: MeterProvider | None = None, *, labels: LabelPolicy | None = None, flush_timeout: Duration = 5.0
    ) -> None:
        super().__init__()
        self._provider = provider or _api("metrics").get_meter_provider()
        self._flusher = _Flusher("metrics", self._provider, flush_timeout)
        self._policy = metrics.checked_policy(labels)
        self._reader: metrics.GaugeReader | None = None
        meter: Meter = self._provider.get_meter(_NAME)
        self._receivers: list[tuple[Hook, Callable[..., None]]] = [
            *((each.hook, self._timed(meter, each)) for each in metrics.HISTOGRAMS),
            *((each.hook, self._counted(meter, each)) for each in metrics.COUNTERS),
        ]
        for each in metrics.GAUGES:
            meter.create_observable_gauge(each.name, [partial(self._observed, each)], description=each.help)

    def __repr__(self) -> str:
        return f"<OpenTelemetryMetrics for {self._provider!r}>"

    def _begin(self, held: AsyncExitStack, lifetime: Lifetime | None) -> None:
        # Exit callbacks run in reverse order, so the flush happens last.
        held.push_async_callback(self._flusher.flush)
        self._reader = metrics.GaugeReader(lifetime)
        held.callback(setattr, self, "_reader", None)
        self._connect(held, self._receivers)

    def _timed(self, meter: Meter, each: metrics.Histogram) -> Callable[..., None]:
        histogram = meter.create_histogram(
            each.name, "s", each.help, explicit_bucket_boundaries_advisory=metrics.BUCKETS
        )
        return metrics.timing(
            each, self._policy, lambda labels: partial(histogram.record, attributes=each.attributes(labels))
        )

    def _counted(self, meter: Meter, each: metrics.Counter) -> Callable[..., None]:
        counter = meter.create_counter(each.name, description=each.help)
        return metrics.counting(each, self._policy, lambda labels: partial(counter.add, 1, each.attributes(labels)))

    def _observed(self, each: metrics.Gauge, _options: CallbackOptions) -> Iterator[Observation]:
        observation = _api("metrics").Observation
        readings = {} if self._reader is None else self._reader.read()
        for labels, value in each.series(readings.get(each.name, {}), self._policy).items():
            yield observation(value, each.attributes(labels))


class OpenTelemetryTraces(HookObserver):
    """Spans for events and their handlers, for pool calls, and for the tasks in a flow.

    An event's span lasts from the moment the event is accepted until its outcome is known. Its parent is the span of
    the handler that emitted the event or, for an external event, the span in the event's ``traceparent`` header. The
    handler's span is a child of the event's span, and is the current span while the handler runs. When a debounce
    window merges events, their spans end, and the span of the resulting call links to them. Pool calls and processes
    that you start inherit the current span.

    Pass this object to `run`, preferably first, or use ``async with``. When it closes, it ends all open spans and
    flushes the provider. During a shutdown, it closes after the shutdown hooks have run.

    Args:
        provider: the tracer provider; by default, the global one.
        flush_timeout: the maximum number of seconds to wait for the flush, which ``Lifetime.hook_timeout`` also limits.

    Raises:
        ModuleNotFoundError: if OpenTelemetry's API is not installed.
        ValueError: if ``flush_timeout`` is not greater than 0.
    """

    def __init__(self, provider: TracerProvider | None = None, *, flush_timeout: Duration = 5.0) -> None:
        super().__init__()
        self._provider = provider or _api("trace").get_tracer_provider()
        self._flusher = _Flusher("spans", self._provider, flush_timeout)
        self._tracer = self._provider.get_tracer(_NAME)

    def __repr__(self) -> str:
        return f"<OpenTelemetryTraces for {self._provider!r}>"

    def _begin(self, held: AsyncExitStack, lifetime: Lifetime | None) -> None:
        from lifecycle.observe._spans import Spans

        del lifetime
        # Exit callbacks run in reverse order, so the flush happens last.
        held.push_async_callback(self._flusher.flush)
        spans = Spans(self._tracer)
        held.callback(spans.close)
        self._connect(held, spans.receivers)


def _api(part: str) -> Any:
    try:
        return import_module(f"opentelemetry.{part}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(needs_extra("this", "opentelemetry-api", "otel"), name=error.name) from error
