"""`OpenTelemetryMetrics` and `OpenTelemetryTraces`: what a program does, for whichever SDK it has set up.

Need the API of OpenTelemetry, the extra ``otel``, and nothing of an SDK. What is measured is in ``_meters``, how spans
are made in ``_spans``.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from lifecycle.journal.threads import LoopThread
from lifecycle.observe._meters.readings import Reader
from lifecycle.observe._meters.series import counting, timing
from lifecycle.observe._meters.tables import BUCKETS, COUNTED, READ, TIMED
from lifecycle.observe.hook_observer import HookObserver
from lifecycle.observe.labels import policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AsyncExitStack

    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

    from lifecycle.hooks import Hook
    from lifecycle.observe._meters.tables import Counted, Read, Timed
    from lifecycle.observe.labels import LabelPolicy
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["OpenTelemetryMetrics", "OpenTelemetryTraces"]

_log = logging.getLogger("lifecycle.observe")

_NAME = "lifecycle"


class _Sending:
    """Has ``provider`` send what it still has, in a thread that nobody waits for longer than ``seconds``."""

    def __init__(self, what: str, provider: Any, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"flush_timeout={seconds!r} leaves no time to send anything; give seconds above 0")
        self._what = what
        self._provider = provider
        self._seconds = seconds

    async def flush(self) -> None:
        """Send it; what is not sent in time is given up, and logged."""
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
        except Exception as error:  # noqa: BLE001  # an exporter's error is no reason to end otherwise
            _log.error("%s could not be sent: %r", self._what, error)
            return
        finally:
            thread.shutdown(wait=False)
        # Some say nothing where all went well.
        if sent is False:
            _log.warning("%s were not all sent within %g s", self._what, self._seconds)


class OpenTelemetryMetrics(HookObserver):
    """Counts and times what the hooks tell of, and reads how things are whenever the SDK collects.

    The meters are those of `PrometheusMetrics`. A main of `run`, best the first, or ``async with``. When it is left,
    and at the end of the program when the shutdown hooks have run, the provider is asked to send what it has.

    Args:
        provider: what makes meters; by default the one that is set for the process.
        labels: which values attributes may have.
        flush_timeout: seconds that sending may take at the end; ``hook_timeout`` of the lifetime bounds it, too.

    Raises:
        ModuleNotFoundError: if the API of OpenTelemetry is not installed.
        ValueError: for a time that is none.
        TypeError: for what is no policy.
    """

    def __init__(
        self, provider: MeterProvider | None = None, *, labels: LabelPolicy | None = None, flush_timeout: float = 5.0
    ) -> None:
        super().__init__()
        self._provider = provider or _api("metrics").get_meter_provider()
        self._sending = _Sending("metrics", self._provider, flush_timeout)
        self._policy = policy_of(labels)
        self._reader: Reader | None = None
        meter: Meter = self._provider.get_meter(_NAME)
        self._receivers: list[tuple[Hook, Callable[..., None]]] = [
            *((each.hook, self._timed(meter, each)) for each in TIMED),
            *((each.hook, self._counted(meter, each)) for each in COUNTED),
        ]
        for each in READ:
            meter.create_observable_gauge(each.name, [partial(self._observed, each)], description=each.help)

    def __repr__(self) -> str:
        return f"<OpenTelemetryMetrics for {self._provider!r}>"

    def _begin(self, held: AsyncExitStack, lifetime: Lifetime | None) -> None:
        # What is pushed first is done last.
        held.push_async_callback(self._sending.flush)
        self._reader = Reader(lifetime)
        held.callback(setattr, self, "_reader", None)
        self._connect(held, self._receivers)

    def _timed(self, meter: Meter, each: Timed) -> Callable[..., None]:
        histogram = meter.create_histogram(each.name, "s", each.help, explicit_bucket_boundaries_advisory=BUCKETS)
        return timing(each, self._policy, lambda labels: partial(histogram.record, attributes=each.attributes(labels)))

    def _counted(self, meter: Meter, each: Counted) -> Callable[..., None]:
        counter = meter.create_counter(each.name, description=each.help)
        return counting(each, self._policy, lambda labels: partial(counter.add, 1, each.attributes(labels)))

    def _observed(self, each: Read, _options: CallbackOptions) -> Iterator[Observation]:
        observation = _api("metrics").Observation
        readings = {} if self._reader is None else self._reader.take()
        for labels, value in each.settled(readings.get(each.name, {}), self._policy).items():
            yield observation(value, each.attributes(labels))


class OpenTelemetryTraces(HookObserver):
    """Makes spans of events, of their handlers, of calls of a pool and of tasks of a flow.

    An event's span begins when it comes in and ends when it is known what became of it; it is below the handler that
    emitted it, or the span that its header ``traceparent`` names. The handler's is below it, and is the current one
    while the handler runs. Events that were merged in a window have a span that ends there; that of the call which
    they became links to them. What is called in a pool, and a process that is started, is told the current span.

    A main of `run`, best the first, or ``async with``. When it is left, and at the end of the program when the shutdown
    hooks have run, spans that are open are ended, and the provider is asked to send what it has.

    Args:
        provider: what makes tracers; by default the one that is set for the process.
        flush_timeout: seconds that sending may take at the end; ``hook_timeout`` of the lifetime bounds it, too.

    Raises:
        ModuleNotFoundError: if the API of OpenTelemetry is not installed.
        ValueError: for a time that is none.
    """

    def __init__(self, provider: TracerProvider | None = None, *, flush_timeout: float = 5.0) -> None:
        super().__init__()
        self._provider = provider or _api("trace").get_tracer_provider()
        self._sending = _Sending("spans", self._provider, flush_timeout)
        self._tracer = self._provider.get_tracer(_NAME)

    def __repr__(self) -> str:
        return f"<OpenTelemetryTraces for {self._provider!r}>"

    def _begin(self, held: AsyncExitStack, lifetime: Lifetime | None) -> None:
        from lifecycle.observe._spans import Spans

        del lifetime
        # What is pushed first is done last.
        held.push_async_callback(self._sending.flush)
        spans = Spans(self._tracer)
        held.callback(spans.close)
        self._connect(held, spans.receivers)


def _api(part: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f"opentelemetry.{part}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "this needs OpenTelemetry's API, which is not installed; install lifecycle-control[otel]", name=error.name
        ) from error
