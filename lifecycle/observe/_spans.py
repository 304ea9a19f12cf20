"""Tracing spans: hooks start and end them, and keep track of the current span and its parent in each context.

Import this module only when tracing begins, because it imports OpenTelemetry's API. Every span started here ends
when a hook reports the end of the traced operation or, at the latest, in `Spans.close`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as contexts
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lifecycle import hooks
from lifecycle._masking import error_masked, masked
from lifecycle._text import utf8
from lifecycle._util import current_span, message_of
from lifecycle.errors import Dropped, NotHandled

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext, Tracer

    from lifecycle.control.deliveries import Delivery

__all__ = ["Spans"]

_OUTCOME: Final = "lifecycle.outcome"

#: The maximum number of merged events that a call's span links to. The SDK has the same limit.
_LINKS: Final = 128

_W3C: Final = TraceContextTextMapPropagator()


class _CurrentSpan:
    """A span that is current in the context where it was started."""

    __slots__ = ("_tokens", "span")

    def __init__(self, span: Span, above: Context) -> None:
        self.span = span
        self._tokens: tuple[Token[Context], Token[str]] = (
            contexts.attach(set_span_in_context(span, above)),
            current_span.set(_traceparent(span)),
        )

    def end(self, error: BaseException | None, outcome: str = "") -> None:
        """End the span, and make the previous span current again."""
        _end(self.span, error, outcome)
        self.leave()

    def leave(self) -> None:
        """Make the previous span current again. Call this in the context where this span was started."""
        contexts.detach(self._tokens[0])
        current_span.reset(self._tokens[1])


class _Event:
    """An event's span, and the span of its running handler."""

    __slots__ = ("context", "handling", "span")

    def __init__(self, span: Span, above: Context) -> None:
        self.span = span
        self.context = set_span_in_context(span, above)
        self.handling: _CurrentSpan | None = None

    def leave(self, error: BaseException | None, outcome: str = "") -> None:
        """End the handler's span, if there is one."""
        if self.handling is not None:
            self.handling.end(error, outcome)
            self.handling = None


