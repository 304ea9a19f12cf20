"""A pool rejects settings that cannot work. The error message contains the given value and a remedy."""

from __future__ import annotations

import dataclasses
import functools
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lifecycle.workers import Backoff, Intensity, Status
from lifecycle.workers.pool import Heartbeat, Pool, Process, Recycle, Sessions
from lifecycle.workers.pool.settings import PoolSettings, Target, function_name


def settings_of(**given: Any) -> PoolSettings:
    """Return pool settings created with the arguments ``given``."""
    defaults: dict[str, Any] = {
        "size": (1, 4),
        "init": (),
        "queue": 100,
        "deadline": 60.0,
        "concurrency": 1,
        "codec_name": None,
        "recycle": Recycle(),
        "sessions": Sessions(),
        "heartbeat": Heartbeat(),
        "process": Process(),
        "intensity": Intensity(5, 30.0),
    }
    return PoolSettings.read("ml", "models:Model", **(defaults | given))


def test_default_settings() -> None:
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
def test_extreme_settings_are_accepted(make: Any) -> None:
    record = make()
    assert record == make()
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
        setattr(record, dataclasses.fields(record)[0].name, None)


COUNTS = [(Recycle, "calls"), (Recycle, "rss"), (Sessions, "limit"), (Heartbeat, "misses"), (Process, "threads")]


@pytest.mark.parametrize(("kind", "name"), COUNTS)
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-3, ValueError), (1.5, TypeError), (True, TypeError)])
def test_counts_that_cannot_work_are_refused_by_name(kind: Any, name: str, value: object, error: Any) -> None:
    with pytest.raises(error, match=rf"^{kind.__name__}\.{name} must be .*1 or more, got {value!r}"):
        kind(**{name: value})


@pytest.mark.parametrize("name", ["ttl", "limit"])
def test_required_settings_must_not_be_none(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}.*None"):
        Sessions(**{name: None})  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("mode", ["sticky", "", None, "HINT"])
def test_an_unknown_session_mode_is_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match="must be one of 'hint', 'strict', 'fail'"):
        Sessions(mode)


@pytest.mark.parametrize(
    ("settings", "error", "why"),
    [
        ({"env": {"A=B": "1"}}, ValueError, "an environment variable's name must not"),
        ({"env": {"PORT": 8000}}, TypeError, "must be strings, such as"),
        ({"env": {"A": "\0"}}, ValueError, "NUL"),
        ({"cwd": 3}, TypeError, r"Process.cwd must be a path, got 3"),
        ({"contain": "jail"}, ValueError, "contain must be one of .*, got 'jail'"),
    ],
)
def test_process_settings_that_cannot_work_are_refused(settings: Any, error: Any, why: str) -> None:
    with pytest.raises(error, match=why):
        Process(**settings)


def test_the_environment_is_copied() -> None:
    env = {"A": "1"}
    process = Process(env=env)
    env["A=B"] = "2"
    assert process.env == {"A": "1"}


def test_threads_limit_numeric_libraries_unless_the_environment_does() -> None:
    process = Process(env={"A": "1", "B": None, "MKL_NUM_THREADS": "4"}, threads=2)
    assert settings_of(process=process).environment() == {
        "A": "1",
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "4",
        "OPENBLAS_NUM_THREADS": "2",
        "NUMEXPR_NUM_THREADS": "2",
    }
    assert settings_of().environment() == {}
    assert settings_of(process=process).removed_variables() == {"B"}


# -- the pool --------------------------------------------------------------------------------------------------------

TARGET = "os.path:basename"


