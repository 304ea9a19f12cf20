"""`Task`: one step of a flow, and how it is undone.

A task is a function and what is to be known of it before anything runs: what it asks for (its parameters), and what it
gives (its own name, where nothing else is said). Names wire tasks together, as they do fixtures of a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, overload

from lifecycle._naming import name_of
from lifecycle.flows.signatures import Wants, wants_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Provides", "Task", "names_in", "names_of", "task"]

#: Nothing, the whole result, parts of it by position (list, tuple), or parts by key (set).
Provides = str | tuple[str, ...] | frozenset[str] | None

#: What a revert may ask for beside the names of data.
_OF_REVERTS = ("result", "failures", "flow_failures")


class Task:
    """A step of a flow; `task` makes them."""

    kind = "task"

    def __init__(  # what `task` was given
        self,
        fn: Callable[..., Any],
        *,
        name: str,
        provides: Provides,
        requires: tuple[str, ...],
        rebind: Mapping[str, str],
        inject: Mapping[str, Any],
        priority: int,
        timeout: float | None,
    ) -> None:
        self.name = name
        self.fn = fn
        self.provides = provides
        self.inject = dict(inject)
        self.priority = priority
        self.timeout = timeout
        self.undo: Callable[..., Any] | None = None
        self._requires, self._rebind = requires, dict(rebind)
        wants = wants_of(fn)
        #: Parameter to the name of what it is given; the second has those that may be missing.
        self.arguments, self.optional = _bound(name, wants, self._rebind, requires)
        self.undo_arguments: dict[str, str] = {}
        self.undo_optional: frozenset[str] = frozenset()
        #: What the revert asks for of the task itself, and of the failures.
        self.undo_specials: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"<Task {self.name!r}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function itself returns: nothing of a flow is involved."""
        return self.fn(*args, **kwargs)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it gives."""
        return names_of(self.provides)

    def revert(self, fn: Callable[..., Any]) -> Task:
        """Say how the task is undone; a decorator, after which the name is that of the task.

        The function is given ``result`` (what the task gave, or its `Failure`), which it may also call by the name
        that the task provides, ``failures`` (name of what failed to its `Failure`), and what the task could ask for.

        Raises:
            TypeError: for parameters that have no name to be given by.
            ValueError: if it is known already.
        """
        if self.undo is not None:
            raise ValueError(f"the task {self.name!r} has a revert already, {name_of(self.undo)}; make another task")
        wants = wants_of(fn)
        own = self.names if isinstance(self.provides, str) else ()
        self.undo_specials = frozenset(name for name in wants.names if name in _OF_REVERTS or name in own)
        others = Wants(
            tuple(name for name in wants.required if name not in self.undo_specials),
            tuple(name for name in wants.optional if name not in self.undo_specials),
        )
        self.undo_arguments, self.undo_optional = _bound(self.name, others, self._rebind, (), strict=False)
        self.undo = fn
        return self

    def _copy(self, **changes: Any) -> Task:
        given: dict[str, Any] = {
            "name": self.name,
            "provides": self.provides,
            "requires": self._requires,
            "rebind": self._rebind,
            "inject": self.inject,
            "priority": self.priority,
            "timeout": self.timeout,
        }
        copy = Task(self.fn, **(given | changes))
        return copy if self.undo is None else copy.revert(self.undo)


_OWN_NAME = "\0its own name"


@overload
def task(fn: Callable[..., Any], /) -> Task: ...
@overload
def task(
    fn: None = None,
    /,
    *,
    name: str | None = None,
    provides: str | Iterable[str] | None = _OWN_NAME,
    requires: Iterable[str] = (),
    rebind: Mapping[str, str] | Iterable[str] = (),
    inject: Mapping[str, Any] = {},
    priority: int = 0,
    timeout: float | None = None,
) -> Callable[[Callable[..., Any]], Task]: ...
@overload
def task(
    fn: Callable[..., Any],
    /,
    *,
    name: str | None = None,
    provides: str | Iterable[str] | None = _OWN_NAME,
    requires: Iterable[str] = (),
    rebind: Mapping[str, str] | Iterable[str] = (),
    inject: Mapping[str, Any] = {},
    priority: int = 0,
    timeout: float | None = None,
) -> Task: ...
def task(fn: Callable[..., Any] | None = None, /, **settings: Any) -> Any:  # noqa: D417  # the overloads have them
    """A function, async or plain, as a step of a flow; usable as a decorator, with settings or without.

    A plain function runs on the loop and must not block. A task given instead of a function is copied, with the
    settings that are given changed.

    Args:
        fn: What is to be done; its parameters are given by their names.
        name: What the task is called, unlike every other in its flow; the name of the function by default.
        provides: The name under which others get the result, by default the task's own. Several in a list or a tuple
            name the parts of the result by position, in a set by key; None: nothing.
        requires: Names it waits for beside its parameters; it is given those that it takes.
        rebind: Parameter to the name of what it is given, where they differ; or names, in the order of parameters.
        inject: Values for this task alone, which beat all others.
        priority: Of those that can begin, those with a higher one begin first.
        timeout: Seconds for one attempt, after which it fails with `TimeoutError`; None: as long as it takes.

    Raises:
        TypeError: for parameters that have no name to be given by.
        ValueError: for a name that is empty, a time-out that is not positive, or names that no parameter takes.
    """
    if fn is None:
        return lambda given: task(given, **settings)
    if isinstance(fn, Task):
        return fn._copy(**_read(fn.name, fn.fn, settings))  # noqa: SLF001  # its own kind
    name = settings.get("name") or getattr(fn, "__name__", type(fn).__name__)
    defaults: dict[str, Any] = {"name": None, "provides": _OWN_NAME, "requires": (), "rebind": {}, "inject": {}}
    return Task(fn, **{"priority": 0, "timeout": None, **_read(name, fn, defaults | settings)})


def _read(name: Any, fn: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings in one form, checked."""
    read = dict(settings)
    if "name" in read:
        read["name"] = name = read["name"] or name
    if not isinstance(name, str) or not name:
        raise ValueError(f"task(name={name!r}) is no name; give a text that is not empty")
    if "provides" in read:
        read["provides"] = _provides(name, read["provides"])
    if "requires" in read:
        read["requires"] = names_in("requires", read["requires"])
    if "rebind" in read:
        read["rebind"] = _rebound(fn, read["rebind"])
    timeout = read.get("timeout")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"task(timeout={timeout!r}) of {name!r} leaves no time; give seconds above 0, or None")
    return read


