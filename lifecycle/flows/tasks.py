"""`Task`: one step of a flow, and how it is undone.

A task is a function and what is to be known of it before anything runs: what it asks for (its parameters), and what it
gives (its own name, where nothing else is said). Names wire tasks together, as they do fixtures of a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack, overload

from lifecycle._async import is_async
from lifecycle._util import name_of
from lifecycle.flows.signatures import Wants, wants_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Provides", "Settings", "Task", "names_in", "names_of", "task"]

#: Nothing, the whole result, parts of it by position (list, tuple), or parts by key (set).
Provides = str | tuple[str, ...] | frozenset[str] | None

#: What a revert may ask for beside the names of data.
_OF_REVERTS = ("result", "failures", "flow_failures")


class Settings(TypedDict, total=False):
    """What `task` can be told beside the function."""

    name: str | None
    provides: str | Iterable[str] | None
    requires: Iterable[str]
    rebind: Mapping[str, str] | Iterable[str]
    inject: Mapping[str, Any]
    priority: int
    timeout: float | None


class _Known(NamedTuple):
    """The same, read and checked."""

    name: str
    provides: Provides
    requires: tuple[str, ...] = ()
    rebind: Mapping[str, str] = MappingProxyType({})
    inject: Mapping[str, Any] = MappingProxyType({})
    priority: int = 0
    timeout: float | None = None


class Task:
    """A step of a flow; `task` makes them."""

    name: str
    provides: Provides
    priority: int
    timeout: float | None
    arguments: dict[str, str]
    optional: frozenset[str]

    kind = "task"

    def __init__(self, fn: Callable[..., Any], known: _Known) -> None:
        self.fn = fn
        self.name, self.provides = known.name, known.provides
        self.inject: dict[str, Any] = dict(known.inject)
        self.priority, self.timeout = known.priority, known.timeout
        self.undo: Callable[..., Any] | None = None
        #: Whether the function, and the one that undoes it, is plain, and so is called in a thread.
        self.in_thread: bool = not is_async(fn)
        self.undo_in_thread: bool = False
        self._known = known
        wants = wants_of(fn)
        _check_rebind(known, wants)
        #: Parameter to the name of what it is given; the second has those that may be missing.
        self.arguments, self.optional = _bound(wants, known.rebind, known.requires)
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
        rebind = {name: to for name, to in self._known.rebind.items() if name in others.names}
        self.undo_arguments, self.undo_optional = _bound(others, rebind, ())
        self.undo, self.undo_in_thread = fn, not is_async(fn)
        return self

    def copy(self, settings: Settings) -> Task:
        """The same with other settings."""
        copy = Task(self.fn, self._known._replace(**_read(self.name, self.fn, settings)))
        return copy if self.undo is None else copy.revert(self.undo)


@overload
def task(fn: Callable[..., Any], /, **settings: Unpack[Settings]) -> Task: ...
@overload
def task(fn: None = None, /, **settings: Unpack[Settings]) -> Callable[[Callable[..., Any]], Task]: ...
def task(  # the settings are those of the type
    fn: Callable[..., Any] | None = None, /, **settings: Unpack[Settings]
) -> Task | Callable[[Callable[..., Any]], Task]:
    """A function, async or plain, as a step of a flow; usable as a decorator, with settings or without.

    A plain function is called in a thread, at most 32 of them at a time in one `Flows`, so that it may block. Its
    context variables are those of the task. A thread cannot be stopped: when the task is cancelled, or takes longer
    than its ``timeout``, the function is waited for, up to 5 seconds. A function that needs the loop has to be async.

    A task given instead of a function is copied, with the settings that are given changed.

    Args:
        fn: What is to be done; its parameters are given by their names.
        name: What the task is called, unlike every other in its flow; the name of the function by default.
        provides: The name under which others get the result, by default the task's own. Several in a list or a tuple
            name the parts of the result by position, in a set by key; None: nothing.
        requires: Names it waits for beside its parameters; it is given those that it takes.
        rebind: Parameter to the name of what it is given, where they differ; or names, in the order of parameters.
        inject: Values for this task alone, which beat all others.
        priority: Of those that can begin, those with a higher one begin first.
        timeout: Seconds for one attempt, after which it is cancelled and fails with `TimeoutError`; one that goes on
            all the same is given up 5 seconds later. None: as long as it takes.

    Raises:
        TypeError: for parameters that have no name to be given by, and settings that there are not or that are of
            another type.
        ValueError: for a name that is empty, a time-out that is not positive, or names that no parameter takes.
    """
    if fn is None:

        def decorate(given: Callable[..., Any]) -> Task:
            return task(given, **settings)

        return decorate
    if isinstance(fn, Task):
        return fn.copy(settings)
    name = settings.get("name") or str(getattr(fn, "__name__", type(fn).__name__))
    read = _read(name, fn, settings)
    return Task(fn, _Known(name, name)._replace(**read))


def _read(name: str, fn: Callable[..., Any], settings: Settings) -> dict[str, Any]:
    """What is set, in one form each."""
    _check_types(name, settings)
    read: dict[str, Any] = dict(settings)
    if "name" in settings:
        read["name"] = name = settings["name"] or name
    if "provides" in settings:
        read["provides"] = _provides(settings["provides"])
    if "requires" in settings:
        read["requires"] = names_in("requires", settings["requires"])
    if "rebind" in settings:
        read["rebind"] = _rebound(fn, settings["rebind"])
    timeout = settings.get("timeout")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"task(timeout={timeout!r}) of {name!r} leaves no time; give seconds above 0, or None")
    return read


#: What each setting is, and how that is said.
_TYPES: Mapping[str, tuple[Any, str]] = {
    "name": (str | None, "a text"),
    "provides": ((Iterable, type(None)), "a name, or several"),
    "requires": (Iterable, "names"),
    "rebind": (Iterable, "a mapping of parameters to names, or names"),
    "inject": (Mapping, "a mapping of names to values"),
    "priority": (int, "an integer, the higher the earlier"),
    "timeout": (int | float | None, "seconds, or None"),
}


def _check_types(name: str, settings: Settings) -> None:
    for setting, given in settings.items():
        if setting not in _TYPES:
            raise TypeError(f"task({setting}={given!r}) of {name!r} is no setting; there are: {', '.join(_TYPES)}")
        kind, meant = _TYPES[setting]
        if not isinstance(given, kind):
            raise TypeError(f"task({setting}={given!r}) of {name!r} is of a wrong type; give {meant}")


def _provides(given: str | Iterable[str] | None) -> Provides:
    if given is None or isinstance(given, str):
        return given or None
    names = names_in("provides", given)
    return frozenset(names) if isinstance(given, (set, frozenset)) else names


def names_in(what: str, given: str | Iterable[Any]) -> tuple[str, ...]:
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
        return {parameter: given[parameter] for parameter in given}
    return dict(zip(wants_of(fn).names, names_in("rebind", given), strict=False))


def _check_rebind(known: _Known, wants: Wants) -> None:
    unknown = [each for each in known.rebind if each not in wants.names]
    if unknown and not wants.anything:
        takes = ", ".join(wants.names) or "none"
        raise ValueError(
            f"task {known.name!r}: rebind names {unknown[0]!r}, which is no parameter of it; it has: {takes}"
        )


def _bound(wants: Wants, rebind: Mapping[str, str], requires: tuple[str, ...]) -> tuple[dict[str, str], frozenset[str]]:
    """Parameter to name of what it is given, and the parameters that may go without."""
    arguments = {each: rebind.get(each, each) for each in wants.names}
    if wants.anything:
        arguments |= rebind
        arguments |= {each: each for each in requires if each not in arguments.values()}
    return arguments, frozenset(each for each in wants.optional if each not in rebind)
