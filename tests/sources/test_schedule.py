"""ScheduleSource: ticks at the times of a cron expression, missed ticks, and the state file."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from lifecycle.control import Router
from lifecycle.errors import SourceFailed
from lifecycle.sources import ScheduleSource
from lifecycle.testing import running

if TYPE_CHECKING:
    from pathlib import Path

    from lifecycle.testing import Clock, Recorder

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3600.0


def at(text: str, zone: Any = UTC) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=zone)


async def ticks(clock: Clock, source: ScheduleSource, seconds: float) -> list[str]:
    """Return the times of the ticks that are due within ``seconds``, in the schedule's time zone."""
    router, seen = Router(), list[str]()
    router.handle("tick/**", lambda tick: seen.append(tick.time.strftime("%m-%d %H:%M:%S")))
    router.add_source(source)
    async with running(router):
        await clock.advance(seconds)
    return seen


async def test_a_tick_has_its_scheduled_time_and_zone(clock: Clock, recorder: Recorder) -> None:
    clock.set_date(at("2026-01-01 12:00", BERLIN))
    router = Router()
    router.handle("tick/backup", recorder)
    router.add_source(ScheduleSource("0 3 * * *", name="backup", timezone="Europe/Berlin"))
    async with running(router):
        await clock.advance(15 * HOUR - 1)
        assert recorder.events == []
        await clock.advance(24 * HOUR + 1)
    first, second = recorder.events
    assert (first.time, first.count, second.count) == (at("2026-01-02 03:00", BERLIN), 1, 2)
    assert second.time - first.time == timedelta(days=1)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("@hourly", ["01-01 01:00:00", "01-01 02:00:00"]),
        ("*/30 0 * * *", ["01-01 00:30:00"]),
        ("15 */40 1 * * *", ["01-01 01:00:15", "01-01 01:40:15"]),
        ("@daily", []),
    ],
)
async def test_fields_seconds_and_names(clock: Clock, expression: str, expected: list[str]) -> None:
    clock.set_date(at("2026-01-01 00:00"))
    assert await ticks(clock, ScheduleSource(expression, timezone=UTC), 2 * HOUR + 1) == expected


async def test_a_tick_in_the_hour_that_is_skipped_in_spring_comes_after_it(clock: Clock) -> None:
    clock.set_date(at("2026-03-29 00:00", BERLIN))
    source = ScheduleSource("30 2 * * *", timezone=BERLIN)
    assert await ticks(clock, source, 26 * HOUR) == ["03-29 03:00:00", "03-30 02:30:00"]


async def test_a_tick_in_the_hour_that_repeats_in_autumn_comes_once(clock: Clock) -> None:
    clock.set_date(at("2026-10-25 00:00", BERLIN))
    source = ScheduleSource("30 2 * * *", timezone=BERLIN)
    assert await ticks(clock, source, 30 * HOUR) == ["10-25 02:30:00", "10-26 02:30:00"]


async def test_hourly_ticks_come_in_every_hour_of_both_days(clock: Clock) -> None:
    for date, hours in (("2026-03-29", 23), ("2026-10-25", 25)):
        clock.set_date(at(f"{date} 00:00", BERLIN) - timedelta(minutes=1))
        assert len(await ticks(clock, ScheduleSource("0 * * * *", timezone=BERLIN), hours * HOUR)) == hours


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("none", ["01-05 03:00:00"]),
        ("once", ["01-04 03:00:00", "01-05 03:00:00"]),
        ("all", ["01-02 03:00:00", "01-03 03:00:00", "01-04 03:00:00", "01-05 03:00:00"]),
    ],
)
async def test_ticks_missed_between_two_runs(clock: Clock, tmp_path: Path, catch_up: Any, expected: list[str]) -> None:
    def source() -> ScheduleSource:
        return ScheduleSource("0 3 * * *", timezone=UTC, catch_up=catch_up, state=tmp_path / "state.json")

    clock.set_date(at("2026-01-01 00:00"))
    assert await ticks(clock, source(), 4 * HOUR) == ["01-01 03:00:00"]
    clock.set_date(at("2026-01-04 12:00"))
    assert await ticks(clock, source(), 16 * HOUR) == expected


