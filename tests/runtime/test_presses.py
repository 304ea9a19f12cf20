"""The effect of each signal in a series, as a table."""

from __future__ import annotations

from signal import SIGHUP, SIGINT, SIGTERM

import pytest

from lifecycle.runtime.presses import Action, Captor, Presses
from lifecycle.runtime.settings import Settings

STOP, COUNT, CAPTURE, FORCE, REPEAT = Action.STOP, Action.COUNT, Action.CAPTURE, Action.FORCE, Action.REPEAT
NONE, EVENT, SIGNAL = Captor


def actions(presses: Presses, *signums: int, captor: Captor = NONE, gap: float = 0.1) -> list[Action]:
    """Return the actions for signals that arrive ``gap`` seconds apart. The program stops when the action is STOP."""
    stopping, found = False, []
    for number, signum in enumerate(signums):
        found.append(presses.signal(signum, 100 + number * gap, captor=captor, stopping=stopping))
        stopping = stopping or found[-1] is STOP
    return found


@pytest.mark.parametrize(
    ("force_exit", "cancel", "captor", "expected"),
    [
        (1, None, NONE, [STOP, FORCE]),
        (1, None, EVENT, [STOP, FORCE]),
        (1, True, SIGNAL, [STOP, FORCE]),
        (2, True, NONE, [STOP, FORCE]),
        (3, True, NONE, [STOP, COUNT, FORCE]),
        (2, None, NONE, [STOP, FORCE]),
        (3, None, NONE, [STOP, COUNT, FORCE]),
        (2, None, EVENT, [CAPTURE, FORCE]),
        (3, None, EVENT, [CAPTURE, CAPTURE, FORCE]),
        (1, None, SIGNAL, [CAPTURE, CAPTURE, FORCE]),
        (2, None, SIGNAL, [CAPTURE, CAPTURE, CAPTURE, FORCE]),
        (1, False, NONE, [CAPTURE, CAPTURE, FORCE]),
        (2, False, NONE, [CAPTURE, CAPTURE, CAPTURE, FORCE]),
        (0, None, NONE, [STOP, COUNT, COUNT, COUNT, COUNT, COUNT]),
        (0, False, NONE, [CAPTURE] * 6),
    ],
)
def test_sigint_escalates_to_force_exit(
    force_exit: int, cancel: bool | None, captor: Captor, expected: list[Action]
) -> None:
    presses = Presses(force_exit, cancel)
    assert actions(presses, *[SIGINT] * len(expected), captor=captor) == expected
    assert presses.last is expected[-1]


#: For each row: the settings, the route for Ctrl+C, the seconds between the signals, the signals, and their effects.
SERIES = {
    "SIGTERM stops even the program that always captures Ctrl+C": (
        *({"cancel_on_interrupt": False}, NONE, 0.1),
        *([SIGINT, SIGINT, SIGTERM], [CAPTURE, CAPTURE, STOP]),
    ),
    "SIGTERM stops where another Ctrl+C would force an exit": (
        *({"force_exit": 2}, EVENT, 1.0),
        *([SIGINT, SIGTERM, SIGTERM], [CAPTURE, STOP, FORCE]),
    ),
    "SIGHUP stops like SIGTERM": ({}, SIGNAL, 1.0, [SIGHUP, SIGINT], [STOP, FORCE]),
    "Ctrl+C right after SIGTERM counts": ({}, NONE, 0.01, [SIGTERM, SIGINT], [STOP, FORCE]),
    "SIGTERM by parent and group": ({}, NONE, 0.4, [SIGTERM, SIGTERM, SIGTERM], [STOP, REPEAT, REPEAT]),
    "SIGHUP by shell and terminal": ({}, NONE, 0.4, [SIGHUP, SIGHUP, SIGHUP], [STOP, REPEAT, REPEAT]),
    "SIGTERM and SIGHUP by systemd": ({}, NONE, 0.4, [SIGTERM, SIGHUP, SIGHUP], [STOP, REPEAT, REPEAT]),
    "SIGINT by terminal, SIGTERM by parent": ({}, NONE, 0.4, [SIGINT, SIGTERM, SIGTERM], [STOP, REPEAT, REPEAT]),
    "SIGTERM twice within more than a second": ({}, NONE, 1.0, [SIGTERM, SIGTERM], [STOP, FORCE]),
    "SIGTERM right after a captured Ctrl+C stops": (
        *({"cancel_on_interrupt": False}, NONE, 0.01),
        *([SIGINT, SIGTERM, SIGTERM], [CAPTURE, STOP, REPEAT]),
    ),
    "the second SIGTERM repeats the first, not the Ctrl+C": (
        *({"cancel_on_interrupt": False}, NONE, 0.6),
        *([SIGINT, SIGTERM, SIGTERM], [CAPTURE, STOP, REPEAT]),
    ),
    "SIGINTs within 50 ms are one press": ({}, NONE, 0.03, [SIGINT, SIGINT, SIGINT], [STOP, REPEAT, FORCE]),
    "a press that is captured twice is one press": (
        *({}, SIGNAL, 0.03),
        *([SIGINT, SIGINT, SIGINT, SIGINT, SIGINT], [CAPTURE, REPEAT, CAPTURE, REPEAT, FORCE]),
    ),
    "a pause ends the series": (
        *({"cancel_on_interrupt": False, "reset_after": 5.0}, NONE, 5.0),
        *([SIGINT] * 6, [CAPTURE] * 6),
    ),
    "a shorter pause does not end the series": (
        *({"cancel_on_interrupt": False, "reset_after": 5.0}, NONE, 4.9),
        *([SIGINT] * 3, [CAPTURE, CAPTURE, FORCE]),
    ),
    "no pause ends the series of a program that stops": ({}, NONE, 1000.0, [SIGINT, SIGINT], [STOP, FORCE]),
}