def _provides(name: str, given: Any) -> Provides:
    if given is _OWN_NAME:
        return name
    if given is None or given == "":
        return None
    if isinstance(given, str):
        return given
    names = names_in("provides", given)
    return frozenset(names) if isinstance(given, (set, frozenset)) else names


def names_in(what: str, given: Any) -> tuple[str, ...]:
    """``given`` as names; a text is one."""
    names = (given,) if isinstance(given, str) else tuple(given)
    for each in names:
        if not isinstance(each, str) or not each:
            raise ValueError(f"{what} has {each!r}, which is no name; give texts that are not empty")
    return names


def names_of(provides: Provides) -> tuple[str, ...]:
    """The names in ``provides``."""
    if provides is None:
        return ()
    return (provides,) if isinstance(provides, str) else tuple(provides)


def _rebound(fn: Callable[..., Any], given: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    if isinstance(given, Mapping):
        return dict(given)
    return dict(zip(wants_of(fn).names, names_in("rebind", given), strict=False))


def _bound(
    name: str, wants: Wants, rebind: Mapping[str, str], requires: tuple[str, ...], *, strict: bool = True
) -> tuple[dict[str, str], frozenset[str]]:
    """Parameter to name of what it is given, and the parameters that may go without."""
    unknown = [each for each in rebind if each not in wants.names]
    if strict and unknown and not wants.anything:
        takes = ", ".join(wants.names) or "none"
        raise ValueError(f"task {name!r}: rebind names {unknown[0]!r}, which is no parameter of it; it has {takes}")
    arguments = {each: rebind.get(each, each) for each in wants.names}
    if wants.anything:
        arguments |= {each: each for each in requires if each not in arguments.values()}
        arguments |= {each: to for each, to in rebind.items() if strict}
    return arguments, frozenset(each for each in wants.optional if each not in rebind)
