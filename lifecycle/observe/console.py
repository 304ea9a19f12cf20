"""`Console`: what a running program can be asked and told, whoever asks; how the words travel is not known here."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lifecycle._masking import masked
from lifecycle._net import share_of_descriptors
from lifecycle._steering.lent_commands import Steering, lent
from lifecycle.control.commands import completions
from lifecycle.observe._console.orders import Orders, Outcome, TooMany, Verdict
from lifecycle.observe._console.output import Output
from lifecycle.observe.eventlog import EventLog
from lifecycle.runtime import current
from lifecycle.runtime.force import stacks

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from lifecycle.observe._console.output import Listener
    from lifecycle.observe._snapshot.views import Snapshot
    from lifecycle.observe.watching import Watch
    from lifecycle.runtime import Lifetime

__all__ = ["Console", "Outcome", "TooMany", "Verdict"]

_CLOSED = "the console is closed; write `async with Console() as console`"

#: Readers of streams at once, if the process may open enough descriptors; else an eighth of those.
_READERS = 1000


class Console:
    """Asks and tells everything under the current lifetime, from when it is entered until it is left.

    Meanwhile the commands that steer a program are lent to its routers: those that it has itself win. Events are
    looked up in the `EventLog` that is open, or in one of the console's own.
    """

    def __init__(self) -> None:
        self._held = AsyncExitStack()
        self._output = Output()
        # Tasks that read streams, to be ended with the console.
        self._readers: set[asyncio.Task[Any]] = set()
        self._lifetime: Lifetime | None = None
        self._orders: Orders | None = None
        self._log: EventLog | None = None

    async def __aenter__(self) -> Self:
        """Open it.

        Raises:
            LookupError: outside a lifetime.
            RuntimeError: when it is open already.
        """
        if self._lifetime is not None:
            raise RuntimeError("the console is open already; make another")
        lifetime = current()
        async with AsyncExitStack() as held:
            self._log = EventLog.current() or await held.enter_async_context(EventLog())
            held.enter_context(Steering(lifetime, asyncio.get_running_loop()))
            self._orders = Orders(lifetime)
            held.push_async_callback(self._orders.aclose)
            held.push_async_callback(self.end_streams)
            self._held = held.pop_all()
        self._lifetime = lifetime
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it; streams end, what was ordered goes on."""
        await self._held.aclose()
        self._lifetime = self._orders = None

    # -- what can be asked -----------------------------------------------------------------------------------------

    @property
    def lifetime(self) -> Lifetime:
        """Of the program.

        Raises:
            RuntimeError: when the console is not open.
        """
        if self._lifetime is None:
            raise RuntimeError(_CLOSED)
        return self._lifetime

    @property
    def events(self) -> EventLog:
        """The log of events: that of the program, or one of the console's own."""
        found = next((each for each in self.lifetime.components() if isinstance(each, EventLog)), self._log)
        assert found is not None, "one is opened with the console"
        self._log = found
        return found

    def snapshot(self) -> Snapshot:
        """All of its state."""
        from lifecycle.observe.snapshots import snapshot

        return snapshot()

    def watch(self) -> Watch:
        """Its state as it changes."""
        from lifecycle.observe.watching import watch

        return watch()

    def routes(self) -> list[dict[str, Any]]:
        """The routes of every router, each with the router's name; not those of the words that it is lent."""
        return [
            {"router": router.name, **asdict(route)}
            for router in self._ordering.routers()
            for route in router.routes()
            if route.pattern not in lent(router)
        ]

    def commands(self) -> list[dict[str, Any]]:
        """The words that it knows: their names, aliases and helps, and the router that has each."""
        return [
            {"name": each.name, "help": each.help.strip(), "aliases": list(each.aliases), "router": router.name}
            for router in self._ordering.routers()
            for each in router.commands
            if self._ordering.router_for(each.name) is router
        ]

    def complete(self, line: str) -> list[str]:
        """Candidates for the last word of ``line``."""
        orders = self._ordering
        names = {each.name for router in orders.routers() for each in router.commands}
        return completions(line, names, orders.command_of)[1]

    def diagram(self, of: str = "system") -> str:
        """The text for Mermaid of ``"system"``, ``"lifetime"``, a worker (its name or path) or a flow (its id).

        Raises:
            LookupError: when there is nothing of that name.
        """
        from lifecycle.observe._console.diagrams import diagram  # most programs are never drawn

        return diagram(self.lifetime, of)

    def dump(self) -> str:
        """Where each thread and each task stands, with the secrets in the lines of code masked."""
        return masked(stacks(asyncio.get_running_loop()))

    def listening(self) -> AbstractContextManager[Listener]:
        """What it prints and logs from now on: ``with console.listening() as texts: async for text in texts``."""
        return self._output.listening()

    # -- what can be told ------------------------------------------------------------------------------------------

    async def command(self, line: str) -> Outcome:
        """Carry out a command as if it had been typed at the prompt; who is cancelled here cancels nothing.

        Whoever is `listening` gets what it prints before its outcome is there.

        Raises:
            ValueError: for a blank line.
            TooMany: when too many orders are under way.
        """
        outcome = await self._ordering.command(line)
        await self._output.heard()
        return outcome

    async def emit(self, topic: str, data: object = None) -> Outcome:
        """Send an event, and wait for its end.

        Raises:
            TooMany: when too many orders are under way.
        """
        return await self._ordering.emit(topic, data)

    @property
    def _ordering(self) -> Orders:
        if self._orders is None:
            raise RuntimeError(_CLOSED)
        return self._orders

    # -- streams ---------------------------------------------------------------------------------------------------

    @contextmanager
    def streaming(self) -> Generator[None]:
        """Within the block the running task reads a stream; it is cancelled when the console closes.

        Raises:
            TooMany: when there are too many readers.
        """
        task = asyncio.current_task()
        assert task is not None, "who reads is a task"
        most = share_of_descriptors(8, least=16, most=_READERS)
        if len(self._readers) >= most:
            raise TooMany(f"{most} readers are there already; close some")
        self._readers.add(task)
        try:
            yield
        finally:
            self._readers.discard(task)

    async def end_streams(self) -> None:
        """Let every stream end now: a shutdown waits for none."""
        for task in tuple(self._readers):
            task.cancel("the program ends")
        # They are awaited by those who serve them.
        await asyncio.sleep(0)
