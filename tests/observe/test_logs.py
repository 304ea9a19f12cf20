"""Log records contain the event, the worker and the flow, as fields and as JSON."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle._util import current_flow
from lifecycle.control import Event, Router
from lifecycle.observe import ContextFilter, JsonFormatter, structlog_context
from lifecycle.testing import Clock, running
from lifecycle.workers import TaskWorker, ThreadWorker

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator


class Kept(logging.Handler):
    """A log handler that formats records immediately."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []
        self.records: list[logging.LogRecord] = []
        self.addFilter(ContextFilter())
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, logger = Kept(), logging.getLogger("shop")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


log = logging.getLogger("shop.orders")


async def test_log_records_of_a_handler_have_its_event(clock: Clock, kept: Kept) -> None:
    router = Router()

    @router.on("order/*")
    async def pack(event: Event) -> None:
        log.info("packing %s", event.data)

    async with running(router):
        sent = await router.emit(Event("order/new", "A-1"))
    [record] = kept.records
    assert (record.event_id, record.topic, record.worker) == (sent.id, "order/new", "")  # type: ignore[attr-defined]  # the filter adds them
    [line] = kept.lines
    assert line | {"time": ""} == {
        "time": "",
        "level": "info",
        "logger": "shop.orders",
        "message": "packing A-1",
        "event_id": sent.id,
        "topic": "order/new",
    }


async def test_a_record_from_elsewhere_has_no_context_of_its_formatter(clock: Clock, kept: Kept) -> None:
    record = logging.makeLogRecord({"msg": "from outside"})
    ContextFilter().filter(record)
    router = Router()
    router.handle("a", lambda _: kept.handle(record))
    async with running(router):
        await (await router.emit(Event("a")))
    assert "topic" not in kept.lines[0]


async def test_log_records_of_a_worker_have_its_name(kept: Kept) -> None:
    async def fetch() -> None:
        log.info("fetching")

    def grind(_stop: threading.Event) -> None:
        log.info("grinding")

    for worker in (TaskWorker("fetcher", fetch), ThreadWorker("mill", grind)):
        await worker.start()
        await worker.wait()
    assert [line["worker"] for line in kept.lines] == ["fetcher", "mill"]


def test_outside_of_everything_the_fields_are_empty_and_not_in_the_json(kept: Kept) -> None:
    log.warning("hello")
    assert logging.Formatter("%(event_id)s|%(topic)s|%(worker)s|%(flow)s|%(traceparent)s").format(kept.records[0]) == (
        "||||"
    )
    assert sorted(kept.lines[0]) == ["level", "logger", "message", "time"]


def test_values_that_the_program_sets_stay(kept: Kept) -> None:
    token = current_flow.set("f-1")
    try:
        log.info("hello", extra={"topic": "mine", "order": 7})
        assert structlog_context(None, "info", {"flow": "mine"}) == {"flow": "mine"}
        assert structlog_context(None, "info", {"event": "hello"}) == {"event": "hello", "flow": "f-1"}
    finally:
        current_flow.reset(token)
    [line] = kept.lines
    assert (line["topic"], line["flow"], line["order"]) == ("mine", "f-1", 7)


def test_an_error_is_in_its_line_and_every_record_is_one_line(kept: Kept) -> None:
    try:
        int("two\nlines")
    except ValueError:
        log.exception("it\nfailed", stack_info=True)
    [line] = kept.lines
    assert line["message"] == "it\nfailed"
    assert line["exception"].endswith("literal for int() with base 10: 'two\\nlines'")
    assert line["stack"].startswith("Stack")
    assert "\n" not in JsonFormatter().format(kept.records[0])


def test_the_time_is_that_of_the_record_in_utc() -> None:
    record = logging.makeLogRecord({"created": 1_700_000_000.0625, "msg": "x"})
    assert json.loads(JsonFormatter().format(record))["time"] == "2023-11-14T22:13:20.062Z"


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


def _cycle() -> dict[Any, Any]:
    itself: dict[Any, Any] = {}
    itself["again"] = itself
    return itself


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"value": Mute()}, "(Mute that cannot be shown)"),
        ({"value": {1, 2}}, "{1, 2}"),
        ({"value": _cycle()}, "{'again': {...}}"),
        ({"value": {(1, 2): 3}}, "{(1, 2): 3}"),
        ({"value": "\ud800\n"}, "\ud800\n"),
        ({"value": float("nan")}, "nan"),
    ],
)
def test_any_record_is_written_as_json(kept: Kept, extra: dict[str, Any], expected: str) -> None:
    kept.handle(logging.makeLogRecord({"msg": "x", **extra}))
    assert kept.lines[0]["value"] == expected


@pytest.mark.parametrize("arguments", [("%d", "x"), ("%s %s", 1), ("%s", Mute())])
def test_arguments_that_do_not_fit_leave_the_message(kept: Kept, arguments: tuple[Any, ...]) -> None:
    # The record is passed directly to this handler, because other installed handlers could not format it.
    kept.handle(logging.makeLogRecord({"msg": arguments[0], "args": arguments[1:]}))
    assert kept.lines[0]["message"] == arguments[0]
