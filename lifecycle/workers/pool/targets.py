"""What a pool is of, and what a call names: checked here, before anything starts, and found in the member by name."""

from __future__ import annotations

import inspect
import os
import sys
from dataclasses import dataclass
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Any, Final

from lifecycle.workers.commands import words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Target", "function_name", "read_target"]

_FORMS: Final = (
    "give 'module:function', 'module:Class', or the command of a program that speaks the protocol, as a list"
)
_PROGRAM: Final = os.path.join(os.path.dirname(__file__), "child", "program.py")  # noqa: PTH118, PTH120  # as in the program itself


@dataclass(frozen=True, slots=True)
class Target:
    """What each member of a pool executes, and what it is to serve."""

    argv: tuple[str, ...]
    #: ``module:qualname``; None for a program that is not ours.
    name: str | None

    def setup(self, init: Sequence[Any], *, concurrency: int) -> dict[str, Any]:
        """What a member is told when it has greeted.

        It looks for modules where this program does, at the time of the call.
        """
        return {
            "target": self.name,
            "init": list(init),
            "path": [os.path.abspath(each) for each in sys.path],  # noqa: PTH100  # "" is where we are now
            "concurrency": concurrency,
        }


def read_target(name: str, target: str | Sequence[str | os.PathLike[str]]) -> Target:
    """The target of the pool ``name``.

    Raises:
        TypeError, ValueError: for what is none; the message says why, and what to do.
    """
    if callable(target):
        raise TypeError(f"target={target!r} of {name!r} is an object of this process; {_instead(target)}")
    if isinstance(target, str):
        _check_name(f"target={target!r} of {name!r}", target)
        return Target((sys.executable, "-P", _PROGRAM), target)
    if not isinstance(target, (list, tuple)):
        raise TypeError(f"target={target!r} of {name!r} names nothing to call; {_FORMS}")
    return Target(words(name, tuple(target)), None)


def function_name(function: str | Callable[..., Any]) -> str:
    """What a member is to call ``function``: a name as it is, a function of a module as ``module:qualname``.

    Raises:
        TypeError, ValueError: for what a member cannot find by name; the message says why, and what to do.
    """
    if isinstance(function, str):
        if ":" in function:
            _check_name(f"function {function!r}", function)
        elif not function.isidentifier():
            raise ValueError(
                f"function {function!r} is no name; give that of a function or method, or 'module:function'"
            )
        return function
    if not inspect.isroutine(function):
        raise TypeError(f"{function!r} is no function; give one, or the name of a function or method")
    if (why := _why_not(function)) is not None:
        raise ValueError(f"{function!r} cannot be called in a member, which finds functions by name, and {why}")
    return f"{function.__module__}:{function.__qualname__}"


def _instead(target: Any) -> str:
    """What to write for an object that was given as a target."""
    if (why := _why_not(target)) is not None:
        return f"a member finds its target by name, and {why}"
    return f"give its name, {f'{target.__module__}:{target.__qualname__}'!r}, by which each member imports it"


def _why_not(target: Any) -> str | None:
    """Why a member could not find ``target`` by its name; None if it can."""
    module, qualname = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if module is None or qualname is None:
        return "this has none; give the name of a function or class that a module has"
    if (why := _why_no_name(module, qualname)) is not None:
        return why
    if not isinstance(getattr(target, "__self__", None), (type, ModuleType, NoneType)):
        return f"this one is bound to an object of this process; give the method's name, {target.__name__!r}"
    if _found(module, qualname) != target:
        return f"what {f'{module}:{qualname}'!r} names is something else; give the name of what is meant"
    return None


def _why_no_name(module: str, qualname: str) -> str | None:
    """Why no other process could find what is called that."""
    if "<lambda>" in qualname:
        return "a lambda has none; make it a function of a module"
    if "<locals>" in qualname:
        return "what is made inside of a function has none outside; move it to the top of a module"
    if module == "__main__":
        return "__main__ is this program, which no other process imports; move it to a module of its own"
    return None


def _found(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _check_name(given: str, name: str) -> None:
    module, _, qualname = name.partition(":")
    if (why := _why_no_name(module, qualname)) is not None:
        raise ValueError(f"{given} is found by its name, and {why}")
    if not all(part.isidentifier() for dotted in (module, qualname) for part in dotted.split(".")):
        raise ValueError(f"{given} is no such name; {_FORMS}")
