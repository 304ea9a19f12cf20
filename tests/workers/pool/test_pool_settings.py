"""A pool that cannot work is refused when it is made, in words that say what was given and what to do."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lifecycle.workers import Backoff, Status
from lifecycle.workers.pool import Pool, Process
from lifecycle.workers.pool.rosters import check_size

TARGET = "os.path:basename"


def test_a_pool_is_made_without_a_loop_and_starts_nothing() -> None:
    pool = Pool("pool", TARGET)
    assert (pool.status, pool.kind, pool.members()) == (Status.CREATED, "pool", ())
    assert pool.state().children == ()
    assert pool.stop_timeout == Process().stop_timeout


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"size": 3}, TypeError, "size=3 of 'pool' is no pair"),
        ({"size": (1, 2, 3)}, TypeError, "is no pair"),
        ({"size": (3, 1)}, ValueError, r"size=\(3, 1\) of 'pool' cannot be"),
        ({"size": (0, 0)}, ValueError, "cannot be"),
        ({"size": ("1", "2")}, TypeError, "no pair of whole numbers"),
        ({"init": "text"}, TypeError, "init='text' of 'pool' are no arguments; give a tuple"),
        ({"init": 3}, TypeError, "init=3"),
        ({"init": (threading.Lock(),)}, TypeError, "cannot pickle"),
        ({"queue": -1}, ValueError, "queue=-1 of 'pool' is too little; give 0 or more"),
        ({"queue": 1.5}, TypeError, "queue=1.5 of 'pool' is no whole number"),
        ({"queue": True}, TypeError, "queue=True"),
        ({"concurrency": 0}, ValueError, "concurrency=0 of 'pool' is too little; give 1 or more"),
        ({"deadline": 0}, ValueError, "deadline=0 of 'pool' leaves no time"),
        ({"deadline": None}, TypeError, "deadline=None of 'pool' is no number of seconds"),
        ({"codec": "yaml"}, ValueError, "codec='yaml' is unknown"),
        ({"recycle": 3}, TypeError, "recycle=3 of 'pool' is no Recycle; give one"),
        ({"sessions": "strict"}, TypeError, "sessions='strict' of 'pool' is no Sessions"),
        ({"heartbeat": 2.0}, TypeError, "is no Heartbeat"),
        ({"process": {}}, TypeError, "is no Process"),
        ({"intensity": Backoff()}, TypeError, "is no Intensity"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Pool("pool", TARGET, **settings)


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        (lambda: 1, TypeError, "lambda"),
        (42, TypeError, "42"),
        ("no such name", ValueError, "no such name"),
        ("__main__:main", ValueError, "__main__"),
        ([], ValueError, "pool"),
    ],
)
def test_targets_that_no_member_could_find_are_refused(target: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Pool("pool", target)


def test_a_pool_needs_a_name() -> None:
    with pytest.raises(ValueError, match="name must not be empty"):
        Pool("", TARGET)


def test_a_size_is_checked_and_given_back() -> None:
    assert check_size("pool", 0, 1) == (0, 1)
