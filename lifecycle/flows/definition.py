"""Definitions of workflows, of tasks, and of flows with the order in which their tasks run. This module runs none.

A workflow is an async function whose steps are stored.

A task is a function. Its parameters name the values it needs, and its own name becomes the name of its result. Names
connect tasks the way they connect pytest fixtures. `linear` runs tasks one after another, `unordered` runs them all at
the same time, and `graph` runs each task as soon as its arguments exist. A flow can contain tasks and other flows.
Mistakes are reported when a flow is created. If they can only be found in the complete flow, they are reported when it
is compiled.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from lifecycle._async import is_async
from lifecycle._durations import in_seconds_or_none
from lifecycle._util import name_of, short_name
from lifecycle.errors import FlowError, MissingDependencies
from lifecycle.flows.retries import Retry, Times

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from lifecycle._durations import Duration

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

__all__ = [
    "Decider",
    "Depth",
    "Edge",
    "Flow",
    "Item",
    "Part",
    "Provides",
    "RetryStep",
    "Step",
    "StepFunction",
    "Task",
    "TaskSettings",
    "Workflow",
    "graph",
    "linear",
    "task",
    "unordered",
    "workflow",
]

#: The names that a step provides. Each is mapped to the part of the result that it names: a position, a key, or None
#: for the whole result.
Provides: TypeAlias = "Mapping[str, int | str | None]"


class StepFunction(NamedTuple):
    """One of a step's functions, and where its arguments come from."""

    fn: Callable[..., Any]
    #: The argument name for each parameter.
    arguments: Mapping[str, str]
    #: The parameters that are optional.
    optional: frozenset[str]
    #: The parameters that describe the step itself: its result, its history, and its flow's failures.
    specials: frozenset[str] = frozenset()
    #: True for a synchronous function, which runs in a thread.
    in_thread: bool = False
    #: True for a revert that is not called if its step failed.
    only_if_done: bool = False


class _Parameters(NamedTuple):
    """The parameters of a function."""

    required: tuple[str, ...] = ()
    #: The parameters with a default, which receive an argument only if one exists.
    optional: tuple[str, ...] = ()
    #: True if the function accepts any name (``**kwargs``).
    takes_any: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The required parameters, then the optional ones."""
        return self.required + self.optional


def _parameters_of(fn: Callable[..., Any]) -> _Parameters:
    """Return the parameters of ``fn``.

    Raises:
        TypeError: if a parameter cannot be passed by name.
    """
    required: list[str] = []
    optional: list[str] = []
    takes_any = False
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_any = True
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TypeError(f"{name_of(fn)}: the parameter {parameter} cannot be passed by name; use named parameters")
        else:
            (required if parameter.default is parameter.empty else optional).append(parameter.name)
    return _Parameters(tuple(required), tuple(optional), takes_any)


# -- tasks -------------------------------------------------------------------------------------------------------------


class TaskSettings(TypedDict, total=False):
    """The keyword arguments of `task`."""

    name: str | None
    provides: str | Iterable[str] | None
    requires: Iterable[str]
    rebind: Mapping[str, str] | Iterable[str]
    inject: Mapping[str, Any]
    priority: int
    retry: Times | None
    timeout: Duration | None


class _Checked(NamedTuple):
    """A task's settings, checked and normalized."""

    name: str
    provides: Provides
    requires: tuple[str, ...] = ()
    rebind: Mapping[str, str] = MappingProxyType({})
    inject: Mapping[str, Any] = MappingProxyType({})
    priority: int = 0
    retry: Times | None = None
    timeout: float | None = None


#: The parameters of a revert that have a special meaning instead of naming values.
_OF_REVERTS = ("result", "failures", "flow_failures")


