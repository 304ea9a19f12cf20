"""Sweeps beside a loop: those that are wanted at the same time are one, in a thread of its own.

A look at all processes takes milliseconds where there are many, and workers often end together.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from lifecycle.workers.containment.asides import aside
from lifecycle.workers.containment.sweeps import Holders, sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lifecycle.workers.containment.sweeps import Known

__all__ = ["Wanted", "swept"]

_log = logging.getLogger("lifecycle.workers")


class Wanted:
    """Whom a sweep is to find: the holders of some cookies, and some who are known already."""

    def __init__(self) -> None:
        self._cookies: set[bytes] = set()
        self._known: set[Known] = set()
        self._holders = Holders(self._cookies.__contains__)

    def add(self, cookie: str, known: Iterable[Known]) -> None:
        """Find these as well."""
        self._cookies.add(cookie.encode())
        self._known.update(known)

    def __call__(self) -> Iterator[Known]:
        """Who there is now; the known ones once."""
        yield from self._known
        self._known.clear()
        yield from self._holders()


async def swept(cookie: str, known: Iterable[Known]) -> None:
    """Return when nobody holds ``cookie`` any more, and ``known`` are gone. If cancelled, it blocks until then."""
    sweeper = _sweepers.setdefault(asyncio.get_running_loop(), _Sweeper())
    known = list(known)
    try:
        await asyncio.wait({sweeper.ask(cookie, known)})
    except asyncio.CancelledError:
        # The loop is being closed; nobody will wait for a thread any more.
        wanted = Wanted()
        wanted.add(cookie, known)
        sweep(wanted)
        raise


class _Sweeper:
    """One sweep at a time; what is wanted meanwhile is the next."""

    def __init__(self) -> None:
        self._waiting: tuple[Wanted, asyncio.Future[None]] | None = None
        self._busy = False

    def ask(self, cookie: str, known: Iterable[Known]) -> asyncio.Future[None]:
        if self._waiting is None:
            loop = asyncio.get_running_loop()
            self._waiting = Wanted(), loop.create_future()
            if not self._busy:
                self._busy = True
                # Not yet: who asks in the same turn is taken along.
                loop.call_soon(self._begin, loop)
        wanted, done = self._waiting
        wanted.add(cookie, known)
        return done

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._waiting is not None, "it is begun when somebody waits"
        (wanted, done), self._waiting = self._waiting, None
        run = aside(partial(sweep, wanted), "sweep for processes left")
        run.add_done_callback(partial(self._ended, loop, done))

    def _ended(self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[None], run: asyncio.Future[None]) -> None:
        if error := run.exception():
            _log.error("looking for processes that were left failed; some may live on", exc_info=error)
        # Who waits is not cancelled, but it may be that all of its loop is.
        if not done.done():
            done.set_result(None)
        self._busy = self._waiting is not None
        if self._busy:
            self._begin(loop)


_sweepers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Sweeper] = WeakKeyDictionary()
