"""What a pool is of and what a call names: what no other process could find by name is refused at once."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest

from lifecycle.workers.pool.targets import function_name, read_target


class Model:
    """What a member would serve."""

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
    """Be replaced."""


first_shadowed = shadowed


def shadowed() -> None:  # type: ignore[no-redef]  # this is the point
    """Be there."""


def made_inside() -> Any:
    def inner() -> None:
        """Do nothing."""

    return inner


def of_main() -> None:
    """Pretend to be the program's."""


of_main.__module__ = "__main__"


def test_a_name_is_executed_by_this_python_in_a_file_of_ours() -> None:
    target = read_target("ml", "models:Model")
    assert target.argv[:2] == (sys.executable, "-P")
    assert Path(target.argv[2]).is_file()
    assert target.name == "models:Model"


@pytest.mark.parametrize("given", [["worker", "--fast"], ("worker", "--fast"), [Path("worker"), "--fast"]])
def test_a_command_is_executed_as_it_is(given: Any) -> None:
    target = read_target("ml", given)
    assert (target.argv, target.name) == (("worker", "--fast"), None)


def test_a_member_looks_for_modules_where_this_program_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "relative", "/absolute"])
    setup = read_target("ml", "models:Model").setup(("a", 1), concurrency=2)
    assert setup == {
        "target": "models:Model",
        "init": ["a", 1],
        "path": [str(Path.cwd()), str(Path.cwd() / "relative"), "/absolute"],
        "concurrency": 2,
    }


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (function, "give its name, 'tests.workers.pool.test_targets:function', by which each member imports it"),
        (Model, "give its name, 'tests.workers.pool.test_targets:Model'"),
        (lambda: 1, "a lambda has none; make it a function of a module"),
        (made_inside(), "what is made inside of a function has none outside; move it to the top of a module"),
        (of_main, "__main__ is this program, which no other process imports; move it to a module of its own"),
        (Model(), "this has none; give the name of a function or class that a module has"),
        (functools.partial(function), "this has none"),
        (Model().predict, "bound to an object of this process; give the method's name, 'predict'"),
        (first_shadowed, "names is something else"),
        ("models", "'models' of 'ml' is no such name; give 'module:function', 'module:Class', or the command"),
        ("models:", "is no such name"),
        (":Model", "is no such name"),
        ("models:Model:predict", "is no such name"),
        ("a-b:Model", "is no such name"),
        ("models.py:Model()", "is no such name"),
        ("", "is no such name"),
        ("__main__:Model", "__main__ is this program"),
        ("models:<lambda>", "a lambda has none"),
        ("models:make.<locals>.inner", "move it to the top of a module"),
        ([], "has no command"),
        ([1], "is no word"),
        ([""], "is empty"),
        (None, "names nothing to call"),
        (b"models:Model", "names nothing to call"),
        ({"models:Model"}, "names nothing to call"),
    ],
)
def test_what_is_no_target_is_refused_with_why_and_what_to_do(target: Any, why: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        read_target("ml", target)
    assert why in str(refused.value)
    assert "'ml'" in str(refused.value)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("predict", "predict"),
        ("models:load.sub", "models:load.sub"),
        (function, "tests.workers.pool.test_targets:function"),
        (Model.predict, "tests.workers.pool.test_targets:Model.predict"),
        (Model.describe, "tests.workers.pool.test_targets:Model.describe"),
        (len, "builtins:len"),
    ],
)
def test_a_call_names_a_function_by_where_it_is(given: Any, name: str) -> None:
    assert function_name(given) == name


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda: 1, "cannot be called in a member, which finds functions by name, and a lambda has none"),
        (str.upper, "this has none"),
        (made_inside(), "move it to the top of a module"),
        (of_main, "__main__ is this program"),
        (Model().predict, "give the method's name, 'predict'"),
        (first_shadowed, "something else"),
        (Model, "is no function"),
        (Model(), "is no function"),
        (functools.partial(function), "is no function"),
        (None, "is no function"),
        ("no name", "is no name"),
        ("", "is no name"),
        ("a.b", "is no name"),
        ("models:", "is no such name"),
        ("__main__:f", "__main__ is this program"),
    ],
)
def test_what_a_member_cannot_find_is_refused_here(given: Any, why: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        function_name(given)
    assert why in str(refused.value)