class Task:
    """A step of a flow. Create it with `task`."""

    name: str
    provides: Provides
    priority: int
    retry: Times | None
    timeout: float | None
    function: StepFunction

    kind = "task"

    def __init__(self, fn: Callable[..., Any], settings: _Checked) -> None:
        self.fn = fn
        self.name, self.provides = settings.name, settings.provides
        self.inject: dict[str, Any] = dict(settings.inject)
        self.priority, self.retry, self.timeout = settings.priority, settings.retry, settings.timeout
        self.undo: StepFunction | None = None
        self._settings = settings
        parameters = _parameters_of(fn)
        _check_rebind(settings, parameters)
        arguments = _bound(parameters, settings.rebind, settings.requires)
        optional = frozenset(each for each in parameters.optional if each not in settings.rebind)
        self.function = StepFunction(fn, arguments, optional, in_thread=not is_async(fn))

    def __repr__(self) -> str:
        return f"<Task {self.name!r}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function directly, outside any flow."""
        return self.fn(*args, **kwargs)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the task provides."""
        return tuple(self.provides)

    @overload
    def revert(self, fn: Callable[..., Any], /, *, only_if_done: bool = False) -> Task: ...
    @overload
    def revert(self, fn: None = None, /, *, only_if_done: bool = False) -> Callable[[Callable[..., Any]], Task]: ...
    def revert(
        self, fn: Callable[..., Any] | None = None, /, *, only_if_done: bool = False
    ) -> Task | Callable[[Callable[..., Any]], Task]:
        """Set the function that reverts the task, and return the task. This is a decorator, with or without settings.

        The function can have any parameter that the task itself could have. In addition, a parameter called
        ``result``, or named after the value that the task provides, receives the task's result or its `Failure`. A
        parameter called ``failures`` receives a mapping from the name of each failed step to its `Failure`.

        A failed task is also reverted, because it may already have done part of its work. Its revert receives a
        `Failure` instead of the result, so annotate the parameter with both types, as in ``result: str | Failure``.

        Args:
            fn: The function.
            only_if_done: Call the function only if the task succeeded, so that the result is never a `Failure`.

        Raises:
            TypeError: if a parameter cannot be passed by name.
            ValueError: if the task already has a revert.
        """
        if fn is None:

            def decorate(given: Callable[..., Any]) -> Task:
                return self.revert(given, only_if_done=only_if_done)

            return decorate
        if self.undo is not None:
            raise ValueError(
                f"task {self.name!r} already has a revert, {name_of(self.undo.fn)}; create a separate task"
            )
        self.undo = self._revert_function(fn)._replace(only_if_done=only_if_done)
        return self

    def _revert_function(self, fn: Callable[..., Any]) -> StepFunction:
        parameters = _parameters_of(fn)
        whole = [name for name, part in self.provides.items() if part is None]
        specials = frozenset(name for name in parameters.names if name in _OF_REVERTS or name in whole)
        others = parameters._replace(
            required=tuple(name for name in parameters.required if name not in specials),
            optional=tuple(name for name in parameters.optional if name not in specials),
            takes_any=False,
        )
        rebind = {name: to for name, to in self._settings.rebind.items() if name in others.names}
        optional = frozenset(each for each in others.optional if each not in rebind)
        return StepFunction(fn, _bound(others, rebind, ()), optional, specials, in_thread=not is_async(fn))

    def copy(self, settings: TaskSettings) -> Task:
        """Return a copy of the task with these settings changed."""
        copy = Task(self.fn, self._settings._replace(**_checked(self.name, self.fn, settings)))
        return copy if self.undo is None else copy.revert(self.undo.fn, only_if_done=self.undo.only_if_done)


@overload
def task(fn: Callable[..., Any], /, **settings: Unpack[TaskSettings]) -> Task: ...
@overload
def task(fn: None = None, /, **settings: Unpack[TaskSettings]) -> Callable[[Callable[..., Any]], Task]: ...
def task(  # `TaskSettings` has the parameters
    fn: Callable[..., Any] | None = None, /, **settings: Unpack[TaskSettings]
) -> Task | Callable[[Callable[..., Any]], Task]:
    """Create a flow step from an async or synchronous function. Use this as a decorator, with or without settings.

    A synchronous function runs in a thread, so it may block. Each `Flows` runs up to 32 such functions at the same
    time. They can read the task's context variables. Since a thread cannot be stopped, the flow waits up to 5 seconds
    for the function to return when the task is cancelled or exceeds its ``timeout``. A function that needs the event
    loop must be async.

    If you pass a task instead of a function, you get a copy of it with these settings changed.

    Args:
        fn: The function. The names of its parameters are the names of its arguments.
        name: The name of the task, which must be unique in its flow. By default, the function's name.
        provides: The name that other tasks use for the result. By default, the task's name. A list or tuple of names
            splits the result by position, and a set of names splits it by key. If None, the task provides nothing.
        requires: Names that the task waits for in addition to its parameters. Values that the function accepts are
            passed to it.
        rebind: A mapping from parameters to argument names for those that differ, or a sequence of argument names in
            parameter order.
        inject: Values for this task only. They take precedence over all others.
        priority: When several tasks can start, those with a higher priority start first.
        retry: How often to attempt the task before it fails, as `Times`. Failed attempts are not reverted, and each has
            the same idempotency key. A restart of the program does not repeat attempts or waits.
        timeout: Seconds that one attempt may take. After this time, the task is cancelled and fails with
            `TimeoutError`. If it keeps running anyway, it is abandoned 5 seconds later. None means no limit.

    Raises:
        TypeError: if a parameter cannot be passed by name, or if a setting is unknown or has the wrong type.
        ValueError: if a name is empty, if the timeout is not positive, or if a name in ``rebind`` matches no parameter.
    """
    if fn is None:

        def decorate(given: Callable[..., Any]) -> Task:
            return task(given, **settings)

        return decorate
    if isinstance(fn, Task):
        return fn.copy(settings)
    name = settings.get("name") or str(getattr(fn, "__name__", type(fn).__name__))
    return Task(fn, _Checked(name, {name: None})._replace(**_checked(name, fn, settings)))


def _checked(name: str, fn: Callable[..., Any], settings: TaskSettings) -> dict[str, Any]:
    """Return the given settings in normalized form."""
    _check_types(name, settings)
    checked: dict[str, Any] = dict(settings)
    if "name" in settings:
        checked["name"] = name = settings["name"] or name
    if "provides" in settings:
        checked["provides"] = _parts_of(settings["provides"])
    if "requires" in settings:
        checked["requires"] = _names_in("requires", settings["requires"])
    if "rebind" in settings:
        checked["rebind"] = _rebound(fn, settings["rebind"])
    if "timeout" in settings:
        checked["timeout"] = in_seconds_or_none(f"timeout of task {name!r}", settings["timeout"])
    return checked


#: The type of each setting, and its description in errors.
_TYPES: Mapping[str, tuple[Any, str]] = {
    "name": (str | None, "a string"),
    "provides": ((Iterable, type(None)), "a name, or several names"),
    "requires": (Iterable, "names"),
    "rebind": (Iterable, "a mapping from parameters to names, or a sequence of names"),
    "inject": (Mapping, "a mapping from names to values"),
    "priority": (int, "an integer"),
    "retry": (Times | None, "Times, or None"),
    "timeout": (object, "seconds, a timedelta, or None"),
}


def _check_types(name: str, settings: TaskSettings) -> None:
    for setting, given in settings.items():
        if setting not in _TYPES:
            raise TypeError(f"task {name!r}: unknown setting {setting}={given!r}; valid: {', '.join(_TYPES)}")
        kind, meant = _TYPES[setting]
        if not isinstance(given, kind):
            raise TypeError(f"task {name!r}: {setting} must be {meant}, got {given!r}")


def _parts_of(provides: str | Iterable[str] | None) -> Provides:
    """Return each name in ``provides``, mapped to the part of the result that it names."""
    if not provides:
        return {}
    if isinstance(provides, str):
        return {provides: None}
    names = _names_in("provides", provides)
    keyed = isinstance(provides, (set, frozenset))
    return {name: name if keyed else names.index(name) for name in names}


def _names_in(setting: str, given: str | Iterable[Any]) -> tuple[str, ...]:
    """Return ``given`` as a tuple of names. A string is a single name."""
    names = (given,) if isinstance(given, str) else tuple(given)
    for each in names:
        if not isinstance(each, str) or not each:
            raise ValueError(f"{setting}: each name must be a non-empty string, got {each!r}")
    return names


def _rebound(fn: Callable[..., Any], given: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    if isinstance(given, Mapping):
        return {parameter: given[parameter] for parameter in given}
    return dict(zip(_parameters_of(fn).names, _names_in("rebind", given), strict=False))


def _check_rebind(settings: _Checked, parameters: _Parameters) -> None:
    unknown = [each for each in settings.rebind if each not in parameters.names]
    if unknown and not parameters.takes_any:
        takes = ", ".join(parameters.names) or "none"
        raise ValueError(
            f"task {settings.name!r}: rebind contains {unknown[0]!r}, which is not a parameter; parameters: {takes}"
        )


def _bound(parameters: _Parameters, rebind: Mapping[str, str], requires: tuple[str, ...]) -> dict[str, str]:
    """Return the argument name for each parameter."""
    arguments = {each: rebind.get(each, each) for each in parameters.names}
    if parameters.takes_any:
        arguments |= rebind
        arguments |= {each: each for each in requires if each not in arguments.values()}
    return arguments


# -- workflows ---------------------------------------------------------------------------------------------------------


class Workflow(Generic[P, T_co]):
    """A durable function. Create it with `workflow`, and start it with `Flows.start`."""

    pattern = "workflow"

    def __init__(self, fn: Callable[P, Coroutine[Any, Any, T_co]], name: str) -> None:
        self.fn: Callable[P, Coroutine[Any, Any, T_co]] = fn
        self.name: str = name
        self.signature: inspect.Signature = inspect.signature(fn)

    def __repr__(self) -> str:
        return f"<Workflow {self.name!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T_co]:
        """Call the function as part of the calling workflow, to which its steps then belong."""
        return self.fn(*args, **kwargs)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of each parameter.

        Raises:
            TypeError: if the arguments do not fit the function.
        """
        try:
            return dict(self.signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"{self.name}{self.signature}: {error}") from None

    def check(self, known: Collection[str]) -> None:
        """Check that each parameter has a value or a default.

        Raises:
            MissingDependencies: if a value is missing.
        """
        each: inspect.Parameter
        for each in self.signature.parameters.values():
            is_optional = each.default is not each.empty or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
            if each.name not in known and not is_optional:
                raise MissingDependencies(f"workflow {self.name!r} requires {each.name!r}; pass it")

    def call(self, values: Mapping[str, Any]) -> Coroutine[Any, Any, T_co]:
        """Call the function with the values that `bind` has returned."""
        bound = inspect.BoundArguments(self.signature, cast("Any", values))
        return self.fn(*bound.args, **bound.kwargs)


