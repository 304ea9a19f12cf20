"""Flows that start at the times of a cron expression, once for all processes that have the store open."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from lifecycle.flows import FlowError, FlowRow, Flows, FlowState, MissingDependencies, linear, task, workflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.flows import Store
    from lifecycle.testing import Clock

HOUR = 3600.0
BEGIN = datetime(2026, 11, 23, tzinfo=UTC)
REPORT = linear("report", task(lambda: 1, name="a"))


async def started(flows: Flows) -> list[str]:
    """Return the ids of the stored flows, oldest first."""
    return [row.id for row in await flows.store.flows()]


def hours(*after: int) -> list[str]:
    """Return the ids of the flows for full hours, counted from `BEGIN`."""
    return [f"report/{BEGIN + timedelta(hours=hour):%Y-%m-%dT%H:%M:%SZ}" for hour in after]


@pytest.fixture(autouse=True)
async def date(clock: Clock) -> None:
    clock.set_date(BEGIN + timedelta(minutes=30))


@pytest.mark.keeps_tasks  # until the fixture closes the flows
async def test_a_flow_starts_at_each_time_of_its_schedule(clock: Clock, flows: Flows) -> None:
    flows.schedule("@hourly", REPORT, timezone="UTC")
    for _ in range(3):
        await clock.advance(HOUR)
    assert await started(flows) == hours(1, 2, 3)
    assert {row.state for row in await flows.store.flows()} == {FlowState.SUCCESS}


async def test_two_processes_start_each_flow_once(clock: Clock, reopened: Callable[[], Flows]) -> None:
    async with reopened() as flows, reopened() as others:
        for each in (flows, others):
            each.schedule("@hourly", REPORT, timezone="UTC")
        for _ in range(3):
            await clock.advance(HOUR)
        assert await started(flows) == hours(1, 2, 3)
        assert await flows.purge(0) == 3
        await clock.advance(HOUR)
        assert await started(others) == hours(4)


@pytest.mark.parametrize(("catch_up", "expected"), [("none", (1, 6)), ("once", (1, 5, 6)), ("all", (1, 2, 3, 4, 5, 6))])
async def test_missed_times_are_caught_up_on(
    clock: Clock, reopened: Callable[[], Flows], catch_up: str, expected: tuple[int, ...]
) -> None:
    async with reopened() as flows:
        flows.schedule("@hourly", REPORT, timezone="UTC", catch_up=catch_up)  # type: ignore[arg-type]  # one of them
        await clock.advance(HOUR)
    await clock.advance(4 * HOUR)
    async with reopened() as flows:
        flows.schedule("@hourly", REPORT, timezone="UTC", catch_up=catch_up)  # type: ignore[arg-type]  # one of them
        await clock.advance(HOUR)
        assert await started(flows) == hours(*expected)


async def test_times_before_the_first_start_count_as_missed(clock: Clock, reopened: Callable[[], Flows]) -> None:
    async with reopened() as flows:
        flows.schedule("@hourly", REPORT, timezone="UTC", catch_up="all")
        await clock.advance(60)
    await clock.advance(2 * HOUR)
    async with reopened() as flows:
        flows.schedule("@hourly", REPORT, timezone="UTC", catch_up="all")
        await clock.advance(60)
        assert await started(flows) == hours(1, 2)


async def test_at_most_a_hundred_missed_times_are_caught_up_on(
    clock: Clock, reopened: Callable[[], Flows], caplog: pytest.LogCaptureFixture
) -> None:
    async with reopened() as flows:
        flows.schedule("@hourly", REPORT, timezone="UTC", catch_up="all")
        await clock.advance(HOUR)
    await clock.advance(150 * HOUR)
    async with reopened() as flows:
        flows.schedule("@hourly", REPORT, timezone="UTC", catch_up="all")
        await clock.advance(60)
        assert await started(flows) == hours(1, *range(52, 152))
    assert "missed more than 100 times; only the last 100 are started" in caplog.text


@pytest.mark.keeps_tasks  # until the fixture closes the flows
async def test_a_schedule_has_values_and_an_id(clock: Clock, flows: Flows) -> None:
    @task
    async def double(size: int) -> int:
        return size * 2

    flow = linear("double", double)
    flows.schedule("@hourly", flow, timezone="UTC", id="small", size=1)
    flows.schedule("@hourly", flow, timezone="UTC", id="large", size=100)
    await clock.advance(HOUR)
    rows = sorted(await flows.store.flows(), key=lambda row: row.id)
    assert [(row.id.partition("/")[0], row.store) for row in rows] == [
        ("large", '{"size":100}'),
        ("small", '{"size":1}'),
    ]


@pytest.mark.keeps_tasks  # until the fixture closes the flows
async def test_a_workflow_starts_with_its_arguments(clock: Clock, flows: Flows) -> None:
    @workflow
    async def summary(city: str, *, pages: int) -> str:
        return f"{city} {pages}"

    flows.schedule("@hourly", summary, "Oslo", timezone="UTC", pages=3)
    await clock.advance(HOUR)
    (info,) = await flows.list()
    assert (info.id, info.kind, info.result) == ("summary/2026-11-23T01:00:00Z", "workflow", "Oslo 3")
    with pytest.raises(TypeError, match="city"):
        flows.schedule("@daily", summary, pages=3, id="other")


@pytest.mark.keeps_tasks  # until the fixture closes the flows
async def test_a_flow_that_was_started_before_is_not_started_again(clock: Clock, flows: Flows) -> None:
    await flows.store.create(FlowRow(hours(1)[0], "other"))
    flows.schedule("@hourly", REPORT, timezone="UTC")
    await clock.advance(HOUR)
    await clock.advance(HOUR)
    assert await started(flows) == hours(1, 2)


@pytest.mark.keeps_tasks  # until the fixture closes the flows
async def test_a_schedule_continues_after_an_error_of_the_store(
    clock: Clock, flows: Flows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    working = flows.store.start_scheduled
    failures = [OSError("no space")]

    async def fails_once(flow: FlowRow, schedule: str, *, due: float) -> bool:
        if failures:
            raise failures.pop()
        return await working(flow, schedule, due=due)

    monkeypatch.setattr(flows.store, "start_scheduled", fails_once)
    flows.schedule("@hourly", REPORT, timezone="UTC")
    await clock.advance(HOUR)
    assert await started(flows) == hours(1)
    assert "schedule report cannot start its flow: no space" in caplog.text


async def test_a_clock_that_was_ahead_does_not_silence_a_schedule_after_a_restart(
    clock: Clock, reopened: Callable[[], Flows], caplog: pytest.LogCaptureFixture
) -> None:
    async with reopened() as flows:
        clock.set_date(BEGIN + timedelta(days=365, minutes=30))
        flows.schedule("@hourly", REPORT, timezone="UTC", catch_up="all")
        await clock.advance(HOUR)
    clock.set_date(BEGIN + timedelta(hours=5, minutes=30))
    async with reopened() as flows:
        flows.schedule("@hourly", REPORT, timezone="UTC", catch_up="all")
        await clock.advance(2 * HOUR)
        assert await started(flows) == hours(365 * 24 + 1, 6, 7)
    assert caplog.text.count("schedule report was last started at 2027-11-23T01:00:00Z, which is in the future") == 1


@pytest.mark.keeps_tasks  # until the fixture closes the flows
async def test_a_clock_that_was_ahead_does_not_silence_a_running_schedule(clock: Clock, flows: Flows) -> None:
    flows.schedule("@hourly", REPORT, timezone="UTC")
    await clock.advance(HOUR)
    clock.set_date(BEGIN + timedelta(days=365, minutes=30))
    await clock.advance(HOUR)
    clock.set_date(BEGIN + timedelta(hours=5, minutes=30))
    await clock.advance(3 * HOUR)
    assert (await started(flows))[-2:] == hours(7, 8)


@pytest.mark.keeps_tasks  # until the fixture closes the flows
async def test_a_damaged_time_of_the_last_start_is_replaced(clock: Clock, flows: Flows) -> None:
    await flows.store.scheduled("report", now=1e300)
    flows.schedule("@hourly", REPORT, timezone="UTC")
    await clock.advance(HOUR)
    assert await started(flows) == hours(1)


@pytest.mark.keeps_tasks  # until the fixture closes the flows
async def test_wrong_schedules_are_refused(flows: Flows) -> None:
    for wrong, message in (
        ({"expression": "3 o'clock"}, "is not a cron expression"),
        ({"timezone": "Nowhere/Here"}, "timezone='Nowhere/Here' is unknown"),
        ({"catch_up": "some"}, "catch_up='some' is unknown; use one of 'none', 'once', 'all'"),
    ):
        options = {"expression": "@hourly", "timezone": "UTC", "catch_up": "none"} | wrong
        with pytest.raises(ValueError, match=message):
            flows.schedule(options.pop("expression"), REPORT, **options)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(MissingDependencies):
        flows.schedule("@hourly", linear("f", task(lambda size: size, name="a")))
    flows.schedule("@hourly", REPORT)
    with pytest.raises(FlowError, match="there is already a schedule 'report'; pass another id"):
        flows.schedule("@daily", REPORT)


async def test_schedules_need_open_flows() -> None:
    with pytest.raises(FlowError, match="is not open; enter it"):
        Flows().schedule("@hourly", REPORT)


# -- the store ---------------------------------------------------------------------------------------------------------


async def test_the_store_creates_one_flow_per_time(make_store: Callable[[], Store]) -> None:
    async with make_store() as store:
        assert await store.scheduled("s", now=10.0) == 10.0
        assert await store.scheduled("s", now=20.0) == 10.0
        row = FlowRow("s/1", "f", epoch=1, owner="me", store='{"x":1}', created=5.0)
        assert not await store.start_scheduled(row, "s", due=10.0)
        assert await store.start_scheduled(row, "s", due=11.0)
        assert not await store.start_scheduled(row, "s", due=11.0)
        assert await store.get("s/1") == row
        assert not await store.start_scheduled(row._replace(name="g"), "s", due=12.0)
        assert await store.scheduled("s", now=20.0) == 12.0
        assert await store.get("s/1") == row
