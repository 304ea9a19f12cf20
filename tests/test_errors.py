"""The tree of errors matches the drawing at the top of its file, and api.md."""

from __future__ import annotations

import re

import pytest

import lifecycle
from lifecycle import errors

PROMISED = {
    "NotHandled": "LifecycleError", "Dropped": "NotHandled", "RouteConflict": "LifecycleError",
    "RouterRunning": "LifecycleError", "LaneFull": "LifecycleError", "SourceFailed": "LifecycleError",
    "SourceClosed": "LifecycleError", "Interrupted": "LifecycleError", "InvalidTransition": "LifecycleError",
    "InvalidState": "InvalidTransition", "WorkerFailed": "LifecycleError", "RestartLimitReached": "LifecycleError",
    "VerificationError": "LifecycleError", "PoolError": "LifecycleError", "RemoteError": "PoolError",
    "WorkerLost": "PoolError", "PoolBusy": "PoolError", "PoolFailed": "PoolError", "PoolClosed": "PoolError",
    "SessionLost": "PoolError", "FlowError": "LifecycleError", "MissingDependencies": "FlowError",
    "AmbiguousDependency": "FlowError", "StepFailed": "FlowError", "ClaimLost": "FlowError",
}  # fmt: skip


@pytest.mark.parametrize(("name", "parent"), PROMISED.items())
def test_an_error_stands_where_it_is_promised(name: str, parent: str) -> None:
    assert getattr(errors, parent) in getattr(errors, name).__bases__


def test_some_are_errors_that_python_programs_expect() -> None:
    assert issubclass(errors.InvalidPattern, ValueError)
    assert issubclass(errors.RouteNotFound, KeyError)
    assert issubclass(errors.InvalidState, errors.FlowError)


def test_the_tree_drawn_at_the_top_is_the_real_one() -> None:
    drawn: set[tuple[str, str]] = set()
    line_of_parents: list[str] = ["LifecycleError"]
    for match in re.finditer(r"^([│├└─ ]+)(\w+)", errors.__doc__ or "", re.MULTILINE):
        depth = len(match[1]) // 4
        del line_of_parents[depth:]
        drawn.add((line_of_parents[-1], match[2]))
        line_of_parents.append(match[2])
    real = {
        (base.__name__, name)
        for name in errors.__all__
        for base in getattr(errors, name).__bases__
        if base.__module__ == errors.__name__
    }
    assert drawn == real


def test_every_error_of_the_file_is_exported_and_documented() -> None:
    here = {
        name for name, each in vars(errors).items() if isinstance(each, type) and each.__module__ == errors.__name__
    }
    assert here == set(errors.__all__)
    assert all(getattr(errors, name).__doc__ for name in here)


@pytest.mark.parametrize("name", ["Interrupted", "RouteConflict", "SourceFailed", "VerificationError", "WorkerFailed"])
def test_errors_that_programs_catch_are_exported_from_lifecycle(name: str) -> None:
    assert getattr(lifecycle, name) is getattr(errors, name)
