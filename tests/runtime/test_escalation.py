"""The action that each signal in a series causes, as a table."""

from __future__ import annotations

from signal import SIGHUP, SIGINT, SIGTERM

import pytest

from lifecycle.runtime.lifetimes import Settings
from lifecycle.runtime.signals import Escalation, SignalAction

STOP, COUNT, CAPTURE, FORCE = SignalAction.STOP, SignalAction.COUNT, SignalAction.CAPTURE, SignalAction.FORCE


def verdicts(
    settings: Settings, *signums: int, routed: bool = False, handled: bool = False, gap: float = 0.1
) -> list[SignalAction]:
    """Return the actions for signals that arrive ``gap`` seconds apart. The program stops when the action is STOP."""
    escalation, stopping, judged = Escalation(settings), False, []
    for number, signum in enumerate(signums):
        wanted = routed and signum == SIGINT and not stopping
        now = 100 + number * gap
        judged.append(escalation.judge(signum, routed=wanted, handled=handled, stopping=stopping, now=now))
        stopping = stopping or judged[-1] is STOP
    return judged


@pytest.mark.parametrize(
    ("force_exit", "cancel", "route_for", "expected"),
    [
        (1, None, None, [STOP, FORCE]),
        (1, None, "InterruptEvent", [STOP, FORCE]),
        (1, True, "SIGINT", [STOP, FORCE]),
        (2, True, None, [STOP, FORCE]),
        (3, True, None, [STOP, COUNT, FORCE]),
        (2, None, None, [STOP, FORCE]),
        (3, None, None, [STOP, COUNT, FORCE]),
        (2, None, "InterruptEvent", [CAPTURE, FORCE]),
        (3, None, "InterruptEvent", [CAPTURE, CAPTURE, FORCE]),
        (1, None, "SIGINT", [CAPTURE, CAPTURE, FORCE]),
        (2, None, "SIGINT", [CAPTURE, CAPTURE, CAPTURE, FORCE]),
        (1, False, None, [CAPTURE, CAPTURE, FORCE]),
        (2, False, None, [CAPTURE, CAPTURE, CAPTURE, FORCE]),
        (0, None, None, [STOP, COUNT, COUNT, COUNT, COUNT, COUNT]),
        (0, False, None, [CAPTURE] * 6),
    ],
)
def test_sigint_escalates_to_force_exit(
    force_exit: int, cancel: bool | None, route_for: str | None, expected: list[SignalAction]
) -> None:
    settings = Settings(force_exit=force_exit, cancel_on_interrupt=cancel)
    routed, handled = route_for == "SIGINT", route_for == "InterruptEvent"
    assert verdicts(settings, *[SIGINT] * len(expected), routed=routed, handled=handled) == expected


@pytest.mark.parametrize(("force_exit", "routed", "limit"), [(0, True, 0), (1, False, 2), (1, True, 3), (3, True, 5)])
def test_the_limit_is_known_before_the_first_signal(force_exit: int, routed: bool, limit: int) -> None:
    assert Escalation(Settings(force_exit=force_exit)).limit(routed=routed) == limit


def test_only_the_last_handled_press_counts() -> None:
    escalation = Escalation(Settings())
    for now in range(10):
        assert escalation.judge(SIGINT, routed=True, stopping=False, now=now) is CAPTURE
        escalation.handled()
        assert escalation.count == 1


def test_a_press_counts_if_the_previous_one_is_not_handled_yet() -> None:
    escalation = Escalation(Settings())
    for now in (0, 0.1):
        assert escalation.judge(SIGINT, routed=True, stopping=False, now=now) is CAPTURE
    escalation.handled()
    assert escalation.judge(SIGINT, routed=True, stopping=True, now=1) is FORCE


def test_a_forgiven_press_does_not_count() -> None:
    escalation = Escalation(Settings())
    for now in range(10):
        assert escalation.judge(SIGINT, routed=True, stopping=False, now=now) is CAPTURE
        escalation.uncount()
        assert escalation.count == 0


@pytest.mark.parametrize("captured", [0, 1, 2])
def test_sigterm_begins_the_shutdown_whatever_came_before(captured: int) -> None:
    settings = Settings(cancel_on_interrupt=False)
    assert verdicts(settings, *[SIGINT] * captured, SIGTERM) == [CAPTURE] * captured + [STOP]


def test_sigterm_begins_the_shutdown_even_where_the_next_signal_would_force() -> None:
    assert verdicts(Settings(force_exit=2), SIGINT, SIGTERM, SIGTERM, handled=True, gap=1) == [CAPTURE, STOP, FORCE]


def test_signals_of_any_kind_count_towards_force_exit() -> None:
    assert verdicts(Settings(), SIGTERM, SIGINT) == [STOP, FORCE]


def test_a_series_ends_after_a_pause() -> None:
    assert verdicts(Settings(cancel_on_interrupt=False, reset_after=5), *[SIGINT] * 6, gap=5.0) == [CAPTURE] * 6


def test_a_series_continues_until_the_pause_is_over() -> None:
    assert verdicts(Settings(cancel_on_interrupt=False, reset_after=5), *[SIGINT] * 3, gap=4.9)[-1] is FORCE


def test_a_series_never_ends_while_the_program_stops() -> None:
    assert verdicts(Settings(), SIGINT, SIGINT, gap=1000.0) == [STOP, FORCE]


def test_a_sigint_within_50_ms_belongs_to_the_press_before() -> None:
    assert verdicts(Settings(), SIGINT, SIGINT, SIGINT, gap=0.03) == [STOP, SignalAction.REPEAT, FORCE]


@pytest.mark.parametrize(
    ("first", "second"),
    [(SIGTERM, SIGTERM), (SIGHUP, SIGHUP), (SIGTERM, SIGHUP), (SIGINT, SIGTERM)],
    ids=["by parent and group", "by shell and terminal", "by systemd with SendSIGHUP", "by terminal and parent"],
)
def test_one_request_to_stop_that_arrives_twice_within_a_second_counts_once(first: int, second: int) -> None:
    repeat = SignalAction.REPEAT
    assert verdicts(Settings(), first, second, second, gap=0.4) == [STOP, repeat, repeat]
    assert verdicts(Settings(), first, second, gap=1) == [STOP, FORCE]


def test_ctrl_c_right_after_sigterm_counts() -> None:
    assert verdicts(Settings(), SIGTERM, SIGINT, gap=0.01) == [STOP, FORCE]


def test_a_sigterm_right_after_a_captured_ctrl_c_begins_the_shutdown() -> None:
    settings = Settings(cancel_on_interrupt=False)
    repeat = SignalAction.REPEAT
    assert verdicts(settings, SIGINT, SIGTERM, SIGTERM, gap=0.01) == [CAPTURE, STOP, repeat]
    # The second SIGTERM arrives within a second of the first one, but not of the SIGINT.
    assert verdicts(settings, SIGINT, SIGTERM, SIGTERM, gap=0.6) == [CAPTURE, STOP, repeat]


def test_reset_begins_a_new_series() -> None:
    escalation = Escalation(Settings(cancel_on_interrupt=False))
    for now in range(6):
        assert escalation.judge(SIGINT, routed=False, stopping=False, now=now) is CAPTURE
        escalation.reset()


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
