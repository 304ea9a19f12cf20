"""`Console`: all queries and commands that a running program accepts.

The package `http` makes them available over HTTP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._async import start_task
from lifecycle._masking import masked
from lifecycle._net import share_of_descriptors
from lifecycle._steering.answers import Answer, current_answer
from lifecycle._steering.commands import (
    BuiltInCommands,
    CommandInstaller,
    built_in_patterns,
    output_paths,
    recent_lines,
    routers_of,
)
from lifecycle._steering.stored_flows import flow_details, list_flows
from lifecycle._steering.tasks import find_task, task_infos
from lifecycle._util import reason_of
from lifecycle.control import Router
from lifecycle.control.commands import completions, split
from lifecycle.control.deliveries import current as current_delivery
from lifecycle.control.router import call_directly
from lifecycle.errors import Dropped, InvalidTopic, LifecycleError, NotHandled
from lifecycle.events import CommandEvent, Event, UnknownCommandEvent
from lifecycle.observe.eventlog.log import EventLog
from lifecycle.observe.output import Output
from lifecycle.runtime import current
from lifecycle.runtime.force import stacks, task_stack
from lifecycle.runtime.parts import has_route_for
from lifecycle.workers.model import WorkerState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Generator, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from lifecycle.control import Command, Delivery
    from lifecycle.events import Topical
    from lifecycle.observe.output import Listener
    from lifecycle.observe.snapshots import Snapshot
    from lifecycle.observe.watching import Watch
    from lifecycle.runtime import Lifetime

__all__ = ["Console", "Outcome", "TooMany", "Verdict"]

_CLOSED = "the console is closed; write `async with Console() as console`"

#: The maximum number of open streams. It is lowered to an eighth of the available file descriptors if that is less.
_STREAMS = 1000

#: The maximum number of commands and events that can be running at the same time.
_RUNNING = 200

#: The limit is doubled for these commands, so that you can stop the program even if other commands hang.
_STOPPING = ("stop", "terminate")

#: The errors for built-in commands that a program does not handle, by the topic of their events.
_UNHANDLED = {
    "lifecycle/suspend": "this program cannot be suspended, because it has no handler for this command",
    "lifecycle/resume": "this program cannot be resumed, because it has no handler for this command",
    "lifecycle/reload": "this program cannot reload its configuration, because it has no handler for this command",
}
#: Built-in commands that a program may handle itself, and their topics.
_TOPICS = {
    "suspend": "lifecycle/suspend",
    "resume": "lifecycle/resume",
    "reload": "lifecycle/reload",
    "stop": "lifecycle/shutdown",
    "terminate": "lifecycle/terminate",
}

#: The maximum number of characters of an unknown command to show in an error message.
_SHOWN = 60


class TooMany(LifecycleError):
    """Raised when too many commands are running or too many streams are open."""


class Verdict(StrEnum):
    """The final status of a command or an event."""

    HANDLED = "handled"
    FAILED = "failed"
    #: The router dropped the event.
    DROPPED = "dropped"
    #: No router has the command.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command or an event."""

    outcome: Verdict
    #: The id of the event's delivery; None if no event was delivered.
    delivery: int | None = None
    error: str | None = None
    #: The command's replies, such as the output of `status`.
    answer: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as a dict that `json.dumps` accepts."""
        return asdict(self)


class Console:
    """Queries and commands for everything under the current lifetime, used with ``async with``.

    While the console is open, the lifetime's routers also accept the built-in commands. A command that the program
    defines takes precedence over a built-in command with the same name. Events are read from the open `EventLog`; if no
    log is open, the console opens one.
    """

    def __init__(self) -> None:
        self._resources = AsyncExitStack()
        self._output = Output()
        # Tasks that are sending streams. Closing the console cancels them.
        self._streams: set[asyncio.Task[Any]] = set()
        self._lifetime: Lifetime | None = None
        self._queue: _CommandQueue | None = None
        self._log: EventLog | None = None

    async def __aenter__(self) -> Self:
        """Open the console.

        Raises:
            LookupError: if called outside a lifetime.
            RuntimeError: if the console is already open.
        """
        if self._lifetime is not None:
            raise RuntimeError("the console is already open; create another")
        lifetime = current()
        async with AsyncExitStack() as resources:
            self._log = EventLog.current() or await resources.enter_async_context(EventLog())
            resources.enter_context(CommandInstaller(lifetime, asyncio.get_running_loop()))
            self._queue = _CommandQueue(lifetime)
            resources.push_async_callback(self._queue.aclose)
            resources.push_async_callback(self.end_streams)
            self._resources = resources.pop_all()
        self._lifetime = lifetime
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the console. This ends all streams, but running commands continue."""
        await self._resources.aclose()
        self._lifetime = self._queue = None

    # -- queries ---------------------------------------------------------------------------------------------------

    @property
    def lifetime(self) -> Lifetime:
        """The program's lifetime.

        Raises:
            RuntimeError: if the console is not open.
        """
        if self._lifetime is None:
            raise RuntimeError(_CLOSED)
        return self._lifetime

    @property
    def events(self) -> EventLog:
        """The program's event log, or the log that the console opened."""
        found = next((each for each in self.lifetime.components() if isinstance(each, EventLog)), self._log)
        assert found is not None, "the console opens one"
        self._log = found
        return found

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the program."""
        from lifecycle.observe.snapshots import snapshot

        return snapshot()

    def watch(self) -> Watch:
        """Return an async iterator over changes to the program's state."""
        from lifecycle.observe.watching import watch

        return watch()

    def routes(self) -> list[dict[str, Any]]:
        """Return the routes of all routers, except the built-in commands. Each route includes its router's name."""
        return [
            {"router": router.name, **asdict(route)}
            for router in self._commands.routers()
            for route in router.routes()
            if route.pattern not in built_in_patterns(router)
        ]

    def commands(self) -> list[dict[str, Any]]:
        """Return all commands, each with its name, usage, help text, aliases and the router that handles it."""
        return [
            {
                "name": each.name,
                "usage": each.usage,
                "help": each.help.strip(),
                "aliases": list(each.aliases),
                "router": router.name,
            }
            for router in self._commands.routers()
            for each in router.commands
            if self._commands.router_for(each.name) is router
        ]

    def complete(self, line: str) -> list[str]:
        """Return the completions for the last word in ``line``."""
        commands = self._commands
        names = {each.name for router in commands.routers() for each in router.commands}
        return completions(line, names, commands.command_of)[1]

    def diagram(self, of: str = "system") -> str:
        """Return Mermaid text for ``"system"``, ``"lifetime"``, a worker (by name or path) or a flow (by id).

        Raises:
            LookupError: if there is no such worker or flow.
        """
        return _diagram(self.lifetime, of)

    def tasks(self) -> list[dict[str, Any]]:
        """Return the running asyncio tasks, sorted by name, each with its ``id``, its age and where it waits.

        The age is in seconds, and is only known for task workers and for tasks started with `go`. ``created_at`` is
        only known in asyncio's debug mode.
        """
        return [each.to_dict() for each in task_infos(self.lifetime)]

    def stacks(self, task: str | None = None) -> str:
        """Return the stacks of all threads and tasks or, if you pass ``task``, of the task with this name or id.

        Secrets in the source lines are masked.

        Raises:
            LookupError: if no task has this name, or several tasks do.
        """
        return masked(stacks(asyncio.get_running_loop()) if task is None else task_stack(find_task(task)))

    async def flows(self, state: str = "WAITING", limit: int = 100) -> list[dict[str, Any]]:
        """Return the flows in this state from all stores that the program has open. Secrets are masked.

        Raises:
            ValueError: if the state is unknown, or the limit is below 1.
        """
        return await list_flows(self.lifetime.components(), state, limit)

    async def flow(self, id: str) -> dict[str, Any]:  # noqa: A002  # the natural name
        """Return the stored flow with this id, its steps, and the names of the signals that wait for it.

        Raises:
            FlowError: if no open store has a flow with this id.
        """
        return await flow_details(self.lifetime.components(), id)

    def output_paths(self, *names: str) -> list[str]:
        """Return the paths of the workers with these names or paths. By default, return all whose output is recorded.

        The name of a scaled process, such as ``web``, means its copies ``web.1`` and ``web.2``.

        Raises:
            LookupError: if no worker or several workers match a name, or no output is recorded.
        """
        return output_paths(self.lifetime, names)

    def lines(self, worker: str, count: int) -> list[str]:
        """Return the last lines of output, at most 500, from the process with this name or path.

        Raises:
            LookupError: if no worker or several workers match, or the worker's output is not read.
        """
        return recent_lines(self.lifetime, worker).last(count)

    def follow_lines(self, worker: str, count: int) -> AsyncGenerator[tuple[list[str], int]]:
        """Yield a process's last ``count`` lines, then new lines, with the number of lines lost before each batch.

        The iteration continues when the process restarts. It raises the same errors as `lines`.
        """
        return recent_lines(self.lifetime, worker).follow(count)

    def listening(self) -> AbstractContextManager[Listener]:
        """Return a context manager that yields a listener for all output and log messages from now on.

        ``with console.listening() as texts: async for text in texts``
        """
        return self._output.listening()

    # -- commands --------------------------------------------------------------------------------------------------

    async def command(self, line: str) -> Outcome:
        """Execute a command as if it had been typed at the prompt, and return its outcome.

        Cancelling the caller does not cancel the command. Listeners receive the command's output before this method
        returns.

        Raises:
            ValueError: if the line is blank.
            TooMany: if too many commands are running.
        """
        outcome = await self._commands.command(line)
        await self._output.flush()
        return outcome

    async def emit(self, topic: str, data: object = None) -> Outcome:
        """Emit an event and wait for its outcome.

        Raises:
            TooMany: if too many commands are running.
        """
        return await self._commands.emit(topic, data)

    @property
    def _commands(self) -> _CommandQueue:
        if self._queue is None:
            raise RuntimeError(_CLOSED)
        return self._queue

    # -- streams ---------------------------------------------------------------------------------------------------

    @contextmanager
    def streaming(self) -> Generator[None]:
        """Count the current task as a stream for the duration of the context. Closing the console cancels the task.

        Raises:
            TooMany: if too many streams are open.
        """
        task = asyncio.current_task()
        assert task is not None, "a stream is sent by a task"
        most = share_of_descriptors(8, least=16, most=_STREAMS)
        if len(self._streams) >= most:
            raise TooMany(f"{most} streams are already open; close some")
        self._streams.add(task)
        try:
            yield
        finally:
            self._streams.discard(task)

    async def end_streams(self) -> None:
        """Cancel all streams immediately. A shutdown does not wait for them."""
        for task in tuple(self._streams):
            task.cancel("the program ends")
        # Let the tasks see the cancellation. The server waits for them to finish.
        await asyncio.sleep(0)


