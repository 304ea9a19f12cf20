"""What an open page is told: one stream of all that it shows, at a pace that costs the program little.

A browser keeps six connections to a server at most, over all of its tabs: so there is one stream a page. What happens
between two messages is told once, as it is then: a program in which much happens pays for what is shown, not for what
happens.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, aclosing
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lifecycle.observe._dashboard.figures import FRESH

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from lifecycle.observe._dashboard.figures import Figures
    from lifecycle.observe._events.entries import Entry
    from lifecycle.observe._http.api import SharedMessages
    from lifecycle.observe.console import Console

__all__ = ["live"]

#: Seconds between two looks at events.
_EVENTS = 0.2
#: Events that are shown of one such time; the newest.
_SHOWN = 200
#: Nodes a second that are looked at, of all that there are: so a look costs a share of a core that does not grow with
#: them; and the seconds between two looks that nobody is made to wait longer than.
_NODES, _LONGEST = 2000.0, 2.0


async def live(console: Console, figures: Figures, shared: SharedMessages) -> AsyncGenerator[bytes]:
    """Messages ``change``, ``entries`` and ``figures``, until it is closed; each is written once for all pages."""
    pids: dict[str, int] = {}
    sources = _changes(console, shared, pids), _entries(console), _figures(figures, pids)
    async with aclosing(_merged(*sources)) as messages:
        async for message in messages:
            yield message


async def _changes(console: Console, shared: SharedMessages, pids: dict[str, int]) -> AsyncGenerator[bytes]:
    known: set[str] = set()
    write = shared.full
    async with console.watch() as changes:
        async for change in changes:
            _note(change.nodes, known, pids)
            yield write(change)
            write = shared.change
            await asyncio.sleep(min(_LONGEST, len(known) / _NODES))


def _note(nodes: dict[str, Any], known: set[str], pids: dict[str, int]) -> None:
    for name, node in nodes.items():
        (known.discard if node is None else known.add)(name)
        pid = None if node is None else node.get("pid")
        if isinstance(pid, int):
            pids[name] = pid
        else:
            pids.pop(name, None)


async def _entries(console: Console) -> AsyncGenerator[bytes]:
    dropped = 0
    # Followed from before the first message on: what happens while that is sent comes with the next.
    async with console.events.follow() as following:
        known = console.events.entries(limit=_SHOWN)
        # The oldest first: the page keeps them in the order in which they came.
        known.sort(key=lambda entry: entry.id)
        yield _message(known)
        async for first in following:
            await asyncio.sleep(_EVENTS)
            entries = [first, *following.ready()]
            skipped = max(0, len(entries) - _SHOWN)
            lost = following.dropped - dropped + skipped
            dropped = following.dropped
            yield _message(entries[skipped:], lost)


def _message(entries: Iterable[Entry], dropped: int = 0) -> bytes:
    texts = ",".join(map(_written, entries))
    return f'event: entries\ndata: {{"entries":[{texts}],"dropped":{dropped}}}\n\n'.encode()


@lru_cache(1000)
def _written(entry: Entry) -> str:
    """What is written of ``entry``, kept for the next page that shows it."""
    return json.dumps(entry.to_dict(), separators=(",", ":"))


async def _figures(figures: Figures, pids: dict[str, int]) -> AsyncGenerator[bytes]:
    # The first is of no use before the state is there.
    pause = _EVENTS
    while True:
        await asyncio.sleep(pause)
        yield figures.message(pids.values())
        pause = FRESH


async def _merged(*sources: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """What comes from any of them, as it comes, until one ends."""
    async with AsyncExitStack() as held:
        upcoming: dict[asyncio.Task[bytes], AsyncGenerator[bytes]] = {}
        for source in sources:
            await held.enter_async_context(aclosing(source))
            upcoming[_begun(source)] = source
        held.push_async_callback(_cancel, upcoming)
        while True:
            done, _ = await asyncio.wait(upcoming, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                source = upcoming.pop(task)
                try:
                    message = task.result()
                except StopAsyncIteration:
                    return
                upcoming[_begun(source)] = source
                yield message


def _begun(source: AsyncGenerator[bytes]) -> asyncio.Task[bytes]:
    return asyncio.create_task(_next(source), name="a message for a page")


async def _next(source: AsyncGenerator[bytes]) -> bytes:
    return await anext(source)


async def _cancel(tasks: Iterable[asyncio.Task[bytes]]) -> None:
    """End them: only then may what they ask be closed, however often we are told to hurry."""
    left = set(tasks)
    for task in left:
        task.cancel()
    hurry: asyncio.CancelledError | None = None
    while left:
        try:
            _, left = await asyncio.wait(left)
        except asyncio.CancelledError as error:
            hurry = error
    if hurry is not None:
        raise hurry
