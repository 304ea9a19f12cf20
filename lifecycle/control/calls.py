"""Calls: turns a user's function and its middleware into one async function of the event.

This is done once, when the function is registered. Parameters named in the pattern get their values from the topic.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from lifecycle._async import is_async
from lifecycle._util import name_of
from lifecycle.control.patterns import only_place, reader
from lifecycle.errors import LifecycleError
from lifecycle.events.base import topics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lifecycle.control.patterns import Pattern
    from lifecycle.control.types import AsyncHandler, Handler, Middleware, RouteHandler
    from lifecycle.events import Topical

__all__ = ["Call", "as_async", "check_middleware"]

#: Marks a plain function that returns an awaitable, so that it is not wrapped again.
_AWAITABLE = "_returns_awaitable"

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Call:
    """A handler together with its middleware.

    ``call`` is what a lane calls: the router's middleware around the route's middleware around the handler.
    """

    __slots__ = ("_handler", "_replace_innermost", "call")

    def __init__(self, handler: RouteHandler, pattern: Pattern, middleware: Iterable[Middleware]) -> None:
        self.call: AsyncHandler = _wrap(_as_async(_typed(_with_params(handler, pattern), handler, pattern)), middleware)
        # The handler with the middleware of its route, which the router's middleware wraps.
        self._handler: AsyncHandler = self.call
        # Replaces the handler called by the router's innermost middleware.
        self._replace_innermost: Callable[[AsyncHandler], None] | None = None

    def prepare(self, middleware: Iterable[Middleware]) -> Callable[[], None]:
        """Return a function that adds more of the router's middleware, inside the earlier one, and cannot fail.

        Each middleware wraps the handler exactly once. Any state that it keeps, as `once` does, therefore lasts as long
        as the route.
        """
        innermost, replace = _replaceable(self._handler)
        wrapped = _wrap(innermost, middleware)

        def add() -> None:
            if self._replace_innermost is None:
                self.call = wrapped
            else:
                self._replace_innermost(wrapped)
            self._replace_innermost = replace

        return add


def check_middleware(middleware: Iterable[Middleware]) -> None:
    """Check that each of ``middleware`` can be called with a handler.

    Raises:
        TypeError: if one cannot. The message shows what middleware is.
    """
    for each in middleware:
        problem = "is not a function"
        if callable(each):
            problem = "is async" if is_async(each) else _cannot_take_one(each)
        if problem:
            told = name_of(each) if hasattr(each, "__name__") else repr(each)
            raise TypeError(
                f"{told} is not middleware: it {problem}; write a plain function that takes a handler and returns the "
                "wrapped handler"
            )


def _cannot_take_one(function: Callable[..., Any]) -> str:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return "cannot be called with one argument, the handler"
    except ValueError:  # some callables written in C have no signature
        return ""
    return ""


def as_async(handler: Handler) -> AsyncHandler:
    """Return ``handler`` as an async function. An ``async def`` is returned unchanged.

    Raises:
        TypeError: if ``handler`` is not a callable of one argument.
    """
    if not _is_marked(handler):
        _check(handler)
    return _as_async(handler)


def _is_marked(handler: Handler) -> bool:
    # Compare by identity, because middleware that uses `functools.wraps` copies the attribute.
    return getattr(handler, _AWAITABLE, _AWAITABLE) is handler


def _as_async(handler: Handler) -> AsyncHandler:
    if _is_marked(handler) or inspect.iscoroutinefunction(handler):
        return handler
    # Calling the async `__call__` method of an object is faster than calling the object. If the handler is a class, its
    # `__call__` is for its instances.
    method = None if isinstance(handler, type) else getattr(handler, "__call__", None)  # noqa: B004
    return method if inspect.iscoroutinefunction(method) else _awaiting(handler)


def _with_params(handler: RouteHandler, pattern: Pattern) -> Handler:
    """Return a function that calls ``handler`` with the event and with values for its parameters named in ``pattern``.

    Raises:
        TypeError: if ``handler`` cannot be called with the event and these names.
    """
    names = _check(handler, pattern)
    if not names:
        return handler
    call = functools.update_wrapper(_calling(handler, pattern, names), handler, updated=())
    # Otherwise, `inspect.signature(call)` would return the handler's parameters.
    del call.__wrapped__
    if is_async(handler):
        setattr(call, _AWAITABLE, call)
    return call


def _typed(call: Handler, handler: RouteHandler, pattern: Pattern) -> Handler:
    """Return a function that checks the class of the event, if ``handler`` is annotated with event classes.

    A topic does not determine the class of its event: ``file/*`` also matches ``Event("file/upload")``.
    """
    classes = _event_classes(handler)
    if not classes:
        return call
    names = " or ".join(each.__name__ for each in classes)

    @functools.wraps(call, updated=())
    def typed(event: Any) -> Any:
        if isinstance(event, classes):
            return call(event)
        raise TypeError(
            f"{name_of(handler)} takes a {names}, but {pattern.text!r} also matches {event.topic!r}, whose event is a "
            f"{type(event).__name__}; use a narrower pattern, or annotate the parameter with Event"
        )

    # Otherwise, `inspect.signature` would return the parameters of `handler`.
    del typed.__wrapped__
    if is_async(handler):
        setattr(typed, _AWAITABLE, typed)
    return typed


#: Annotations that any event fits.
_GENERAL = {"", "Any", "Event", "Topical", "object", "typing.Any"}


def _event_classes(handler: RouteHandler) -> tuple[type[Any], ...]:
    """Return the event classes in the annotation of the first parameter. If any event may fit it, return none."""
    try:
        first = next(iter(inspect.signature(handler).parameters.values()), None)
        if first is None or first.annotation in (first.empty, Any, object) or str(first.annotation) in _GENERAL:
            return ()
        annotation = next(iter(inspect.signature(handler, eval_str=True).parameters.values())).annotation
    except Exception:  # noqa: BLE001  # the annotation cannot be evaluated, for example because of TYPE_CHECKING
        return ()
    kinds = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return kinds if all(isinstance(each, type) and _has_topics(each) for each in kinds) else ()


def _has_topics(kind: type[Any]) -> bool:
    try:
        topics_of(kind)
    except TypeError:
        return False
    return True


def _calling(handler: RouteHandler, pattern: Pattern, names: list[str]) -> Callable[[Any], Any]:
    if names == _positional(handler) and (place := only_place(pattern, names[0])) is not None:
        size, at, pick, literals = place

        def call_with_segment(event: Any) -> Any:
            # This is the usual case, and therefore written out.
            parts = event.topic.split("/")
            if len(parts) != size or pick(parts) != literals:
                raise _mismatch(event, pattern, handler)
            return handler(event, parts[at])

        return call_with_segment
    read = reader(pattern, names)

    def call(event: Any) -> Any:
        values = read(event.topic)
        if values is None:
            raise _mismatch(event, pattern, handler)
        return handler(event, **dict(zip(names, values, strict=True)))

    return call


def _positional(handler: RouteHandler) -> list[str]:
    """Return a list with the name of the second positional parameter, or an empty list if none exists."""
    parameters = list(inspect.signature(handler).parameters.values())[:2]
    return [each.name for each in parameters[1:] if all(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters)]


def _mismatch(event: Topical, pattern: Pattern, handler: RouteHandler) -> LifecycleError:
    return LifecycleError(
        f"{event.topic!r} does not match {pattern.text!r}, so {name_of(handler)} cannot get its parameters; "
        "if middleware or `merge` replaces an event, use a matching topic for the new one"
    )


def _check(handler: RouteHandler, pattern: Pattern | None = None) -> list[str]:
    """Return the names of ``pattern`` that are parameters of ``handler``.

    Raises:
        TypeError: if ``handler`` cannot be called with the event and these names.
    """
    if not callable(handler):
        raise TypeError(f"{handler!r} is not a handler: expected a function with one argument, the event")
    if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
        raise TypeError(
            f"{name_of(handler)} is a generator function and would never run; a handler must not contain `yield`"
        )
    try:
        signature = inspect.signature(handler)
    except ValueError:  # some callables written in C have no signature
        return []
    names = [] if pattern is None else _declared(signature, pattern.names)
    try:
        signature.bind(None, **dict.fromkeys(names))
    except TypeError:
        told = f"{name_of(handler)}{signature} is not a handler{'' if pattern is None else f' of {pattern.text!r}'}"
        problem = _problem(list(signature.parameters.values()), pattern)
        raise TypeError(f"{told}: it must be callable with one argument, the event{problem}") from None
    return names


def _declared(signature: inspect.Signature, names: Sequence[str]) -> list[str]:
    """Return the ``names`` that the function accepts as keyword arguments."""
    parameters = signature.parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return list(names)
    by_name = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    return [name for name in names if name in by_name]


def _problem(parameters: list[inspect.Parameter], pattern: Pattern | None) -> str:
    """Explain why a function with several required parameters is not a valid handler."""
    names = () if pattern is None else pattern.names
    if parameters and parameters[0].name in names:
        first = parameters[0].name
        return f", so its first parameter cannot share the name {first!r} with the pattern; rename one of them"
    needed = [each.name for each in parameters[1:] if each.default is each.empty and each.kind not in _VARIABLE]
    missing = next((name for name in needed if name not in names), None)
    if missing is None:
        return ""
    if pattern is None:
        return "; to get values from a pattern, register the function itself with middleware= or debounce="
    return f"; the pattern does not name {missing}, so add a segment {{{missing}}}, or give the parameter a default"


def _awaiting(handler: Handler) -> AsyncHandler:
    """Wrap a plain function in an async function, which awaits the result if it is awaitable."""

    @functools.wraps(handler, updated=())
    async def call(event: Any) -> Any:
        result = handler(event)
        return await result if result is not None and inspect.isawaitable(result) else result

    return call


def _wrap(handler: AsyncHandler, middleware: Iterable[Middleware]) -> AsyncHandler:
    """Wrap ``middleware`` around ``handler``. The first is the outermost."""
    middleware = tuple(middleware)
    check_middleware(middleware)
    for each in reversed(middleware):
        wrapped = each(handler)
        if not callable(wrapped):
            raise TypeError(
                f"{name_of(each)} is not middleware: it returned {wrapped!r} instead of a handler; write a function "
                "that takes a handler and returns the wrapped handler"
            )
        handler = as_async(wrapped)
    return handler


def _named(handler: Any) -> AsyncHandler:
    """Return a function with the name of ``handler`` that calls it."""

    def call(event: Any) -> Any:
        return handler(event)

    return functools.update_wrapper(call, handler, updated=())


def _replaceable(handler: AsyncHandler) -> tuple[AsyncHandler, Callable[[AsyncHandler], None]]:
    """Return a function that calls ``handler``, and a function that replaces ``handler``.

    We use a `functools.partial`, because calling it costs a third of a call of a function written in Python.
    """
    if isinstance(handler, functools.partial):
        # The second partial would refer to the function in the first one, and so lose the name that it was given.
        handler = _named(handler)  # pyright: ignore[reportUnknownArgumentType]  # of any type
    call: Any = functools.update_wrapper(functools.partial(handler), handler, updated=())
    setattr(call, _AWAITABLE, call)

    def replace(other: AsyncHandler) -> None:
        call.__setstate__((other, (), {}, call.__dict__))  # documented for pickling

    return call, replace
