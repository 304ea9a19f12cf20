"""Built-in commands for controlling a program from outside, such as status, stop, restart and emit.

The commands are added to the program's routers. A program's own command takes precedence over one of the same name.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._steering.answers import refused, reply
from lifecycle._steering.stored_flows import control_flows
from lifecycle._steering.tasks import find_task, where
from lifecycle._text import listed, plural
from lifecycle.control import Command, Router
from lifecycle.control.commands import Commands, lifecycle_commands
from lifecycle.control.router import call_directly
from lifecycle.errors import NotHandled, RouteConflict, RouteNotFound, WorkerFailed
from lifecycle.events import CommandEvent, Event, ShutdownEvent, SuspendEvent, TerminateEvent, Topical
from lifecycle.runtime.parts import has_route_for
from lifecycle.workers.model import FINAL, UNSTARTED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from lifecycle.runtime import Lifetime
    from lifecycle.workers.stdio import RecentLines

__all__ = [
    "BuiltInCommands",
    "CommandInstaller",
    "built_in_patterns",
    "output_paths",
    "recent_lines",
    "routers_of",
    "status_text",
]

#: The name for all workers.
_ALL = "all"

#: The maximum number of concurrent restarts.
_RESTARTS = 20

#: Commands that may take a long time, and must not delay later commands.
_SLOW = ("restart", "start", "stop", "cancel", "flows")

#: The number of seconds to wait for a cancelled task to finish.
_CANCEL_TIMEOUT = 1.0


class CommandInstaller:
    """A context manager that adds the built-in commands to all current and later routers under ``lifetime``."""

    def __init__(self, lifetime: Lifetime, loop: asyncio.AbstractEventLoop) -> None:
        self._lifetime = lifetime
        self._loop = loop
        self._installed: dict[Router, BuiltInCommands] = {}
        self._open = False

    def __enter__(self) -> None:
        """Add the commands."""
        self._open = True
        hooks.router_started.connect(self._on_started)
        hooks.router_stopped.connect(self._on_stopped)
        self._install()

    def __exit__(self, *_: object) -> None:
        """Remove the commands."""
        self._open = False
        hooks.router_started.disconnect(self._on_started)
        hooks.router_stopped.disconnect(self._on_stopped)
        for router in tuple(self._installed):
            self._on_stopped(router)

    def _on_started(self, _sender: object, **_: object) -> None:
        # The lifetime receives the same announcement, but possibly after this receiver.
        self._loop.call_soon_threadsafe(self._install)

    def _on_stopped(self, router: Any, /, **_: object) -> None:
        commands = self._installed.pop(router, None)
        if commands is not None:
            commands.uninstall()

    def _install(self) -> None:
        if self._open:
            for router in routers_of(self._lifetime):
                if router not in self._installed:
                    self._installed[router] = BuiltInCommands.of(router, self._lifetime)


def routers_of(lifetime: Lifetime) -> tuple[Router, ...]:
    """Return the routers that run under ``lifetime``."""
    return tuple(each for each in lifetime.components() if isinstance(each, Router))


def built_in_patterns(router: Router) -> frozenset[str]:
    """Return the patterns of routes that only implement built-in commands."""
    included = [each for each in router.commands.included if isinstance(each, BuiltInCommands)]
    return frozenset(pattern for each in included for pattern in each.patterns)


class BuiltInCommands(Commands):
    """A router's built-in commands and their routes, for the program under ``lifetime``.

    Several installers can share them. They are removed by the last call to `uninstall`.
    """

    def __init__(self, router: Router, lifetime: Lifetime) -> None:
        super().__init__(*(each for each in lifecycle_commands() if each.name in ("suspend", "resume", "reload")))
        self._router = router
        self._lifetime = lifetime
        self._installers = 0
        #: The routes added for these commands.
        self.patterns: list[str] = []

    @classmethod
    def of(cls, router: Router, lifetime: Lifetime) -> BuiltInCommands:
        """Install the built-in commands in ``router``, unless they are already installed, and return them."""
        found = next((each for each in router.commands.included if isinstance(each, BuiltInCommands)), None)
        commands = found or cls(router, lifetime)
        commands.install()
        return commands

    def install(self) -> None:
        """Add the commands to the router, unless another installer has added them."""
        self._installers += 1
        if self._installers == 1:
            self._add_all()
            self._router.commands.include(self)

    def uninstall(self) -> None:
        """Remove the commands from the router, unless another installer still uses them."""
        self._installers -= 1
        if self._installers:
            return
        self._router.commands.exclude(self)
        for pattern in self.patterns:
            with suppress(RouteNotFound):
                self._router.remove(pattern)

    def _add_all(self) -> None:
        self._add("status", "Show the state of the program.", self._status)
        self._add(
            "stop",
            "Stop the program, or only these workers (or all).",
            self._stop,
            complete=self._child_names,
        )
        self._add(
            "start",
            "Start these stopped workers, or all.",
            self._start,
            complete=self._child_names,
        )
        self._add("terminate", "Suspend the program to save its state, then stop it.", self._terminate, alone=True)
        self._add(
            "restart",
            "Restart these workers, or all.",
            self._restart,
            complete=self._restartable_names,
        )
        self._add("cancel", "Cancel the asyncio task with this name or ID.", _cancel, complete=_task_names)
        self._add("emit", "Send an event with this TOPIC, and data as JSON.", _refuse_emit, event=_event_of)
        self._add("flows", "Cancel a workflow ID, signal it, or retry it: flows cancel|signal|retry ID …", self._flows)
        self._add("hold", "Hold the events from SOURCE.", self._hold, complete=self._source_names)
        self._add("release", "Release the events held from SOURCE.", self._release, complete=self._source_names)

    def _add(
        self, name: str, text: str, handler: Any, *, event: Any = None, complete: Any = None, alone: bool = False
    ) -> None:
        """Add a command and its route. There is no conflict, because the program's own exact route takes precedence."""
        self.add(Command(name, text, event, complete, takes_arguments=not alone))
        pattern = f"command/[{name[0]}]{name[1:]}"
        with suppress(RouteConflict):
            self._router.handle(pattern, handler, concurrency=_RESTARTS if name in _SLOW else 1)
            self.patterns.append(pattern)

    # -- handlers --------------------------------------------------------------------------------------------------

    def _status(self, _: CommandEvent) -> None:
        reply(status_text(self._lifetime, routers_of(self._lifetime)))

    async def _stop(self, event: CommandEvent) -> None:
        if not event.args:
            await self._shut_down(ShutdownEvent("stop"))
            return
        await _for_each(self._children(event, "stop [NAME ...]"), _Restartable.stop)

    async def _start(self, event: CommandEvent) -> None:
        await _for_each(self._children(event, "start NAME ..."), _Restartable.start)

    async def _terminate(self, event: CommandEvent) -> None:
        if has_route_for(self._router, TerminateEvent.topic):
            await self._shut_down(TerminateEvent())
            return
        try:
            if has_route_for(self._router, SuspendEvent.topic):
                with suppress(NotHandled):
                    await call_directly(self._router, SuspendEvent())
        finally:
            await self._stop(event)

    async def _shut_down(self, event: Topical) -> None:
        """Dispatch ``event`` if the program handles it. Otherwise, shut down the lifetime."""
        if self._lifetime.state().embedded:
            reply("this lifetime stops, but the program that runs its event loop continues; stop that program too")
        if has_route_for(self._router, event.topic):
            with suppress(NotHandled):
                await call_directly(self._router, event)
                return
        self._lifetime.shutdown()

    async def _restart(self, event: CommandEvent) -> None:
        await _for_each(self._workers(event, "restart NAME ..."), _Restartable.restart)

    def _workers(self, event: CommandEvent, usage: str) -> list[_Restartable]:
        """Return the workers that are named in a command."""
        if not event.args:
            raise refused(f"usage: {usage}")
        try:
            return _find_all(event.args, list(_restartables(self._lifetime.components())))
        except LookupError as error:
            raise refused(str(error)) from None

    def _children(self, event: CommandEvent, usage: str) -> list[_Restartable]:
        """Return the children of supervisors that are named in a command."""
        found = self._workers(event, usage)
        if _ALL in event.args:
            return [each for each in found if each.supervisor is not None]
        for each in found:
            if each.supervisor is None:
                raise refused(f"{each.path!r} is not a supervisor's child; it can only be restarted")
        return found

    async def _flows(self, event: CommandEvent) -> None:
        await control_flows(self._lifetime.components(), event)

    def _hold(self, event: CommandEvent) -> None:
        name = _argument(event, "hold SOURCE")
        for router in self._routers_with(name):
            router.hold_source(name)

    def _release(self, event: CommandEvent) -> None:
        name = _argument(event, "release SOURCE")
        for router in self._routers_with(name):
            router.release_source(name)

    def _routers_with(self, source: str) -> list[Router]:
        found = [each for each in routers_of(self._lifetime) if any(info.name == source for info in each.sources())]
        if not found:
            raise refused(f"no source is called {source!r}; available: {', '.join(self._source_names()) or 'none'}")
        return found

    # -- completions -----------------------------------------------------------------------------------------------

    def _restartable_names(self, _: str) -> set[str]:
        return _names(_restartables(self._lifetime.components()))

    def _child_names(self, _: str) -> set[str]:
        return _names(each for each in _restartables(self._lifetime.components()) if each.supervisor is not None)

    def _source_names(self, _: str = "") -> list[str]:
        return sorted({each.name for router in routers_of(self._lifetime) for each in router.sources()})