class _CommandQueue:
    """Sends clients' commands and events to the routers under ``lifetime``, and waits for their results.

    The built-in commands work even if no router is running.
    """

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime
        self._running: set[asyncio.Task[Outcome]] = set()
        # Replies to running commands, by delivery id.
        self._answers: dict[int, Answer] = {}
        # This router never runs. If no other router is running, we pass commands directly to this one.
        self._stand_in = Router("program")
        BuiltInCommands.of(self._stand_in, lifetime)

    async def aclose(self) -> None:
        """Stop waiting for results. Routers still handle the events that they have accepted."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    # -- choosing a router -----------------------------------------------------------------------------------------

    def routers(self) -> tuple[Router, ...]:
        """Return the running routers, or the stand-in if no router is running."""
        return routers_of(self._lifetime) or (self._stand_in,)

    def router_for(self, name: str) -> Router | None:
        """Return the router for a command. Prefer one that registered it, then one with a route for its topic."""

        def distance(router: Router) -> int:
            if router.commands.owns(name):
                return 0
            topic = _TOPICS.get(name)
            return 1 if topic is not None and has_route_for(router, topic) else 2

        known = [each for each in self.routers() if name in each.commands]
        return min(known, key=distance, default=None)

    def command_of(self, name: str) -> Command | None:
        """Return the command with this name or alias."""
        router = self.router_for(name)
        return None if router is None else router.commands.get(name)

    def _router_of(self, topic: str) -> Router:
        """Return the router for a topic. Prefer one with a specific route, then one with a catch-all route."""

        def distance(router: Router) -> int:
            with suppress(InvalidTopic):
                patterns = [route.pattern for route in router.explain(topic) if not route.also]
                return 2 if not patterns else 1 if patterns[0] == "**" else 0
            return 2

        return min(self.routers(), key=distance)

    # -- executing -------------------------------------------------------------------------------------------------

    async def command(self, line: str) -> Outcome:
        words = split(line)
        if not words:
            raise ValueError("the line is blank; enter a command, such as 'status'")
        router = self.router_for(words[0])
        if router is None:
            return Outcome(Verdict.UNKNOWN, error=self._unknown(words[0]))
        try:
            event = router.commands.parse(line)
        except Exception as error:  # noqa: BLE001  # a function in the program may raise anything
            return Outcome(Verdict.FAILED, error=masked(reason_of(error)))
        assert event is not None, "it has a first word"
        if isinstance(event, UnknownCommandEvent):
            return Outcome(Verdict.UNKNOWN, error=f"{words[0][:_SHOWN]!r} takes no arguments; send it without any")
        if not router.commands.owns(words[0]) and not isinstance(event, CommandEvent):
            router = self._router_of(event.topic)
        return await self._run(self._send(router, event), 2 * _RUNNING if words[0] in _STOPPING else _RUNNING)

    async def emit(self, topic: str, data: object) -> Outcome:
        return await self._run(self._send(self._router_of(topic), Event(topic, data)))

    async def _run(self, work: Coroutine[Any, Any, Outcome], most: int = _RUNNING) -> Outcome:
        if len(self._running) >= most:
            work.close()
            raise TooMany(f"{most} commands are running; wait for one to finish")
        task = start_task(work, name="a command from outside")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _send(self, router: Router, event: Topical) -> Outcome:
        # The event has no parent, because a client sent it.
        current_delivery.set(None)
        answer = Answer(None)
        try:
            if router is self._stand_in:
                current_answer.set(answer)
                await call_directly(router, event)
            else:
                answer.delivery = await router.emit(event)
                with self._answering(answer.delivery, answer):
                    await answer.delivery
        except Exception as error:  # noqa: BLE001  # whatever a handler raises is the outcome
            verdict = Verdict.DROPPED if isinstance(error, Dropped) else Verdict.FAILED
            text = _UNHANDLED.get(event.topic) if type(error) is NotHandled else None
            text = text or reason_of(error)
            return Outcome(verdict, _id(answer), masked(text), None if answer.text == text else answer.text)
        return Outcome(Verdict.HANDLED, _id(answer), answer=answer.text)

    @contextmanager
    def _answering(self, delivery: Delivery, answer: Answer) -> Generator[None]:
        """Within the block, collect the handlers' replies to ``delivery`` in ``answer``."""
        if not self._answers:
            hooks.handler_started.connect(self._on_handler_started)
        self._answers[delivery.id] = answer
        try:
            yield
        finally:
            del self._answers[delivery.id]
            if not self._answers:
                hooks.handler_started.disconnect(self._on_handler_started)

    def _on_handler_started(self, _router: object, *, delivery: Delivery, **_: object) -> None:
        answer = self._answers.get(delivery.id)
        if answer is not None:
            current_answer.set(answer)

    def _unknown(self, name: str) -> str:
        import difflib

        words = {each for router in self.routers() for each in router.commands.words()}
        names = {each.name for router in self.routers() for each in router.commands}
        near = difflib.get_close_matches(name[:_SHOWN], sorted(words), 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; the commands are {', '.join(sorted(names))}"
        return f"unknown command {name[:_SHOWN]!r}{hint}"


def _id(answer: Answer) -> int | None:
    return None if answer.delivery is None else answer.delivery.id


# -- diagrams ------------------------------------------------------------------------------------------------------


def _diagram(lifetime: Lifetime, of: str) -> str:
    # Most programs need neither of these modules.
    from lifecycle.flows.records import FlowsState
    from lifecycle.observe import mermaid

    components = lifetime.components()
    states = [_state(each) for each in components]
    if of == "system":
        records: list[Any] = [lifetime.state()]
        for each, state in zip(components, states, strict=True):
            if isinstance(each, Router):
                records += [state, each.routes(), each.sources()]
            elif isinstance(state, WorkerState | FlowsState):
                records.append(state)
        return mermaid.system(records)
    if of == "lifetime":
        return mermaid.signal(lifetime.state())
    for path, worker in _workers([state for state in states if isinstance(state, WorkerState)]):
        if of in (path, worker.name):
            return mermaid.tree(worker) if worker.children else mermaid.worker(worker)
    for run in (run for state in states if isinstance(state, FlowsState) for run in state.runs):
        if str(run.id) == of:
            return mermaid.flow(run)
    raise LookupError(
        f"{of!r} is neither a worker nor a flow; use 'system', 'lifetime', a worker's name or a flow's id"
    )


def _state(component: Any) -> Any:
    """Return the state of ``component``, or None if it cannot be read."""
    try:
        return component.state()
    except Exception:  # noqa: BLE001  # a class in the program may raise anything
        return None


def _workers(states: list[WorkerState]) -> Iterator[tuple[str, WorkerState]]:
    """Yield each worker with its path, level by level."""
    waiting = deque((state.name, state) for state in states)
    while waiting:
        path, state = waiting.popleft()
        yield path, state
        waiting.extend((f"{path}/{child.name}", child) for child in state.children)