@overload
def workflow(fn: Callable[P, Coroutine[Any, Any, T]], /, *, name: str | None = None) -> Workflow[P, T]: ...
@overload
def workflow(
    fn: None = None, /, *, name: str | None = None
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Workflow[P, T]]: ...
def workflow(fn: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """Make an async function durable. Use this as a decorator, with or without settings.

    The function runs again from its start after a restart, and the steps that have finished are not repeated. So
    everything whose outcome may differ the next time, such as I/O, the time and random numbers, belongs in a `step`.

    Args:
        fn: The function. Its arguments and its return value must be values that the store's codec can save.
        name: The name under which the workflow is stored. By default, the function's name.

    Raises:
        TypeError: if the function is not async.
    """
    if fn is None:
        return partial(workflow, name=name)
    if not inspect.iscoroutinefunction(fn):
        raise TypeError(f"a workflow must be an async function, got {fn!r}; call synchronous functions with step(…)")
    return Workflow(fn, name or short_name(fn))


# -- retries -----------------------------------------------------------------------------------------------------------

#: The parameters of a retry's functions that have a special meaning instead of naming values.
_OF_RETRIES = frozenset({"history", *_OF_REVERTS})


class RetryStep:
    """A flow's retry, as a step that runs before the flow's items. ``flow`` is the flow's name."""

    name: str
    function: StepFunction
    #: The ``on_failure`` function, which returns the verdict.
    question: StepFunction

    kind = "retry"
    priority = 0
    timeout: float | None = None

    def __init__(self, retry: Retry, flow: str) -> None:
        self.retry = retry
        self.name = getattr(retry, "name", None) or f"{flow}_retry"
        self.provides: Provides = _parts_of(getattr(retry, "provides", None))
        self.inject: dict[str, Any] = {}
        rebind: Mapping[str, str] = getattr(retry, "rebind", {})
        self.function = _retry_function(retry.execute, rebind)
        self.question = _retry_function(retry.on_failure, rebind)
        revert = getattr(retry, "revert", None)
        self.undo: StepFunction | None = None if revert is None else _retry_function(revert, rebind)

    def __repr__(self) -> str:
        return f"<Retry {self.name!r}: {self.retry!r}>"


def _retry_function(fn: Callable[..., Any], rebind: Mapping[str, str]) -> StepFunction:
    parameters = _parameters_of(fn)
    specials = frozenset(parameters.names) & _OF_RETRIES
    arguments = {name: rebind.get(name, name) for name in parameters.names if name not in specials}
    return StepFunction(fn, arguments, frozenset(parameters.optional) - specials, specials)


#: A step of a flow: a task, or a retry of the flow or of a nested flow.
Step: TypeAlias = Task | RetryStep


# -- patterns ----------------------------------------------------------------------------------------------------------

#: A function that receives the previous steps' results, by name, and returns whether to run the next item.
Decider: TypeAlias = "Callable[[dict[str, Any]], object]"

#: An item of a flow.
Part: TypeAlias = "Task | Flow"
#: Anything that `Flows.start` runs.
Item: TypeAlias = "Part | Workflow[..., Any]"


class Depth(StrEnum):
    """Which steps to skip along with a task that a decider skips. If several depths apply, the widest one wins."""

    #: All later steps, including those in other flows.
    ALL = "all"
    #: All later steps in the same flow.
    FLOW = "flow"
    #: The tasks directly after the skipped task.
    NEIGHBORS = "neighbors"
    #: No other steps.
    STEP = "step"


class Edge(NamedTuple):
    """A link that makes ``after`` run after ``before``. If a decider is set, it decides whether ``after`` runs."""

    before: Part
    after: Part
    decider: Decider | None
    depth: Depth


class Flow:
    """Items and the order in which they run. Create a flow with `linear`, `unordered` or `graph`."""

    def __init__(self, pattern: str, name: str, items: tuple[Part, ...], *, retry: RetryStep | None) -> None:
        self.pattern = pattern
        self.name = name
        self.items = items
        self.retry = retry
        self.edges: list[Edge] = []

    def __repr__(self) -> str:
        return f"<{self.pattern} {self.name!r}: {len(self.items)} items>"

    def when(self, u: Part, v: Part, decider: Decider | None = None, *, depth: str = Depth.ALL) -> Flow:
        """Run ``v`` after ``u``, and only if ``decider`` returns a true value. Return the flow.

        The decider receives a dict of results, by name, from all tasks that are linked to ``v`` with a decider and were
        not skipped. If any of these deciders returns a false value, ``v`` is skipped.

        Args:
            u: The earlier item.
            v: The later item.
            decider: A synchronous function. Without a decider, this only sets the order of two items in a graph.
            depth: Which steps to skip along with ``v``: ``all`` later steps, later steps in the same ``flow``, the
                ``neighbors`` directly after it, or only the ``step`` itself.

        Raises:
            FlowError: if ``u`` or ``v`` is not in the flow, or if the flow's order does not allow the link.
            ValueError: if the depth is unknown.
            TypeError: if the decider is not a function, or is async.
        """
        if decider is not None and not _is_plain(decider):
            raise TypeError(f"the decider must be a synchronous function, got {decider!r}; await in a task instead")
        for item in (u, v):
            if not any(item is each for each in self.items):
                raise FlowError(f"{item!r} is not an item of {self!r}; its items are: {_names(self.items)}")
        self._check_order(u, v)
        self.edges.append(Edge(u, v, decider, _depth(depth)))
        return self

    def _check_order(self, u: Part, v: Part) -> None:
        if self.pattern == "unordered":
            raise FlowError(f"{self!r} has no order, so its items cannot depend on each other; use graph or linear")
        places = {id(each): place for place, each in enumerate(self.items)}
        if self.pattern == "linear" and places[id(u)] + 1 != places[id(v)]:
            raise FlowError(f"in {self!r}, {v.name!r} does not directly follow {u.name!r}; use a graph")


def linear(name: str, *items: Part | Callable[..., Any], retry: Retry | None = None) -> Flow:
    """Create a flow whose items run one after another, and are reverted in reverse order.

    Raises:
        FlowError: if the same item is passed twice.
        TypeError: if an item is not a task, a flow or a function.
    """
    return _flow("linear", name, items, retry)


def unordered(name: str, *items: Part | Callable[..., Any], retry: Retry | None = None) -> Flow:
    """Create a flow whose items all run at the same time. They cannot use each other's results.

    Raises:
        FlowError: if the same item is passed twice.
        TypeError: if an item is not a task, a flow or a function.
    """
    return _flow("unordered", name, items, retry)


def graph(name: str, *items: Part | Callable[..., Any], retry: Retry | None = None) -> Flow:
    """Create a flow in which each item runs as soon as its arguments exist.

    Raises:
        FlowError: if the same item is passed twice.
        TypeError: if an item is not a task, a flow or a function.
    """
    return _flow("graph", name, items, retry)


def _flow(pattern: str, name: Any, items: tuple[Any, ...], retry: Retry | None) -> Flow:
    if not isinstance(name, str) or not name:
        raise TypeError(f"{pattern}(): the name must be a non-empty string, got {name!r}")
    if retry is not None and not isinstance(retry, Retry):
        raise TypeError(f"{pattern}({name!r}): retry must have execute and on_failure, got {retry!r}")
    members = tuple(map(_item, items))
    seen: set[int] = set()
    for each in members:
        if id(each) in seen:
            raise FlowError(
                f"{each!r} occurs twice in {pattern} {name!r}; use a copy with a different name: task(…, name=…)"
            )
        seen.add(id(each))
    return Flow(pattern, name, members, retry=None if retry is None else RetryStep(retry, name))


def _item(given: Any) -> Part:
    if isinstance(given, (Task, Flow)):
        return given
    if callable(given):
        made: Task = task(given)
        return made
    raise TypeError(f"expected a task or a flow, got {given!r}; decorate the function with @task")


def _is_plain(given: Any) -> bool:
    return callable(given) and not inspect.iscoroutinefunction(given)


def _depth(given: str) -> Depth:
    try:
        depth = given.lower()
        # ``atom`` is TaskFlow's name for this depth.
        return Depth.STEP if depth == "atom" else Depth(depth)
    except (ValueError, AttributeError):
        raise ValueError(f"when(): depth must be one of {', '.join(Depth)}, got {given!r}") from None


def _names(items: tuple[Part, ...]) -> str:
    return ", ".join(each.name for each in items) or "nothing"