@pytest.mark.parametrize(("settings", "captor", "gap", "signums", "expected"), SERIES.values(), ids=SERIES)
def test_the_effects_of_a_series(
    settings: dict[str, object], captor: Captor, gap: float, signums: list[int], expected: list[Action]
) -> None:
    presses = Presses(**settings)  # type: ignore[arg-type]  # each row has the right types
    assert actions(presses, *signums, captor=captor, gap=gap) == expected


@pytest.mark.parametrize(
    ("force_exit", "captor", "limit"), [(0, SIGNAL, 0), (1, NONE, 2), (1, EVENT, 2), (1, SIGNAL, 3), (3, SIGNAL, 5)]
)
def test_the_limit_is_known_before_the_first_signal(force_exit: int, captor: Captor, limit: int) -> None:
    presses = Presses(force_exit)
    assert presses.limit(captor) == limit
    assert presses.last is None


def test_only_the_last_handled_press_counts() -> None:
    presses = Presses()
    for now in range(10):
        assert presses.signal(SIGINT, now, captor=SIGNAL) is CAPTURE
        presses.handled()
        assert presses.count == 1


def test_a_press_counts_if_the_previous_one_is_not_handled_yet() -> None:
    presses = Presses()
    for now in (0, 0.1):
        assert presses.signal(SIGINT, now, captor=SIGNAL) is CAPTURE
    presses.handled()
    assert presses.signal(SIGINT, 1, captor=SIGNAL, stopping=True) is FORCE


def test_a_forgiven_press_does_not_count() -> None:
    presses = Presses()
    for now in range(10):
        assert presses.signal(SIGINT, now, captor=SIGNAL) is CAPTURE
        presses.forgive()
        assert presses.count == 0


def test_a_series_continues_with_the_presses_before_a_forgiven_one() -> None:
    presses = Presses()
    for now in (0, 1):
        assert presses.signal(SIGINT, now, captor=SIGNAL) is CAPTURE
    presses.forgive()
    assert [presses.signal(SIGINT, now, captor=SIGNAL) for now in (2, 3)] == [CAPTURE, FORCE]


def test_reset_begins_a_new_series() -> None:
    presses = Presses(cancel_on_interrupt=False)
    for now in range(6):
        assert presses.signal(SIGINT, now) is CAPTURE
        presses.reset()


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ({"force_exit": -1}, ValueError),
        ({"force_exit": 1.5}, TypeError),
        ({"force_exit": True}, TypeError),
        ({"cancel_on_interrupt": "no"}, TypeError),
        ({"exit_timeout": float("nan")}, ValueError),
        ({"reset_after": -0.1}, ValueError),
        ({"hook_timeout": "5"}, TypeError),
        ({"shutdown_timeout": None}, TypeError),
    ],
)
def test_invalid_settings_are_refused_by_name(setting: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(setting))):
        Settings(**setting)  # type: ignore[arg-type]  # that is the point