def test_a_pool_is_created_without_a_loop() -> None:
    pool = Pool("pool", TARGET)
    assert (pool.status, pool.kind, pool.members()) == (Status.CREATED, "pool", ())
    assert pool.state().children == ()
    assert pool.stop_timeout == Process().stop_timeout


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"size": 3}, TypeError, "size of 'pool' must be a minimum and a maximum.*, got 3"),
        ({"size": (1, 2, 3)}, TypeError, "must be a minimum and a maximum"),
        ({"size": (3, 1)}, ValueError, r"size of 'pool' must be .*, got \(3, 1\)"),
        ({"size": (0, 0)}, ValueError, "must be a minimum of 0 or more"),
        ({"size": ("1", "2")}, TypeError, "must be two whole numbers"),
        ({"init": "text"}, TypeError, "init of 'pool' must be a tuple of arguments, got 'text'"),
        ({"init": 3}, TypeError, "init of 'pool' must be a tuple"),
        ({"init": (threading.Lock(),)}, TypeError, "cannot pickle"),
        ({"queue": -1}, ValueError, "queue of 'pool' must be 0 or more, got -1"),
        ({"queue": 1.5}, TypeError, "queue of 'pool' must be a whole number, 0 or more, got 1.5"),
        ({"queue": True}, TypeError, "got True"),
        ({"concurrency": 0}, ValueError, "concurrency of 'pool' must be 1 or more, got 0"),
        ({"codec": "yaml"}, ValueError, "codec must be one of .*, got 'yaml'"),
        ({"recycle": 3}, TypeError, "recycle of 'pool' must be of type Recycle, got 3"),
        ({"sessions": "strict"}, TypeError, "sessions of 'pool' must be of type Sessions, got 'strict'"),
        ({"heartbeat": 2.0}, TypeError, "must be of type Heartbeat"),
        ({"process": {}}, TypeError, "must be of type Process"),
        ({"intensity": Backoff()}, TypeError, "must be of type Intensity"),
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
def test_targets_that_workers_cannot_find_are_refused(target: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Pool("pool", target)


def test_a_pool_needs_a_name() -> None:
    with pytest.raises(ValueError, match="name must not be empty"):
        Pool("", TARGET)


# -- targets and functions -------------------------------------------------------------------------------------------


class Model:
    """A worker's target."""

    def predict(self) -> None:
        """Do nothing."""

    @classmethod
    def describe(cls) -> None:
        """Do nothing."""

    def __call__(self) -> None:
        """Do nothing."""


def function() -> None:
    """Do nothing."""


def shadowed() -> None:
    """Do nothing. The next function replaces this one."""


first_shadowed = shadowed


def shadowed() -> None:  # type: ignore[no-redef]  # this is the point
    """Do nothing."""


def made_inside() -> Any:
    def inner() -> None:
        """Do nothing."""

    return inner


def of_main() -> None:
    """Do nothing. The function's module is set below."""


of_main.__module__ = "__main__"


def test_a_named_target_runs_the_worker_program() -> None:
    target = Target.read("ml", "models:Model")
    assert target.argv[:2] == (sys.executable, "-P")
    assert Path(target.argv[2]).is_file()
    assert target.name == "models:Model"


@pytest.mark.parametrize("given", [["worker", "--fast"], ("worker", "--fast"), [Path("worker"), "--fast"]])
def test_a_command_is_run_unchanged(given: Any) -> None:
    target = Target.read("ml", given)
    assert (target.argv, target.name) == (("worker", "--fast"), None)


def test_workers_search_the_same_paths_for_modules_as_this_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "relative", "/absolute"])
    assert settings_of(init=("a", 1), concurrency=2).setup() == {
        "target": "models:Model",
        "init": ["a", 1],
        "path": [str(Path.cwd()), str(Path.cwd() / "relative"), "/absolute"],
        "concurrency": 2,
    }


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (function, "pass its name, 'tests.workers.pool.test_settings:function', so that each worker can import it"),
        (Model, "pass its name, 'tests.workers.pool.test_settings:Model'"),
        (lambda: 1, "a lambda has no name; define a function in a module"),
        (made_inside(), "an object defined inside a function cannot be found; move it to the top level of a module"),
        (of_main, "no other process can import __main__, which is this program; move the object to a separate module"),
        (Model(), "this object has no name; pass the name of a function or class in a module"),
        (functools.partial(function), "this object has no name"),
        (Model().predict, "bound to an object in this process; pass the method's name, 'predict'"),
        (first_shadowed, "refers to something else"),
        ("models", "'models' of 'ml' is not a valid name; pass 'module:function', 'module:Class', or the command"),
        ("models:", "is not a valid name"),
        (":Model", "is not a valid name"),
        ("models:Model:predict", "is not a valid name"),
        ("a-b:Model", "is not a valid name"),
        ("models.py:Model()", "is not a valid name"),
        ("", "is not a valid name"),
        ("__main__:Model", "no other process can import __main__"),
        ("models:<lambda>", "a lambda has no name"),
        ("models:make.<locals>.inner", "move it to the top level of a module"),
        ([], "has no command"),
        ([1], "must consist of strings and paths"),
        ([""], "must start with a program"),
        (None, "cannot be run"),
        (b"models:Model", "cannot be run"),
        ({"models:Model"}, "cannot be run"),
    ],
)
def test_an_invalid_target_is_refused_with_the_remedy(target: Any, why: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        Target.read("ml", target)
    assert why in str(refused.value)
    assert "'ml'" in str(refused.value)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("predict", "predict"),
        ("models:load.sub", "models:load.sub"),
        (function, "tests.workers.pool.test_settings:function"),
        (Model.predict, "tests.workers.pool.test_settings:Model.predict"),
        (Model.describe, "tests.workers.pool.test_settings:Model.describe"),
        (len, "builtins:len"),
    ],
)
def test_a_function_is_named_by_its_module(given: Any, name: str) -> None:
    assert function_name(given) == name


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda: 1, "cannot be called in a worker, which finds functions by name, and a lambda has no name"),
        (str.upper, "this object has no name"),
        (made_inside(), "move it to the top level of a module"),
        (of_main, "no other process can import __main__"),
        (Model().predict, "pass the method's name, 'predict'"),
        (first_shadowed, "something else"),
        (Model, "expected a function"),
        (Model(), "expected a function"),
        (functools.partial(function), "expected a function"),
        (None, "expected a function"),
        ("no name", "must be the name of a function"),
        ("", "must be the name of a function"),
        ("a.b", "must be the name of a function"),
        ("models:", "is not a valid name"),
        ("__main__:f", "no other process can import __main__"),
    ],
)
def test_a_function_that_workers_cannot_find_is_refused(given: Any, why: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        function_name(given)
    assert why in str(refused.value)
