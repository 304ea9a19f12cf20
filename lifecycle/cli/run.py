"""`lifecycle run MODULE:ATTRIBUTE`, and the control socket that `run`, `up` and `watch` open."""

from __future__ import annotations

import importlib
import inspect
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lifecycle.cli.failures import one_line
from lifecycle.cli.logs import console_for, print_failure, program_logging
from lifecycle.cli.output import DONE, FAILED, CliError, UsageError, shell_status
from lifecycle.observe.auxiliary import Auxiliary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AsyncExitStack
    from types import ModuleType

    from lifecycle.cli.options import LogFormat
    from lifecycle.cli.output import Console

__all__ = ["OptionalControlSocket", "find", "load", "program_name", "run_target"]


def run_target(target: str, *, factory: bool, log_format: LogFormat | None = None) -> int:
    """Run the object ``target`` and return the exit status.

    If a process worker exited on its own with a nonzero exit code, the status is that code, as a shell reports it. This
    includes a significant child whose failure ended its supervisor. Otherwise, the status is 1 if there was an error or
    such a child failed without an exit code, and 0 if not.

    Raises:
        UsageError: if the object does not exist or cannot be run.
    """
    sys.path.insert(0, str(Path.cwd()))
    console = console_for(log_format)
    with program_logging(console):
        try:
            components = load(target, factory=factory)
        except Exception as error:
            if isinstance(error, CliError) or one_line(error) is None:
                raise
            print_failure(console, error)
            return FAILED
        return _run(target, components, console)


def _run(target: str, components: tuple[Any, ...], console: Console) -> int:
    from lifecycle.runtime import run

    try:
        run(OptionalControlSocket(target.partition(":")[0], console), *components)
    except Exception as error:  # noqa: BLE001  # the user's program may raise anything
        status = _own_code(components)
        if status is None:
            print_failure(console, error)
            return FAILED
        console.error(str(error))
        return status
    return _own_code(components) or DONE


def load(target: str, *, factory: bool = False) -> tuple[Any, ...]:
    """Return the components to pass to `lifecycle.run`: the object ``target`` or, with ``factory``, its return value.

    Raises:
        UsageError: if the object does not exist or cannot be run.
    """
    found = find(target, _can_run)
    if factory:
        return _call_factory(found, target)
    if not _can_run(found):
        hint = "; to call it and run its result, use --factory" if callable(found) else ""
        raise UsageError(f"{target} must be an async function, a router or a worker, got {found!r}{hint}")
    return (found,)


def find(target: str, fits: Callable[[Any], bool]) -> Any:
    """Import the object ``target``. If it does not exist, the error lists the module's objects that ``fits`` accepts.

    Raises:
        UsageError: if the module or the attribute does not exist.
    """
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"a target must have the form MODULE:ATTRIBUTE, such as app:main, got {target!r}")
    return _attribute(_module(module_name), attribute, fits)


def _module(name: str) -> ModuleType:
    """Import a module. Errors raised by the module itself are not caught."""
    if "/" in name or not all(name.split(".")):
        raise UsageError(f"expected a module name, such as app or shop.app, got {name!r}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        where = f"looked in {Path.cwd()} and on sys.path"
        hint = f"omit .py: {name[:-3]}" if name.endswith(".py") else "is it installed, or misspelt?"
        raise UsageError(f"no module {error.name!r} ({where}); {hint}") from None


def _attribute(module: ModuleType, path: str, fits: Callable[[Any], bool]) -> Any:
    found: Any = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            known = sorted(each for each, value in vars(module).items() if each[0] != "_" and fits(value))
            hint = f"; available: {', '.join(known)}" if known else ""
            raise UsageError(f"the module {module.__name__!r} has no {path!r}{hint}") from None
    return found


def _call_factory(factory: Any, target: str) -> tuple[Any, ...]:
    if not callable(factory) or inspect.iscoroutinefunction(factory):
        raise UsageError(
            f"with --factory, {target} must be a plain function, got {factory!r}; remove --factory to run it directly"
        )
    made = factory()
    components = tuple(cast("Iterable[Any]", made)) if isinstance(made, list | tuple) else (made,)
    if not components or not all(map(_can_run, components)):
        raise UsageError(f"{target}() must return async functions, routers or workers, got {made!r}")
    return components


def _can_run(thing: Any) -> bool:
    """Return whether `lifecycle.run` accepts the object.

    Async functions, workers and objects with an async ``run`` qualify.
    """
    if inspect.isclass(thing) or inspect.ismodule(thing):
        return False
    called = getattr(thing, "__call__", None)  # noqa: B004  # an object with an async __call__
    return (
        inspect.iscoroutinefunction(thing)
        or inspect.iscoroutinefunction(called)
        or inspect.iscoroutinefunction(getattr(thing, "run", None))
        or all(callable(getattr(thing, name, None)) for name in ("start", "stop", "wait"))
    )


def _own_code(components: tuple[Any, ...]) -> int | None:
    """Return the exit status of the first process that exited on its own with a nonzero code."""
    from lifecycle.workers import WorkerState

    states = ((each.state() if hasattr(each, "state") else None, each) for each in components)
    codes = (_code_of(state, each) for state, each in states if isinstance(state, WorkerState))
    return next((code for code in codes if code is not None), None)


def _code_of(state: Any, worker: object) -> int | None:
    """Return the exit status of a worker, or of the significant child that failed first and so ended its supervisor."""
    from lifecycle.workers import Status, Supervisor

    if state.exit_code and state.status in (Status.FINISHED, Status.FAILED):
        return shell_status(state.exit_code)
    if not isinstance(worker, Supervisor):
        return None
    ended = sorted((each for each in state.children if each.name in worker.ended_by), key=lambda each: each.updated_at)
    for child in ended:
        code = _code_of(child, worker[child.name] if child.name in worker else None)  # noqa: SIM401  # a supervisor has no `get`
        if code is not None or child.status is Status.FAILED:
            return FAILED if code is None else code
    return None


class OptionalControlSocket(Auxiliary):
    """A component that opens the control socket ``name``. If that fails, it only prints a warning."""

    def __init__(self, name: str, console: Console) -> None:
        super().__init__()
        self.name = name
        self._console = console

    async def _open(self, held: AsyncExitStack) -> None:
        if not hasattr(socket, "AF_UNIX"):
            return
        from lifecycle.observe.control import ControlSocket

        try:
            await held.enter_async_context(ControlSocket(self.name))
        except OSError as error:
            self._console.warning(f"lifecycle ctl cannot find this program: {error.strerror or error}")


def program_name(command: str, directory: Path) -> str:
    """Return a program name for ``command`` in ``directory`` that needs no quoting in a shell."""
    return f"{command}-{re.sub('[^A-Za-z0-9._-]+', '_', directory.name) or 'root'}"
