"""From the file of an inbox to the handlers; what became of a letter is the matter of `outcomes`.

A letter that was accepted here is delivered from memory, after those that were in the file before. The file is looked
at when the process takes it over, when something that failed is due again, and now and then for what others did to it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle.errors import JournalError
from lifecycle.sources._inbox.figures import Figures, InboxState
from lifecycle.sources._inbox.keeper import Keeper, Letter
from lifecycle.sources._inbox.outcomes import Outcomes

if TYPE_CHECKING:
    from lifecycle.control.types import Emit
    from lifecycle.events import WebhookEvent
    from lifecycle.sources._inbox.outcomes import Step
    from lifecycle.sources.inbox import Inbox

__all__ = ["Deliverer"]

_log = logging.getLogger("lifecycle.sources")

#: Seconds between two looks at the file for what another process did to it: nothing tells of that.
_LOOK_EVERY = 1.0

#: Seconds between two tries to get the lock that another process has: waiting for it would hold a thread for ever.
_LOCK_EVERY = 0.1

#: Tries until it is said who has it.
_PATIENCE = 3

#: Seconds until the next try where the file could not be written.
_PAUSE = 1.0

#: Seconds that what became of letters has to get to disk at the end.
_LAST_WRITES = 4.0


class Deliverer:
    """Carries the letters of one inbox, from `open` to `settle`; a source may run it several times in between."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        # A new one each time that the file is opened: a source may be added again while it is still being closed.
        self._keeper = Keeper(inbox)
        # How often it was opened and not yet left.
        self._users = 0
        # Letters of ours that the router has not yet taken, in the order of their numbers: those that were found in the
        # file, which go first, and those that were accepted since. One leaves when the router has it, so that whatever
        # ends us loses none.
        self._found: deque[Letter] = deque()
        self._ready: deque[Letter] = deque()
        # Of those that the router has.
        self._outcomes = Outcomes(inbox, write=self._write, retried=self._look_in, is_ending=lambda: self._ending)
        # Whether we are the one who delivers; until then what is accepted goes into the file only.
        self._is_ours = False
        self._ending = False
        # Whether letters stay where they are, accepted ones too, until this is False again.
        self._suspended = False
        # When the file is to be looked at, by the clock of the loop.
        self._look_at = 0.0
        self._stirred = asyncio.Event()
        # Whether the file could not be written the last time: said once.
        self._in_trouble = False
        self._figures = Figures(self, lambda: self._keeper.counts())  # noqa: PLW0108  # there is a new keeper now and then

    @property
    def waiting(self) -> int:
        """How many letters wait for room in a lane."""
        return len(self._ready)

    def state(self) -> InboxState:
        """What can be seen of it now; what is in the file was counted a second ago or less."""
        depths = self._figures.depths(len(self._outcomes))
        return InboxState(self._keeper.path, depths, self._is_ours, self._suspended)

    async def open(self) -> None:
        """Accept from now on.

        Raises:
            JournalError: when the file cannot be used; the message says why.
        """
        if not self._users:
            self._stirred = asyncio.Event()
        await self._keeper.open()
        self._users += 1
        self._figures.open()

    async def accept(self, event: WebhookEvent, key: str) -> None:
        """Return when ``event`` is on disk, or was before.

        Raises:
            JournalError: when it could not be written; then it is not there.
        """
        ours = self._is_ours
        try:
            number = await self._keeper.accept(event, key, ours=ours)
        except JournalError as error:
            self._say(error)
            raise
        self._in_trouble = False
        self._figures.renew()
        if number is not None and ours:
            self._ready.append(Letter(number, event))
            self._stirred.set()

    async def run(self, emit: Emit) -> None:
        """Deliver until `end`; what the router holds then goes on."""
        self._ending = False
        try:
            await self._become_the_one()
            await self._deliver(emit)
        finally:
            # A router that is cancelled cancels us before its handlers: what they drop from now on is no loss.
            self._ending = True

    def suspend(self, *, suspended: bool) -> None:
        """Give the router nothing from now on, or go on."""
        self._suspended = suspended
        self._stirred.set()

    def end(self) -> None:
        """Let `run` return, once the router has taken what it is being given."""
        self._ending = True
        self._stirred.set()

    async def leave(self) -> None:
        """Nothing is accepted any more; where nothing is under way either, this is the end of all."""
        self._users -= 1
        if not self._users and not self._outcomes:
            await self.settle()

    async def settle(self) -> None:
        """Deliveries have ended: put down how, and close. What has not ended is delivered again at the next start."""
        try:
            with suppress(JournalError, TimeoutError):
                async with asyncio.timeout(_LAST_WRITES):
                    await self._outcomes.wait_written()
                    await self._keeper.give_back([letter.id for letter in (*self._found, *self._ready)])
        finally:
            await self._close()

    async def _close(self) -> None:
        self._outcomes.close()
        self._found.clear()
        self._ready.clear()
        self._is_ours = False
        keeper, self._keeper = self._keeper, Keeper(self._inbox)
        try:
            await self._figures.close()
        finally:
            await keeper.close()

    # -- to the handlers -------------------------------------------------------------------------------------------

    async def _deliver(self, emit: Emit) -> None:
        clock = asyncio.get_running_loop().time
        self._look_at = clock()
        while not self._ending:
            if self._suspended:
                await self._rest(math.inf)
            elif self._found:
                await self._send(emit, self._found)
            elif clock() >= self._look_at:
                await self._look()
            elif self._ready:
                await self._send(emit, self._ready)
            else:
                await self._rest()

    async def _become_the_one(self) -> None:
        """Wait until nobody else delivers, and take over what they left."""
        if self._is_ours:
            return
        tries = 0
        while not self._ending and not self._keeper.take_lock():
            tries += 1
            # The first time it may be a command that only looks.
            if tries == _PATIENCE:
                _log.warning("the inbox %s belongs to another receiver until that ends", self._keeper.path)
            await self._rest(_LOCK_EVERY)
        if not self._ending:
            await self._keeper.take_over()
            # What was handed in before this line is not ours yet, but is found by the look that follows.
            self._is_ours = True

    async def _look(self) -> None:
        """Find what is due in the file."""
        clock = asyncio.get_running_loop().time
        if not self._keeper.has_lock():
            self._is_ours = False
            self._found.clear()
            self._ready.clear()
            await self._become_the_one()
        try:
            letters, wait = await self._keeper.due()
        except JournalError as error:
            self._say(error)
            self._look_at = clock() + _PAUSE
            return
        self._look_at = clock() + min(wait, _LOOK_EVERY)
        self._figures.renew()
        self._found.extend(letters)

    async def _send(self, emit: Emit, letters: deque[Letter]) -> None:
        """Return when the first of ``letters`` is in its lane."""
        letter = letters[0]
        delivery = await emit(letter.event)
        letters.popleft()
        delivery.again(letter.attempt)
        self._outcomes.follow(letter, delivery)

    async def _rest(self, seconds: float | None = None) -> None:
        """Wait until something stirs, or ``seconds`` have passed, or it is time to look."""
        self._stirred.clear()
        until = self._look_at if seconds is None else asyncio.get_running_loop().time() + seconds
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until if until < math.inf else None):
                await self._stirred.wait()

    def _look_in(self, seconds: float) -> None:
        """There will be something in the file by then."""
        self._look_at = min(self._look_at, asyncio.get_running_loop().time() + seconds)
        self._stirred.set()

    # -- the file --------------------------------------------------------------------------------------------------

    async def _write(self, step: Step) -> None:
        """Do ``step``, as soon as the file can be written."""
        while True:
            try:
                await step(self._keeper)
            except JournalError as error:
                self._say(error)
                await asyncio.sleep(_PAUSE)
            else:
                self._figures.renew()
                return

    def _say(self, trouble: JournalError) -> None:
        if not self._in_trouble:
            self._in_trouble = True
            _log.error("%s", trouble)