@pytest.mark.parametrize(("catch_up", "expected"), [("none", []), ("once", ["01-01 05:00:00"])])
async def test_ticks_missed_while_the_machine_sleeps(clock: Clock, catch_up: Any, expected: list[str]) -> None:
    clock.set_date(at("2026-01-01 00:30"))
    router, seen = Router(), list[str]()
    router.handle("tick/**", lambda tick: seen.append(tick.time.strftime("%m-%d %H:%M:%S")))
    router.add_source(ScheduleSource("@hourly", timezone=UTC, catch_up=catch_up))
    async with running(router):
        await clock.advance(60)
        clock.set_date(at("2026-01-01 05:30"))
        # The timer was set before the machine went to sleep.
        await clock.advance(29 * 60)
        assert seen == expected
        await clock.advance(60)
    assert seen == [*expected, "01-01 06:00:00"]


async def test_a_tick_that_is_slightly_late_is_sent_without_catch_up(clock: Clock) -> None:
    clock.set_date(at("2026-01-01 00:59:30"))
    router, seen = Router(), list[datetime]()
    router.handle("tick/**", lambda tick: seen.append(tick.time))
    router.add_source(ScheduleSource("@hourly", timezone=UTC))
    async with running(router):
        clock.set_date(at("2026-01-01 01:00:29"))
        await clock.advance(30)
    assert seen == [at("2026-01-01 01:00")]


async def test_a_tick_whose_handler_has_not_ended_is_repeated_after_a_crash(clock: Clock, tmp_path: Path) -> None:
    clock.set_date(at("2026-01-01 00:00"))
    state = tmp_path / "state.json"

    def source() -> ScheduleSource:
        return ScheduleSource("0 3 * * *", timezone=UTC, catch_up="once", state=state)

    router = Router(drain_timeout=0.1)
    router.handle("tick/**", lambda _: asyncio.sleep(10 * HOUR))
    router.add_source(source())
    crashed = asyncio.create_task(router.run())
    await clock.advance(4 * HOUR)
    crashed.cancel()
    await asyncio.wait([crashed])
    assert json.loads(state.read_text())["last"] == "2026-01-01T00:00:00+00:00"
    assert await ticks(clock, source(), 60) == ["01-01 03:00:00"]
    assert await ticks(clock, source(), 60) == []


async def test_jitter_delays_ticks_and_keeps_their_times(clock: Clock) -> None:
    clock.set_date(at("2026-01-01 00:00"))
    router, seen = Router(), list[tuple[float, datetime]]()
    router.handle("tick/**", lambda tick: seen.append((clock.time(), tick.time)))
    router.add_source(ScheduleSource("@hourly", timezone=UTC, jitter=timedelta(minutes=10)))
    async with running(router):
        await clock.advance(20.5 * HOUR)
    delays = [time - start * HOUR for start, (time, _) in enumerate(seen, 1)]
    assert len(seen) == 20
    assert all(0 <= delay <= 600 for delay in delays)
    assert len({round(delay) for delay in delays}) > 5
    assert {tick.minute for _, tick in seen} == {0}


async def test_the_zone_of_the_system_is_the_default(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    clock.set_date(at("2026-01-01 00:00"))
    assert await ticks(clock, ScheduleSource("0 10 * * *"), 2 * HOUR) == ["01-01 10:00:00"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expression": "every day"}, "'every day' is not a cron expression .*; use five fields"),
        ({"expression": "* * */20 * 1L"}, "'.*' never matches"),
        ({"timezone": "Europe/Atlantis"}, "timezone='Europe/Atlantis' is unknown; use a name such as"),
        ({"catch_up": "some"}, "catch_up='some' is unknown; use one of 'none', 'once', 'all'"),
    ],
)
def test_invalid_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduleSource(**{"expression": "@daily", **arguments})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a valid schedule state file"),
        ('{"name": "other", "last": "2026-01-01T00:00:00+00:00"}', "belongs to the schedule 'other'"),
    ],
)
async def test_a_state_file_that_does_not_fit_is_refused(
    clock: Clock, tmp_path: Path, content: str, message: str
) -> None:
    state = tmp_path / "state.json"
    state.write_text(content)
    router = Router()
    router.add_source(ScheduleSource("@daily", state=state))
    with pytest.raises(SourceFailed, match=message):
        await router.run()
    assert state.read_text() == content


def test_a_system_without_time_zones_is_told_to_install_tzdata() -> None:
    program = "import sys; sys.modules['tzdata'] = None; from lifecycle import ScheduleSource; ScheduleSource("
    done = subprocess.run(
        [sys.executable, "-c", program + "'0 3 * * *', timezone='Europe/Berlin')"],
        env={**os.environ, "PYTHONTZPATH": ""},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stderr.strip().endswith(
        "timezone='Europe/Berlin' is unknown; this system has no time zones, so install them: pip install tzdata"
    )
