"""The page of a `Dashboard`: its files, its event stream, and the measurements that it shows.

Each page uses a single stream, because a browser opens at most six connections to a server across all its tabs. Each
message contains the latest state of everything that has changed since the previous message, so the cost depends on how
much the page shows, not on the number of events.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter, OrderedDict, deque
from contextlib import AsyncExitStack, aclosing, suppress
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from aiohttp import web

from lifecycle import hooks
from lifecycle._async import shield, start_task
from lifecycle._text import component_name
from lifecycle.control.router import Router
from lifecycle.errors import Refused
from lifecycle.observe.http.api import SharedMessages, api_routes
from lifecycle.observe.http.guard import HEADERS, Guard
from lifecycle.observe.http.server import errors_as_json, event, problem, stream
from lifecycle.observe.watching import router_ids

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
    from importlib.resources.abc import Traversable
    from types import TracebackType
    from typing import Self

    from aiohttp.typedefs import Handler, Middleware

    from lifecycle.observe.console import Console
    from lifecycle.observe.eventlog.entries import Entry

__all__ = ["Figures", "Latencies", "Latency", "Refusals", "live", "memory_of", "merged", "page_app", "page_files"]

#: The content types of the files that we serve. Other files, such as licenses, are not served.
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}

#: How many seconds to wait between messages with events, and how many events a message may contain. If there are more,
#: the newest are sent.
_EVENTS_INTERVAL, _EVENTS_SHOWN = 0.2, 200
#: The maximum number of nodes to compare per second, which limits the CPU usage, and the maximum number of seconds
#: between two messages.
_NODES_PER_SECOND, _LONGEST_INTERVAL = 2000.0, 2.0
#: How many seconds to wait between measurements.
_FIGURES_INTERVAL = 2.0
#: The maximum number of stored calls per route, and the maximum number of routes. Beyond that, the least recently
#: called route is removed.
_CALLS, _ROUTES = 200, 2000

_PROC = Path("/proc")


# -- the page ------------------------------------------------------------------------------------------------------


def page_app(figures: Figures, console: Console, host: str, token: str) -> web.Application:
    """Return an application that serves the page and the API on ``host``."""
    pages = page_files()
    guard = _guarding(Guard(host, token, free=pages.keys()))
    app = web.Application(middlewares=[guard, errors_as_json])
    app.on_response_prepare.append(_add_headers)
    shared = SharedMessages()

    async def follow(request: web.Request) -> web.StreamResponse:
        return await stream(console, request, live(console, figures, shared))

    app.add_routes([web.get(path, _serving(*page)) for path, page in pages.items()])
    app.add_routes([*api_routes(console), web.get("/api/live", follow, allow_head=False)])
    return app


def page_files() -> dict[str, tuple[bytes, str]]:
    """Return the content and content type of each of the page's files, by path."""
    found = dict(_files_in(files("lifecycle.observe") / "page", "/page"))
    return {"/": found.pop("/page/index.html"), **found}