def status_text(lifetime: Lifetime | None, routers: Iterable[Router], *, suspended: str | None = None) -> str:
    """Describe the program's state, with one fact per line."""
    rows = [("program", _lifetime_text(lifetime)), *([("state", suspended)] if suspended else ())]
    for state in (router.state() for router in routers):
        rows += [
            ("router", f"{plural(state.routes, 'route')}, {plural(state.sources, 'source')}"),
            (
                "events",
                f"{state.handled} handled, {state.failed} failed, {state.dropped} dropped, {state.unrouted} unrouted",
            ),
        ]
    return "\n".join(f"{name:9}  {value}" for name, value in rows)


def _lifetime_text(lifetime: Lifetime | None) -> str:
    if lifetime is None:
        return "no lifetime"
    state = lifetime.state()
    status = f"stopping ({state.reason})" if state.stopping else "running"
    return f"{status}, {plural(len(state.tasks), 'task')}, {plural(len(state.workers), 'worker')}"


async def _cancel(event: CommandEvent) -> None:
    try:
        task = find_task(_argument(event, "cancel TASK"))
    except LookupError as error:
        raise refused(str(error)) from None
    if task is asyncio.current_task():
        raise refused("this task is executing the command")
    named = f"the task {task.get_name()!r}, which was waiting at {where(task)}"
    task.cancel("lifecycle ctl cancel")
    await asyncio.wait({task}, timeout=_CANCEL_TIMEOUT)
    reply(f"cancelled {named}" if task.done() else f"cancelled {named}; it has not finished yet")


