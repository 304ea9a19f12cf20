"""Context for log records: the event, worker, flow and span in which a message is logged.

This module does not configure logging. Your program installs the filter or the formatter.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

from lifecycle._util import current_flow, current_span, current_worker
from lifecycle.control.deliveries import current

if TYPE_CHECKING:
    from collections.abc import MutableMapping

__all__ = ["ContextFilter", "JsonFormatter", "context", "structlog_context"]

#: The attributes added to each record, for format strings such as ``%(topic)s``. Unknown values are empty strings.
_NAMES = ("event_id", "topic", "worker", "flow", "traceparent")

#: The attributes that the standard library sets, and those that the formatter outputs under a different name.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", *_NAMES}

_VARIABLES = (("worker", current_worker), ("flow", current_flow), ("traceparent", current_span))


def context() -> dict[str, object]:
    """Return the caller's ``event_id``, ``topic``, ``worker``, ``flow`` and ``traceparent``, if known."""
    found: dict[str, object] = {}
    delivery = current.get()
    if delivery is not None:
        found["event_id"] = delivery.id
        found["topic"] = delivery.event.topic
    for name, variable in _VARIABLES:
        if value := variable.get():
            found[name] = value
    return found


class ContextFilter(logging.Filter):
    """A filter that adds ``event_id``, ``topic``, ``worker``, ``flow`` and ``traceparent``, and never drops a record.

    Unknown values become empty strings. If a record already has a value, the filter keeps it. Add the filter to a
    handler rather than a logger, because a logger's filters only see records logged directly to that logger. If you use
    a ``QueueHandler``, add the filter to it: the handlers behind the queue run in another thread, without the context.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the context to ``record``."""
        here = context()
        for name in _NAMES:
            if name not in record.__dict__:
                setattr(record, name, here.get(name, ""))
        return True


def structlog_context(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the known values from `context` to ``event``, as a structlog processor. Values already present are kept."""
    for name, value in context().items():
        event.setdefault(name, value)
    return event


class JsonFormatter(logging.Formatter):
    """A formatter that writes each record as one line of JSON.

    Every line has the fields ``time`` (in UTC), ``level``, ``logger`` and ``message``. When available, it also has the
    same context that `ContextFilter` adds (the filter is not required), the values passed as ``extra``, and the text
    fields ``exception`` and ``stack``. A value that JSON does not support is written as its repr.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line ending."""
        fields: dict[str, Any] = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        # Values set by the filter take precedence, because the record may come from another thread.
        here = context()
        fields |= {name: value for name in _NAMES if (value := record.__dict__.get(name, here.get(name)))}
        extra = {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
        fields |= {name: value for name, value in extra.items() if name not in fields}
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = record.exc_text or self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        return _encoded(fields)


def _timestamp(moment: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))
    return f"{whole}.{int(moment % 1 * 1000):03d}Z"


def _message(record: logging.LogRecord) -> str:
    """Return the message, or only its format string if the arguments do not match it."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  # the repr of an argument may raise anything
        return str(record.msg)


def _encoded(fields: dict[str, Any]) -> str:
    try:
        return json.dumps(fields, default=_repr, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        # The object may contain NaN, keys that are not strings, or a reference to itself.
        return json.dumps(
            {name: value if type(value) in (str, int) else _repr(value) for name, value in fields.items()}
        )


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  # an object can be logged before it is fully initialized
        return f"({type(value).__name__} that cannot be shown)"
