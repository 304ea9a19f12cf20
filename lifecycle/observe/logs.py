"""Log records that say what they are about: the event, the worker, the flow and the span of the code that logs.

Nothing here configures logging: a program puts the filter, or the formatter, where it wants them.
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

#: What every record has, for formats such as ``%(topic)s``; empty where there is none.
_NAMES = ("event_id", "topic", "worker", "flow", "traceparent")

#: What the standard library puts into a record, and what is told otherwise.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", *_NAMES}

_VARIABLES = (("worker", current_worker), ("flow", current_flow), ("traceparent", current_span))


def context() -> dict[str, object]:
    """Where this is called: ``event_id``, ``topic``, ``worker``, ``flow`` and ``traceparent``, as far as there are."""
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
    """Lets every record pass, with ``event_id``, ``topic``, ``worker``, ``flow`` and ``traceparent`` in it.

    Each is an empty text where there is none; what a record has already under such a name stays. Put it on a handler:
    filters of a logger see only what is logged there. With a ``QueueHandler`` put it on that one: the others run in
    another thread, which knows nothing of this.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add to ``record``."""
        here = context()
        for name in _NAMES:
            if name not in record.__dict__:
                setattr(record, name, here.get(name, ""))
        return True


def structlog_context(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor for structlog that adds the same, as far as there is any; what was bound already stays."""
    for name, value in context().items():
        event.setdefault(name, value)
    return event


class JsonFormatter(logging.Formatter):
    """Each record as one line of JSON: ``time`` (UTC), ``level``, ``logger``, ``message``, and what there is besides.

    That is: the context of `ContextFilter` as far as it is known (the filter need not be there), what was given as
    ``extra``, and ``exception`` and ``stack`` as texts. What JSON does not know is written as Python shows it.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        told: dict[str, Any] = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        # What the filter noted was so where the record was made, which may have been another thread.
        here = context()
        told |= {name: value for name in _NAMES if (value := record.__dict__.get(name, here.get(name)))}
        told |= {name: value for name, value in record.__dict__.items() if name not in _STANDARD and name not in told}
        if record.exc_info and record.exc_info[0] is not None:
            told["exception"] = record.exc_text or self.formatException(record.exc_info)
        if record.stack_info:
            told["stack"] = record.stack_info
        return _encoded(told)


def _timestamp(moment: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))
    return f"{whole}.{int(moment % 1 * 1000):03d}Z"


def _message(record: logging.LogRecord) -> str:
    """A message whose arguments do not fit it is better told as it is than not at all."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  # whatever an argument does when it is shown
        return str(record.msg)


def _encoded(told: dict[str, Any]) -> str:
    try:
        return json.dumps(told, default=_shown, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        # A number that is none, keys that are no texts, or what contains itself.
        return json.dumps({name: value if type(value) in (str, int) else _shown(value) for name, value in told.items()})


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  # what a program logs may be broken: that is the time when its log is read
        return f"({type(value).__name__} that cannot be shown)"
