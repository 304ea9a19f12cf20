"""`lifecycle run MODULE:ATTRIBUTE`: import something and give it to `lifecycle.run`."""

from __future__ import annotations

import importlib
import inspect
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lifecycle.cli.logs import console_for, print_failure, program_logging
from lifecycle.cli.output import DONE, FAILED, UsageError
from lifecycle.runtime.mains import Auxiliary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AsyncExitStack
    from types import ModuleType

    from lifecycle.cli.options import LogFormat
    from lifecycle.cli.output import Console

__all__ = ["OptionalControlSocket", "find", "load", "program_name", "run_target"]

#: What a shell adds to the number of the signal that a process died of.
_SIGNALLED = 128


def run_target(target: str, *, factory: bool, log_format: LogFormat | None = None) -> int:
    """Run what ``target`` names, and return the status to exit with.

    That is the code of a process worker that ended by itself, as a shell would give it; 1 after an error; else 0.

    Raises:
        UsageError: when there is no such module or attribute, or nothing there that can be run.
    """
    sys.path.insert(0, str(Path.cwd()))
    console = console_for(log_format)
    with program_logging(console):
        return _run(target, load(target, factory=factory), console)


def _run(target: str, mains: tuple[Any, ...], console: Console) -> int:
    from lifecycle.runtime import run

    try:
        run(OptionalControlSocket(target.partition(":")[0], console), *mains)
    except Exception as error:  # noqa: BLE001  # shown to the user whole: it is their program
        status = _own_code(mains)
        if status is None:
            print_failure(console, error)
            return FAILED
        console.error(str(error))
        return status
    return _own_code(mains) or DONE


def load(target: str, *, factory: bool = False) -> tuple[Any, ...]:
    """What ``target`` names, ready for `lifecycle.run`; with ``factory``, what calling it returns.

    Raises:
        UsageError: when there is no such module or attribute, or nothing there that can be run.
    """
    found = find(target, _can_run)
    if factory:
        return _made(found, target)
    if not _can_run(found):
        hint = "; with --factory its result would be run" if callable(found) else ""
        raise UsageError(f"{target} is {found!r}, which is no async function, router or worker{hint}")
    return (found,)


def find(target: str, fits: Callable[[Any], bool]) -> Any:
    """What ``target`` names; where there is no such thing, those that ``fits`` are named.

    Raises:
        UsageError: when there is no such module or attribute.
    """
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{target!r} names nothing; give MODULE:ATTRIBUTE, such as app:main")
    return _attribute(_module(module_name), attribute, fits)


def _module(name: str) -> ModuleType:
    """Import it; an error inside it is the user's to see, that there is none is ours to say."""
    if "/" in name or not all(name.split(".")):
        raise UsageError(f"{name!r} is no name of a module; give one such as app or shop.app")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        where = f"looked in {Path.cwd()} and on sys.path"
        hint = f"a module has no .py: {name[:-3]}" if name.endswith(".py") else "is it installed, or misspelt?"
        raise UsageError(f"there is no module {error.name!r} ({where}); {hint}") from None


def _attribute(module: ModuleType, path: str, fits: Callable[[Any], bool]) -> Any:
    found: Any = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            known = sorted(each for each, value in vars(module).items() if each[0] != "_" and fits(value))
            hint = f"; it has {', '.join(known)}" if known else ""
            raise UsageError(f"the module {module.__name__!r} has no {path!r}{hint}") from None
    return found


def _made(factory: Any, target: str) -> tuple[Any, ...]:
    if not callable(factory) or inspect.iscoroutinefunction(factory):
        raise UsageError(f"{target} is {factory!r}, which is no plain function; leave --factory out to run it itself")
    made = factory()
    components = tuple(cast("Iterable[Any]", made)) if isinstance(made, list | tuple) else (made,)
    strangers = [each for each in components if not _can_run(each)]
    if strangers or not components:
        raise UsageError(f"{target}() returned {made!r}; return async functions, routers or workers")
    return components


def _can_run(thing: Any) -> bool:
    """Whether `lifecycle.run` takes it: an async function, or what has ``run`` or ``start`` and ``stop``."""
    if inspect.isclass(thing) or inspect.ismodule(thing):
        return False
    called = getattr(thing, "__call__", None)  # noqa: B004  # an object whose call is async is a main too
    return (
        inspect.iscoroutinefunction(thing)
        or inspect.iscoroutinefunction(called)
        or inspect.iscoroutinefunction(getattr(thing, "run", None))
        or all(callable(getattr(thing, name, None)) for name in ("start", "stop", "wait"))
    )


def _own_code(mains: tuple[Any, ...]) -> int | None:
    """The code of the first process that ended by itself with one that is not zero; None if there is none."""
    from lifecycle.workers import Status, WorkerState

    for main in mains:
        state = main.state() if hasattr(main, "state") else None
        if isinstance(state, WorkerState) and state.exit_code and state.status in (Status.FINISHED, Status.FAILED):
            return state.exit_code if state.exit_code > 0 else _SIGNALLED - state.exit_code
    return None


class OptionalControlSocket(Auxiliary):
    """A main for `run`: a `ControlSocket` called ``name``; one that cannot be opened is said, and nothing else."""

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
            self._console.warning(f"lifecycle ctl will not find this program: {error.strerror or error}")


def program_name(command: str, directory: Path) -> str:
    """A name for what ``command`` runs in ``directory``, of characters that need no quotes."""
    return f"{command}-{re.sub('[^A-Za-z0-9._-]+', '_', directory.name) or 'root'}"