class Spans:
    """All open spans, and the hook receivers that start and end spans."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        # Event spans by delivery id.
        self._events: dict[int, _Event] = {}
        # The span contexts of events merged into a call that has not begun yet, by the call's id.
        self._merged: dict[int, list[SpanContext]] = {}
        self._calls: dict[object, Span] = {}
        self._tasks: dict[object, _CurrentSpan] = {}
        self.receivers = (
            (hooks.delivery_accepted, self._accepted),
            (hooks.event_merged, self._event_merged),
            (hooks.handler_started, self._handler_started),
            (hooks.handler_passed, self._handler_passed),
            (hooks.delivery_ended, self._delivery_ended),
            (hooks.call_started, self._call_started),
            (hooks.call_ended, self._call_ended),
            (hooks.flow_task_started, self._task_started),
            (hooks.flow_task_ended, self._task_ended),
        )

    def close(self) -> None:
        """End all open spans, because after this call no hook can end them."""
        spans = [each.span for each in self._events.values()]
        spans += [each.handling.span for each in self._events.values() if each.handling is not None]
        spans += [*self._calls.values(), *(each.span for each in self._tasks.values())]
        for span in spans:
            span.set_attribute(_OUTCOME, "unknown")
            span.end()
        _leave_later({number: each.handling for number, each in self._events.items() if each.handling is not None})
        for left in (self._events, self._merged, self._calls, self._tasks):
            left.clear()

    # -- events ---------------------------------------------------------------------------------------------------

    def _accepted(self, _sender: object, *, delivery: Delivery) -> None:
        self._begin(delivery, _above(delivery))

    def _begin(self, delivery: Delivery, above: Context, links: list[Link] | None = None) -> _Event:
        route = delivery.route
        span = self._tracer.start_span(
            "event" if route is None else f"event {route.text}",
            above,
            SpanKind.PRODUCER,
            {"lifecycle.topic": utf8(getattr(delivery.event, "topic", "")), "lifecycle.delivery": delivery.id},
            links,
        )
        event = self._events[delivery.id] = _Event(span, above)
        return event

    def _event_merged(self, _sender: object, *, event: object, pattern: str, delivery: Delivery) -> None:
        del event, pattern
        call, merged = delivery.into, self._events.pop(delivery.id, None)
        if merged is None or call is None:
            return
        merged.leave(None, "passed")
        _end(merged.span, None, "merged")
        if not call.done:
            links = self._merged.setdefault(call.id, [])
            if len(links) < _LINKS:
                links.append(merged.span.get_span_context())

    def _known(self, delivery: Delivery) -> _Event:
        """Return an event's span. If the event has none, start one.

        Merged calls, and events accepted before tracing began, have no span yet.
        """
        known = self._events.get(delivery.id)
        if known is not None:
            return known
        merged = self._merged.pop(delivery.id, None)
        if merged is None:
            return self._begin(delivery, _above(delivery))
        return self._begin(delivery, contexts.Context(), [Link(each) for each in merged])

    def _handler_started(self, _sender: object, *, event: object, pattern: str, delivery: Delivery) -> None:
        del event
        known = self._known(delivery)
        span = self._tracer.start_span(
            f"handle {pattern}",
            known.context,
            SpanKind.CONSUMER,
            {"lifecycle.pattern": pattern, "lifecycle.attempt": delivery.attempt},
        )
        known.handling = _CurrentSpan(span, known.context)

    def _handler_passed(self, _sender: object, *, event: object, pattern: str, delivery: Delivery) -> None:
        del event, pattern
        if (known := self._events.get(delivery.id)) is not None:
            known.leave(None, "passed")

    def _delivery_ended(self, _sender: object, *, delivery: Delivery) -> None:
        known, error = self._known(delivery), delivery.error
        del self._events[delivery.id]
        known.leave(error)
        _end(known.span, error)

    # -- pool calls -----------------------------------------------------------------------------------------------

    def _call_started(self, sender: Any, *, call: Any) -> None:
        function = call.spec.function
        attributes = {"lifecycle.pool": sender.name, "lifecycle.function": function}
        span = self._calls[call] = self._tracer.start_span(f"call {function}", None, SpanKind.CLIENT, attributes)
        call.traceparent = _traceparent(span) or call.traceparent

    def _call_ended(self, _sender: object, *, call: Any, error: BaseException | None) -> None:
        span = self._calls.pop(call, None)
        if span is None:
            return
        if call.worker is not None:
            span.set_attribute("lifecycle.member", call.worker.id)
        _end(span, error)

    # -- flow tasks -----------------------------------------------------------------------------------------------

    def _task_started(self, sender: Any, *, task: Any) -> None:
        span = self._tracer.start_span(
            f"{'revert' if task.reverting else 'task'} {task.name}",
            attributes={
                "lifecycle.flow": getattr(sender, "name", ""),
                "lifecycle.flow.id": task.flow,
                "lifecycle.attempt": task.attempt,
            },
        )
        self._tasks[asyncio.current_task()] = _CurrentSpan(span, contexts.get_current())

    def _task_ended(self, _sender: object, *, task: object, error: BaseException | None) -> None:
        del task
        if (known := self._tasks.pop(asyncio.current_task(), None)) is not None:
            known.end(error)


def _leave_later(left: dict[int, _CurrentSpan]) -> None:
    """Restore the previous span when each handler finishes, so that the next event does not inherit its span."""

    def ended(_sender: object, *, delivery: Delivery, **_: object) -> None:
        if (current := left.pop(delivery.id, None)) is not None:
            current.leave()
        if not left:
            for hook in ends:
                hook.disconnect(ended)

    ends = (hooks.handler_passed, hooks.delivery_ended) if left else ()
    for hook in ends:
        hook.connect(ended)


def _end(span: Span, error: BaseException | None, outcome: str = "") -> None:
    """End ``span`` with ``outcome``, or with the outcome that ``error`` implies. Dropped events are not errors."""
    outcome = outcome or _outcome(error)
    span.set_attribute(_OUTCOME, outcome)
    if error is not None and outcome == "failed":
        span.record_exception(error, _exception_masked(error))
        span.set_status(Status(StatusCode.ERROR, utf8(error_masked(error))))
    elif error is not None:
        span.set_attribute("lifecycle.reason", masked(utf8(error)))
    span.end()


def _exception_masked(error: BaseException) -> dict[str, str]:
    """Return the attributes of the exception event for ``error``, with secrets masked."""
    trace = "".join(traceback.format_exception(error))
    return {"exception.message": masked(utf8(message_of(error))), "exception.stacktrace": masked(utf8(trace))}


def _outcome(error: BaseException | None) -> str:
    match error:
        case None:
            return "handled"
        case Dropped():
            return "dropped"
        case NotHandled():
            return "unrouted"
        case asyncio.CancelledError():
            return "cancelled"
        case _:
            return "failed"


def _above(delivery: Delivery) -> Context:
    """Return the context of the handler that emitted the event or, for an external event, of its sender."""
    here = contexts.get_current()
    if delivery.parent is not None:
        return here
    sent = _sent_with(delivery.event)
    return _W3C.extract(sent, here) if sent else here


def _sent_with(event: object) -> dict[str, str]:
    """Return an event's trace headers. The event may come from any sender, so its headers can have any type."""
    headers: Any = getattr(event, "headers", None)
    if not isinstance(headers, Mapping):
        return {}
    named = {name: _text(headers, name) for name in ("traceparent", "tracestate")}  # pyright: ignore[reportUnknownArgumentType]  # see _text
    return named if named["traceparent"] else {}


def _text(headers: Mapping[Any, Any], name: str) -> str:
    value = headers.get(name)
    return value if isinstance(value, str) else ""


def _traceparent(span: Span) -> str:
    """Return the span in W3C format, or an empty string if the span is not recorded."""
    it = span.get_span_context()
    return f"00-{it.trace_id:032x}-{it.span_id:016x}-{it.trace_flags:02x}" if it.is_valid else ""
