"""What a pool is told is checked when it is written down, not when it is needed."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from lifecycle.workers.pool import Heartbeat, Process, Recycle, Sessions


def test_the_defaults_are_those_that_are_promised() -> None:
    assert dataclasses.astuple(Recycle()) == (None, None, None, 60.0)
    assert dataclasses.astuple(Sessions()) == ("hint", 300.0, 10_000)
    assert dataclasses.astuple(Heartbeat()) == (2.0, 10.0, 3)
    assert dataclasses.astuple(Process()) == (None, None, "auto", 0.5, 5.0, 30.0, None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Recycle(calls=1, age=0.1, rss=1, idle=None),
        lambda: Sessions("strict", ttl=0.1, limit=1),
        lambda: Sessions(mode="fail"),
        lambda: Heartbeat(every=1, timeout=1, misses=1),
        lambda: Process(env={}, cwd=Path(), contain="group", grace=0, stop_timeout=0, start_timeout=1, threads=1),
    ],
)
def test_settings_at_the_edge_of_what_can_work(make: Any) -> None:
    record = make()
    assert record == make()
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
        setattr(record, dataclasses.fields(record)[0].name, None)


SECONDS = [
    (Recycle, "age"),
    (Recycle, "idle"),
    (Sessions, "ttl"),
    (Heartbeat, "every"),
    (Heartbeat, "timeout"),
    (Process, "grace"),
    (Process, "stop_timeout"),
    (Process, "start_timeout"),
]
COUNTS = [(Recycle, "calls"), (Sessions, "limit"), (Heartbeat, "misses"), (Process, "threads")]


@pytest.mark.parametrize(("kind", "name"), SECONDS)
@pytest.mark.parametrize("value", [-1, -0.001, math.inf, math.nan])
def test_seconds_that_cannot_work_are_refused_by_name(kind: Any, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{kind.__name__}\({name}={value!r}\) is no number of seconds"):
        kind(**{name: value})


@pytest.mark.parametrize(("kind", "name"), [each for each in SECONDS if each[1] not in ("grace", "stop_timeout")])
def test_no_seconds_at_all_are_too_few(kind: Any, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}=0\) .* give more than 0"):
        kind(**{name: 0})


@pytest.mark.parametrize(("kind", "name"), SECONDS)
@pytest.mark.parametrize("value", ["5", True, b"1", [1]])
def test_what_is_no_number_of_seconds_is_refused(kind: Any, name: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"{name}=.* is no number of seconds"):
        kind(**{name: value})


@pytest.mark.parametrize(("kind", "name"), COUNTS)
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-3, ValueError), (1.5, TypeError), (True, TypeError)])
def test_counts_that_cannot_work_are_refused_by_name(kind: Any, name: str, value: object, error: Any) -> None:
    with pytest.raises(error, match=rf"^{kind.__name__}\({name}={value!r}\) is .*; give 1 or more"):
        kind(**{name: value})


@pytest.mark.parametrize("name", ["ttl", "limit"])
def test_what_has_to_be_given_may_not_be_none(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}=None"):
        Sessions(**{name: None})  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize(
    ("rss", "expected"),
    [
        (None, None),
        (1, 1),
        (50_000_000, 50_000_000),
        ("1 GiB", 2**30),
        ("1GiB", 2**30),
        (" 512 MB ", 512_000_000),
        ("512 MiB", 512 * 2**20),
        ("1.5 gib", 3 * 2**29),
        ("800 kB", 800_000),
        ("2 TiB", 2**41),
        ("100 B", 100),
    ],
)
def test_memory_is_given_in_bytes_or_as_people_write_it(rss: Any, expected: int | None) -> None:
    recycle = Recycle(rss=rss)
    assert recycle.rss_bytes == expected
    assert recycle.rss == rss


@pytest.mark.parametrize("rss", ["", "GiB", "1", "1 G", "-1 GiB", "1 iB", "1,5 GiB", "1 GiB 2", "\u0661 GiB", "1 PiB"])
def test_memory_that_is_not_understood_is_refused(rss: str) -> None:
    with pytest.raises(ValueError, match="is no amount of memory that is understood; write it as '512 MB'"):
        Recycle(rss=rss)


@pytest.mark.parametrize("rss", [0, -1, "0 GiB"])
def test_no_memory_is_too_little(rss: Any) -> None:
    with pytest.raises(ValueError, match="leaves no memory to work in"):
        Recycle(rss=rss)


@pytest.mark.parametrize("rss", [1.5, True, b"1 GiB"])
def test_what_is_no_amount_of_memory_is_refused(rss: Any) -> None:
    with pytest.raises(TypeError, match="is no amount of memory; give bytes"):
        Recycle(rss=rss)


@pytest.mark.parametrize("mode", ["sticky", "", None, "HINT"])
def test_a_mode_that_there_is_not_is_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match="is unknown; give one of 'hint', 'strict', 'fail'"):
        Sessions(mode)


@pytest.mark.parametrize(
    ("settings", "error", "why"),
    [
        ({"env": {"A=B": "1"}}, ValueError, "'A=B' cannot name"),
        ({"env": {"PORT": 8000}}, TypeError, "give strings"),
        ({"env": {"A": "\0"}}, ValueError, "NUL"),
        ({"cwd": 3}, TypeError, r"Process\(cwd=3\) is no directory"),
        ({"contain": "jail"}, ValueError, "contain='jail' is unknown"),
    ],
)
def test_a_process_that_could_not_be_started_is_refused(settings: Any, error: Any, why: str) -> None:
    with pytest.raises(error, match=why):
        Process(**settings)


def test_the_environment_is_copied() -> None:
    env = {"A": "1"}
    process = Process(env=env)
    env["A=B"] = "2"
    assert process.env == {"A": "1"}


def test_threads_limit_the_libraries_for_numbers_where_the_environment_does_not() -> None:
    process = Process(env={"A": "1", "MKL_NUM_THREADS": "4"}, threads=2)
    assert process.environment == {
        "A": "1",
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "4",
        "OPENBLAS_NUM_THREADS": "2",
        "NUMEXPR_NUM_THREADS": "2",
    }
    assert Process().environment == {}