def _task_names(_: str) -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


def _event_of(args: tuple[str, ...]) -> Topical:
    """Return the event to emit. If the arguments are invalid, return an event for `_refuse_emit`."""
    if len(args) in (1, 2) and args[0]:
        with suppress(ValueError, RecursionError):
            return Event(args[0], json.loads(args[1]) if args[1:] else None)
    return CommandEvent("emit", args)


def _refuse_emit(event: CommandEvent) -> None:
    raise refused(f"emit {' '.join(event.args)}: use a topic, and data as JSON in single quotes: emit a/b '[1, 2]'")


def _argument(event: CommandEvent, usage: str) -> str:
    if len(event.args) != 1:
        raise refused(f"usage: {usage}")
    return event.args[0]


#: The states in which a worker can be started with `start`.
_INACTIVE = (*FINAL, *UNSTARTED)


# -- workers that can be restarted ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Restartable:
    """A pool, or a supervisor's child at any depth."""

    name: str
    #: The names from the root to the worker, joined by slashes.
    path: str
    #: The current worker, or the last worker if none is running. None if there is no worker.
    worker: Any
    #: None for a pool without a supervisor.
    supervisor: Any = None
    status: str = ""
    #: True if the worker belongs to a supervisor that is itself a worker in this list.
    nested: bool = False

    @property
    def active(self) -> bool:
        """True unless the worker has exited or was never started."""
        return self.status not in _INACTIVE

    async def stop(self) -> None:
        """Stop the worker."""
        await self.supervisor.stop_child(self.name)

    async def start(self) -> None:
        """Start the worker, unless it is active."""
        if self.active:
            reply(f"{self.path} is already {self.status}")
        else:
            await self.supervisor.restart(self.name)

    async def restart(self) -> None:
        """Replace a running pool's processes, or restart the worker."""
        if self.supervisor is None or (self.status == "running" and _is_async(self.worker, "refresh")):
            await self.worker.refresh()
        else:
            await self.supervisor.restart(self.name)


def _restartables(components: Iterable[Any]) -> Iterator[_Restartable]:
    """Yield pools and supervisors' children. Checking their methods instead of their types avoids importing them."""
    for each in components:
        path = getattr(each, "name", None)
        if isinstance(path, str):
            if _is_async(each, "refresh"):
                yield _Restartable(path, path, each)
            yield from _children(each, path)


