"""Parses a command's arguments according to its handler's signature.

A handler gets the `CommandEvent` itself if it has a single parameter that is unannotated or annotated with an event
class. For any other handler, `argparse` turns the words after the command into arguments.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import os
import types
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from lifecycle._async import is_async
from lifecycle.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from inspect import Parameter

    from lifecycle.control.commands import Completer
    from lifecycle.events import CommandEvent

__all__ = ["Arguments", "arguments_of"]


class Arguments:
    """Parses the words after the command ``name`` into arguments for ``handler``.

    Raises:
        TypeError: if a parameter of the handler cannot be filled from the command line.
    """

    def __init__(self, name: str, handler: Callable[..., Any], parameters: list[Parameter]) -> None:
        self._handler = handler
        self._takes_event = bool(parameters) and _is_event(parameters[0].annotation)
        self._parameters = parameters[1:] if self._takes_event else parameters
        self._parser = _Parser(prog=name, add_help=False, allow_abbrev=False)
        self._completers: list[Completer] = []
        for parameter in self._parameters:
            self._add(name, parameter)

    @property
    def usage(self) -> str:
        """The command and its arguments, such as ``deploy [--force] TARGET``."""
        return self._parser.line

    def handler(self) -> Callable[[CommandEvent], Any]:
        """Return a function that takes a `CommandEvent` and calls the handler with the parsed arguments."""
        called = self._await if is_async(self._handler) else self._call
        named = functools.update_wrapper(functools.partial(called), self._handler)
        # Otherwise, `signature` would return the parameters of `handler` instead of those of `called`.
        del named.__wrapped__
        return named

    def complete(self, typed: str) -> Iterable[str]:
        """Return the completions of an argument that begins with ``typed``."""
        if typed.startswith("-"):
            return [option for action in self._parser._actions for option in action.option_strings]  # noqa: SLF001
        return [word for each in self._completers for word in (each(typed) if callable(each) else each)]

    async def _await(self, event: CommandEvent) -> Any:
        return await self._call(event)

    def _call(self, event: CommandEvent) -> Any:
        values = vars(self._parser.parse_args(list(event.args)))
        args: list[Any] = [event] if self._takes_event else []
        options: dict[str, Any] = {}
        for parameter in self._parameters:
            value = values[parameter.name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                args.extend(value)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                options[parameter.name] = value
            else:
                args.append(value)
        return self._handler(*args, **options)

    def _add(self, name: str, parameter: Parameter) -> None:
        """Add a parameter to the parser."""
        if parameter.kind is parameter.VAR_KEYWORD:
            raise TypeError(f"the command {name!r} cannot have **{parameter.name}; name each parameter")
        kind, completer = _plain(parameter.annotation)
        has_default = parameter.default is not parameter.empty
        settings: dict[str, Any] = {"default": parameter.default} if has_default else {}
        option = f"--{parameter.name.replace('_', '-')}"
        if kind is bool:
            if not has_default:
                raise TypeError(f"{parameter.name} of the command {name!r} is a flag; it needs a default such as False")
            action = argparse.BooleanOptionalAction if parameter.default else "store_true"
            self._parser.add_argument(option, dest=parameter.name, action=action, **settings)
            return
        converter, choices = _converter(kind)
        settings |= {"type": converter, "metavar": parameter.name.upper()}
        if parameter.kind is parameter.KEYWORD_ONLY:
            self._parser.add_argument(option, dest=parameter.name, required=not has_default, **settings)
        else:
            many = "*" if parameter.kind is parameter.VAR_POSITIONAL else "?" if has_default else None
            self._parser.add_argument(parameter.name, nargs=many, **settings)
        self._completers.extend(each for each in (completer, choices, _paths if kind is Path else None) if each)


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises an error instead of exiting."""

    @property
    def line(self) -> str:
        """The usage on one line, without its prefix."""
        return " ".join(self.format_usage().removeprefix("usage:").split())

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; usage: {self.line}")


def arguments_of(name: str, handler: Any) -> Arguments | None:
    """Return a parser for the parameters of ``handler``.

    Return None if the handler takes the event itself or is not valid.

    Raises:
        TypeError: if its annotations cannot be evaluated, or a parameter cannot be filled from the command line.
    """
    if (
        not callable(handler)
        or isinstance(handler, type)
        or inspect.isgeneratorfunction(handler)
        or inspect.isasyncgenfunction(handler)
    ):
        return None
    try:
        signature = _signature(name, handler)
    except ValueError:  # some callables written in C have no signature
        return None
    parameters = list(signature.parameters.values())
    if _takes_only_the_event(signature, parameters):
        return None
    return Arguments(name, handler, parameters)


def _signature(name: str, handler: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of ``handler``, with evaluated annotations."""
    try:
        return inspect.signature(handler, eval_str=True)
    except NameError:
        from lifecycle.events import CommandEvent, Event, Topical

    # Our own names are known even if the program imports them only for type checkers.
    known = {"CommandEvent": CommandEvent, "Event": Event, "Topical": Topical}
    try:
        return inspect.signature(handler, locals=known, eval_str=True)
    except NameError as error:
        raise TypeError(
            f"the annotations of the command {name!r} cannot be evaluated: {error}; import the name outside "
            "`if TYPE_CHECKING`, or leave out the annotation"
        ) from error


def _takes_only_the_event(signature: inspect.Signature, parameters: list[Parameter]) -> bool:
    if len(parameters) == 1 and _is_event(parameters[0].annotation):
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return all(each.annotation in (each.empty, Any, object) for each in parameters)


def _is_event(annotation: Any) -> bool:
    """Return whether an annotation is an event class, that is, a class with a topic."""
    return (
        hasattr(annotation, "topic")
        or hasattr(annotation, "topics")
        or "topic" in getattr(annotation, "__annotations__", {})
    )


def _plain(annotation: Any) -> tuple[Any, Completer | None]:
    """Return the type in an annotation, without ``None`` and `Annotated`, and the completions from `Annotated`."""
    if get_origin(annotation) is Annotated:
        kind, *extras = get_args(annotation)
        return _plain(kind)[0], next((each for each in extras if _completes(each)), None)
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [each for each in get_args(annotation) if each is not type(None)]
        return _plain(kinds[0]) if len(kinds) == 1 else (str, None)
    return annotation, None


def _completes(extra: Any) -> bool:
    return callable(extra) or isinstance(extra, list | tuple)


def _converter(kind: Any) -> tuple[Callable[[str], Any], list[str]]:
    """Return a function that converts a word to ``kind``, and a list of the accepted words, if they are known."""
    if get_origin(kind) is Literal:
        return _choice({str(value): value for value in get_args(kind)})
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return _choice({str(each.value): each for each in kind})
    convert: Callable[[str], Any] = str if kind in (inspect.Parameter.empty, Any, object) else kind
    return convert, []


def _choice(values: dict[str, Any]) -> tuple[Callable[[str], Any], list[str]]:
    def convert(word: str) -> Any:
        if word not in values:
            raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(values)}")
        return values[word]

    return convert, list(values)


def _paths(typed: str) -> list[str]:
    """Return the paths that begin with ``typed``. Directories end with a slash."""
    folder, _ = os.path.split(typed)
    try:
        entries = list(os.scandir(folder or "."))
    except OSError:
        return []
    return [os.path.join(folder, each.name) + ("/" if each.is_dir() else "") for each in entries]  # noqa: PTH118