def _files_in(folder: Traversable, path: str) -> Iterator[tuple[str, tuple[bytes, str]]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _files_in(each, f"{path}/{each.name}")
        elif (kind := _TYPES.get(each.name.rpartition(".")[2])) is not None:
            yield f"{path}/{each.name}", (each.read_bytes(), kind)


def _serving(body: bytes, kind: str) -> Handler:
    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8")

    return serve


def _guarding(guard: Guard) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        try:
            path = resource.canonical if resource else request.path
            guard.check(request.method, path, request.headers, target=request.raw_path)
        except Refused as refusal:
            challenge = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else None  # noqa: PLR2004  # unauthorized
            answer = problem(refusal.status, refusal.reason, challenge)
            answer.force_close()
            return answer
        return await handler(request)

    return guarded


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


# -- the stream ----------------------------------------------------------------------------------------------------


async def live(console: Console, figures: Figures, shared: SharedMessages) -> AsyncGenerator[bytes]:
    """Yield ``change``, ``entries`` and ``figures`` messages until closed. Each is encoded once for all pages."""
    pids: dict[str, int] = {}
    sources = _changes(console, shared, pids), _entries(console), _figures(figures, pids)
    async with aclosing(merged(*sources)) as messages:
        async for message in messages:
            yield message


async def _changes(console: Console, shared: SharedMessages, pids: dict[str, int]) -> AsyncGenerator[bytes]:
    known: set[str] = set()
    encode = shared.full
    async with console.watch() as changes:
        async for change in changes:
            _update(change.nodes, known, pids)
            yield encode(change)
            encode = shared.change
            await asyncio.sleep(min(_LONGEST_INTERVAL, len(known) / _NODES_PER_SECOND))


def _update(nodes: dict[str, Any], known: set[str], pids: dict[str, int]) -> None:
    for name, node in nodes.items():
        (known.discard if node is None else known.add)(name)
        pid = None if node is None else node.get("pid")
        if isinstance(pid, int):
            pids[name] = pid
        else:
            pids.pop(name, None)


async def _entries(console: Console) -> AsyncGenerator[bytes]:
    dropped = 0
    # Start following before the first message is sent, so that no event is missed in between.
    async with console.events.follow() as following:
        known = console.events.entries(limit=_EVENTS_SHOWN)
        # The page shows events in the order in which they arrive, so the oldest must come first.
        known.sort(key=lambda entry: entry.id)
        yield _message(known)
        async for first in following:
            await asyncio.sleep(_EVENTS_INTERVAL)
            entries = [first, *following.ready()]
            skipped = max(0, len(entries) - _EVENTS_SHOWN)
            lost = following.dropped - dropped + skipped
            dropped = following.dropped
            yield _message(entries[skipped:], lost)


def _message(entries: Iterable[Entry], dropped: int = 0) -> bytes:
    texts = ",".join(map(_encoded, entries))
    return f'event: entries\ndata: {{"entries":[{texts}],"dropped":{dropped}}}\n\n'.encode()


@lru_cache(1000)
def _encoded(entry: Entry) -> str:
    """Return ``entry`` as JSON. The result is cached for other pages that show the same entry."""
    return json.dumps(entry.to_dict(), separators=(",", ":"))


async def _figures(figures: Figures, pids: dict[str, int]) -> AsyncGenerator[bytes]:
    # Wait briefly at first, because the page cannot use the figures until it has received the state.
    pause = _EVENTS_INTERVAL
    while True:
        await asyncio.sleep(pause)
        yield figures.message(pids.values())
        pause = _FIGURES_INTERVAL


async def merged(*sources: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield messages from all sources as they arrive, until one of the sources is exhausted."""
    async with AsyncExitStack() as resources:
        upcoming: dict[asyncio.Task[bytes], AsyncGenerator[bytes]] = {}
        for source in sources:
            await resources.enter_async_context(aclosing(source))
            upcoming[_next(source)] = source
        resources.push_async_callback(_cancel, upcoming)
        while True:
            done, _ = await asyncio.wait(upcoming, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                source = upcoming.pop(task)
                try:
                    message = task.result()
                except StopAsyncIteration:
                    return
                upcoming[_next(source)] = source
                yield message


def _next(source: AsyncGenerator[bytes]) -> asyncio.Task[bytes]:
    async def wait() -> bytes:
        return await anext(source)

    return start_task(wait(), name="a message for a page")


async def _cancel(tasks: Iterable[asyncio.Task[bytes]]) -> None:
    """Cancel the tasks and wait for all of them, even if we are cancelled, so that the generators can be closed."""
    for task in tasks:
        task.cancel()
    await shield(asyncio.gather(*tasks, return_exceptions=True))


# -- measurements --------------------------------------------------------------------------------------------------


class Latency(TypedDict):
    """The median and 95th percentile duration of a route's latest calls, in seconds. ``count`` includes all calls."""

    p50: float
    p95: float
    count: int


class Latencies:
    """Records handler durations for all routers in the process, using `hooks.handler_finished`. Use it with ``with``.

    A route is identified by its router and pattern, because two routers may have routes with the same pattern.
    """

    def __init__(self) -> None:
        self._durations: OrderedDict[tuple[object, str], deque[float]] = OrderedDict()
        self._counts: dict[tuple[object, str], int] = {}

    def __enter__(self) -> Self:
        """Start recording."""
        hooks.handler_finished.connect(self._on_finished)
        hooks.router_stopped.connect(self._on_stopped)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop recording."""
        hooks.handler_finished.disconnect(self._on_finished)
        hooks.router_stopped.disconnect(self._on_stopped)

    def of(self, pattern: str, router: object = None) -> Latency | None:
        """Return the latency for ``pattern`` in ``router``, or None until the first call has finished."""
        last = self._durations.get((router, pattern))
        if not last:
            return None
        ordered = sorted(last)
        count = self._counts[router, pattern]
        return Latency(p50=_quantile(ordered, 0.5), p95=_quantile(ordered, 0.95), count=count)

    def all(self, router: object = None) -> dict[str, Latency]:
        """Return the latencies for all patterns in ``router`` that have been called."""
        patterns = [pattern for owner, pattern in self._durations if owner is router]
        return {pattern: found for pattern in patterns if (found := self.of(pattern, router)) is not None}

    def _on_finished(self, router: object, *, pattern: str, duration: float, **_: Any) -> None:
        route = router, pattern
        durations = self._durations.get(route)
        if durations is None:
            durations = self._durations[route] = deque(maxlen=_CALLS)
            self._counts[route] = 0
            if len(self._durations) > _ROUTES:
                del self._counts[self._durations.popitem(last=False)[0]]
        durations.append(duration)
        self._durations.move_to_end(route)
        self._counts[route] += 1

    def _on_stopped(self, _sender: object, *, router: object) -> None:
        for route in [route for route in self._durations if route[0] is router]:
            del self._durations[route], self._counts[route]


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Refusals:
    """Counts the requests that webhook sources refuse, by source and status. Use it with ``with``."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[int]] = {}

    def __enter__(self) -> Self:
        """Start counting."""
        hooks.webhook_refused.connect(self._on_refused)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop counting."""
        hooks.webhook_refused.disconnect(self._on_refused)

    def all(self) -> dict[str, dict[int, int]]:
        """Return the number of refused requests by the name of the source and the status of the response."""
        return {name: dict(counts) for name, counts in self._counts.items()}

    def _on_refused(self, source: Any, *, status: int, **_: Any) -> None:
        self._counts.setdefault(source.name, Counter())[status] += 1


class Figures:
    """Route latencies, refused requests, memory usage, and this process's CPU usage, encoded once for all pages."""

    def __init__(self, latencies: Latencies, refusals: Refusals, console: Console) -> None:
        self._latencies = latencies
        self._refusals = refusals
        self._console = console
        self._message = b""
        self._at, self._cpu = time.monotonic(), time.process_time()
        self._valid_until = 0.0

    def message(self, pids: Iterable[int]) -> bytes:
        """Return figures that are at most two seconds old. They include the memory usage of the processes ``pids``."""
        now = time.monotonic()
        if now >= self._valid_until:
            figures = {
                "latency": self._latency(),
                "refused": self._refusals.all(),
                "memory": memory_of(pids),
                "cpu": self._cpu_share(now),
            }
            self._message = event(figures, "figures")
            self._valid_until = now + _FIGURES_INTERVAL
        return self._message

    def _latency(self) -> dict[str, Latency]:
        """Return the latencies by pattern or, if several routers have the same pattern, by route id."""
        routers = [each for each in self._console.lifetime.components() if isinstance(each, Router)]
        found = [self._latencies.all(router) for router in routers]
        owners = Counter(pattern for each in found for pattern in each)
        return {
            pattern if owners[pattern] == 1 else f"{name}/route:{pattern}": latency
            for name, each in zip(router_ids(map(component_name, routers)), found, strict=True)
            for pattern, latency in each.items()
        }

    def _cpu_share(self, now: float) -> float:
        """Return the CPU usage since the last call, where 1 means one fully used core."""
        cpu = time.process_time()
        share = (cpu - self._cpu) / max(1e-3, now - self._at)
        self._at, self._cpu = now, cpu
        return share


def memory_of(pids: Iterable[int]) -> dict[int, int]:
    """Return each process's resident memory in bytes, by process id. Processes that cannot be read are left out.

    The data is read from /proc. On systems without /proc, psutil is used if it is installed.
    """
    read = _memory_reader()
    return {pid: size for pid in pids if (size := read(pid))}


@cache
def _memory_reader() -> Callable[[int], int]:
    if (_PROC / "self/statm").exists():
        return _memory_from_proc
    try:
        import psutil
    except ImportError:
        return lambda _: 0

    def from_psutil(pid: int) -> int:
        with suppress(psutil.Error):
            return int(psutil.Process(pid).memory_info().rss)
        return 0

    return from_psutil


def _memory_from_proc(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