async def _for_each(workers: Iterable[_Restartable], act: Callable[[_Restartable], Awaitable[None]]) -> None:
    """Call ``act`` for all workers at the same time. If it fails, the others continue, and the errors are raised."""
    results = await asyncio.gather(*map(act, workers), return_exceptions=True)
    errors = [each for each in results if isinstance(each, Exception)]
    if len(errors) > 1:
        raise WorkerFailed("; ".join(map(str, errors)))
    for error in errors:
        raise error


def _children(supervisor: Any, path: str, *, nested: bool = False) -> Iterator[_Restartable]:
    if not (callable(getattr(supervisor, "workers", None)) and _is_async(supervisor, "restart")):
        return
    try:
        states = supervisor.workers()
    except Exception:  # noqa: BLE001  # a class of the program may raise anything; other workers can still be restarted
        return
    for state in states:
        below = f"{path}/{state.name}"
        try:
            worker: Any = supervisor[state.name]
        except KeyError:  # the child has not started yet, or has been removed
            worker = None
        yield _Restartable(state.name, below, worker, supervisor, str(state.status), nested)
        yield from _children(worker, below, nested=True)


def recent_lines(lifetime: Lifetime, name: str) -> RecentLines:
    """Return the most recent output lines of the worker with this name or path.

    Raises:
        LookupError: if there is no such worker, several have the name, or its output is not captured.
    """
    found = _find(name, _with_output(lifetime))
    recent = _recent(found)
    if recent is not None:
        return recent
    if found.worker is not None and hasattr(found.worker, "recent"):
        raise LookupError(
            f"the output of {found.path!r} is not recorded, because it goes directly to a terminal or a file; with "
            "lifecycle watch, use --prompt"
        )
    raise LookupError(f"no output of {found.path!r} is available; only started processes and containers have output")


def output_paths(lifetime: Lifetime, names: Sequence[str]) -> list[str]:
    """Return the paths of the workers with these names or paths. Without names, return all whose output is recorded.

    Raises:
        LookupError: if there is no such worker, several have the name, or no output is recorded.
    """
    workers = _with_output(lifetime)
    if names:
        return [each.path for each in _find_all(names, workers)]
    found = [each.path for each in workers if _recent(each) is not None]
    if not found and len(workers) == 1:
        recent_lines(lifetime, workers[0].path)  # raises the reason
    if not found:
        raise LookupError("no output is recorded; only started processes and containers have output")
    return found


def _with_output(lifetime: Lifetime) -> list[_Restartable]:
    """Return the workers, including processes and containers without a supervisor."""
    components: tuple[Any, ...] = lifetime.components()
    alone = [_Restartable(each.name, each.name, each) for each in components]
    return [*(each for each in alone if _recent(each) is not None), *_restartables(components)]


def _recent(found: _Restartable) -> RecentLines | None:
    from lifecycle.workers.stdio import RecentLines  # programs that use an observer need not import workers

    recent = getattr(found.worker, "recent", None)
    return recent if isinstance(recent, RecentLines) else None


def _is_async(thing: Any, method: str) -> bool:
    return inspect.iscoroutinefunction(getattr(thing, method, None))


def _find_all(names: Sequence[str], workers: list[_Restartable]) -> list[_Restartable]:
    """Return the workers with these paths or names, each once. The name of a scaled process means all of its copies.

    ``all`` means all workers, with the children of a nested supervisor in its place.

    Raises:
        LookupError: as `_find` does.
    """
    found = [worker for name in names for worker in _find_each(name, workers)]
    return list({each.path: each for each in found}.values())


def _find_each(name: str, workers: list[_Restartable]) -> list[_Restartable]:
    if any(name in (each.name, each.path) for each in workers):
        return [_find(name, workers)]
    if name == _ALL and workers:
        return [each for each in workers if not each.nested]
    copy = re.compile(rf"{re.escape(name)}\.\d+")
    copies = [each for each in workers if copy.fullmatch(each.name) or copy.fullmatch(each.path)]
    return copies or [_find(name, workers)]


def _find(name: str, workers: list[_Restartable]) -> _Restartable:
    """Return the worker with this path, or the only worker with this name.

    Raises:
        LookupError: if there is no such worker, or the name is ambiguous. The message lists the workers.
    """
    by_path = [each for each in workers if each.path == name]
    for found in (by_path, [each for each in workers if each.name == name]):
        if len(found) == 1:
            return found[0]
        if found:
            raise LookupError(f"{name!r} is ambiguous; use one of {_paths(found)}")
    raise LookupError(f"no worker is called {name!r}; available: {_paths(workers) or 'none'}")


def _paths(workers: list[_Restartable]) -> str:
    return listed([each.path for each in workers])


def _names(workers: Iterable[_Restartable]) -> set[str]:
    return {name for each in workers for name in (each.name, each.path)}
