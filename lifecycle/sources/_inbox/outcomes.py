"""What became of the letters that handlers were given, and how that comes into the file."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from lifecycle.errors import Dropped, NotHandled
from lifecycle.sources._inbox.keeper import told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.control.deliveries import Delivery
    from lifecycle.sources._inbox.keeper import Keeper, Letter
    from lifecycle.sources.inbox import Inbox

    #: Something that is done with the file.
    Step: TypeAlias = Callable[[Keeper], Awaitable[None]]

__all__ = ["Outcomes"]

_log = logging.getLogger("lifecycle.sources")

#: Seconds in which what was handled is gathered, to be put down at once: nobody waits for it.
_GATHER = 0.02


class Outcomes:
    """Follows deliveries to their end, and puts down how that was.

    ``write`` carries a step out as soon as the file can be written; ``retried`` is told in how many seconds a letter
    that failed is due again; ``is_ending`` says whether what a route drops from now on stays for the next start.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        write: Callable[[Step], Awaitable[None]],
        retried: Callable[[float], None],
        is_ending: Callable[[], bool],
    ) -> None:
        self._inbox = inbox
        self._write = write
        self._retried = retried
        self._is_ending = is_ending
        # Each task waits for the end of a delivery and puts it down.
        self._followed: dict[asyncio.Task[None], Delivery] = {}
        # The numbers of those that were handled, and the task that puts them down while there are any.
        self._done: list[int] = []
        self._writing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many letters are under way."""
        return len(self._followed)

    def follow(self, letter: Letter, delivery: Delivery) -> None:
        """Put down how ``delivery`` ends, once it has."""
        task = asyncio.get_running_loop().create_task(self._follow(letter, delivery), name=f"inbox letter {letter.id}")
        self._followed[task] = delivery
        task.add_done_callback(self._followed.pop)

    async def wait_written(self) -> None:
        """Wait until what has ended is on disk; what has not is not followed any more."""
        for task, delivery in self._followed.items():
            if not delivery.done:
                task.cancel()
        while tasks := self._tasks():
            await asyncio.wait(tasks)

    def close(self) -> None:
        """Put nothing down any more."""
        for task in self._tasks():
            task.cancel()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._followed, *([self._writing] if self._writing else ())]

    async def _follow(self, letter: Letter, delivery: Delivery) -> None:
        with suppress(Exception):
            await delivery
        error = delivery.error
        if isinstance(error, Dropped) and self._is_ending():
            # Not by its route's own rules: it stays for the next start.
            return
        if error is None or isinstance(error, Dropped):
            self._note_done(letter.id)
        elif isinstance(error, NotHandled) or letter.failures + 1 >= self._inbox.max_attempts:
            _log.error("%s of the inbox is a dead letter now: %s", letter.event.topic, told(error))
            await self._write(lambda keeper: keeper.bury(letter.id, told(error)))
        else:
            delay = self._inbox.backoff.delay(letter.failures)
            await self._write(lambda keeper: keeper.retry(letter.id, delay, told(error)))
            self._retried(delay)

    def _note_done(self, number: int) -> None:
        self._done.append(number)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_done(), name="inbox letters done")

    async def _write_done(self) -> None:
        try:
            while self._done:
                await asyncio.sleep(_GATHER)
                done, self._done = self._done, []
                await self._write(lambda keeper, done=done: keeper.done(done))  # type: ignore[misc]  # a bound default
        finally:
            self._writing = None
