"""The HTTP API for a running program, used by the control socket and the dashboard.

Each path has a method that calls the `Console`, which decides what a command means. docs/reference/control-api.md
describes the paths.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from aiohttp import web

from lifecycle._net import peer
from lifecycle.errors import FlowError, InvalidPattern, JournalError, Refused
from lifecycle.observe.console import TooMany
from lifecycle.observe.http.server import (
    errors_as_json,
    event,
    json_object,
    json_response,
    problem,
    stream,
    text_response,
)
from lifecycle.observe.output import Output
from lifecycle.observe.watching import nodes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

    from aiohttp.typedefs import Handler

    from lifecycle.observe.console import Console, Outcome
    from lifecycle.observe.python_console import PythonConsole
    from lifecycle.observe.watching import Update

__all__ = ["SharedMessages", "api_routes", "change_event", "control_app"]

#: How many seconds to wait between messages in a busy stream. Sending many entries together is much cheaper than
#: sending them separately.
_PAUSE = 0.05

#: How many events a response contains if the request does not set a limit.
_DEFAULT_LIMIT = 100


def api_routes(console: Console) -> list[web.RouteDef]:
    """Return the API's routes, all under ``/api``. They require the middleware `errors_as_json`."""
    api = _Api(console)
    return [
        web.get("/api/program", api.program),
        web.get("/api/state", api.state),
        web.get("/api/nodes", api.nodes),
        web.get("/api/state/stream", api.state_stream, allow_head=False),
        web.get("/api/events", api.events),
        web.get("/api/events/stream", api.events_stream, allow_head=False),
        web.get("/api/trace/{id}", api.trace),
        web.get("/api/explain", api.explain),
        web.get("/api/routes", api.routes),
        web.get("/api/commands", api.commands),
        web.get("/api/complete", api.complete),
        web.get("/api/diagram", api.diagram),
        web.get("/api/tasks", api.tasks),
        web.get("/api/stacks", api.stacks),
        web.get("/api/flows", api.flows),
        web.get("/api/flow", api.flow),
        web.get("/api/logs", api.logs),
        web.get("/api/logs/workers", api.logs_workers),
        web.get("/api/logs/stream", api.logs_stream, allow_head=False),
        web.get("/api/attach", api.attach, allow_head=False),
        web.post("/api/command", api.command),
        web.post("/api/emit", api.emit),
    ]


class _Api:
    """The request handlers, one method per path."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._messages = SharedMessages()

    # -- state -----------------------------------------------------------------------------------------------------

    async def program(self, _: web.Request) -> web.Response:
        return json_response(self._console.snapshot().to_dict()["program"])

    async def state(self, _: web.Request) -> web.Response:
        return json_response(self._console.snapshot().to_dict())

    async def nodes(self, _: web.Request) -> web.Response:
        found = self._console.snapshot()
        return json_response({"time": found.time, "nodes": nodes(found)})

    async def state_stream(self, request: web.Request) -> web.StreamResponse:
        return await stream(self._console, request, self._changes())

    async def _changes(self) -> AsyncGenerator[bytes]:
        async with self._console.watch() as changes:
            write = self._messages.full
            async for change in changes:
                yield write(change)
                write = self._messages.change

    # -- events ----------------------------------------------------------------------------------------------------

    async def events(self, request: web.Request) -> web.Response:
        limit = _count(request.query.get("limit", str(_DEFAULT_LIMIT)))
        try:
            found = await self._console.events.find(_pattern(request), limit=limit)
        except InvalidPattern as error:
            raise Refused(400, str(error)) from None
        return json_response([entry.to_dict() for entry in found])

    async def events_stream(self, request: web.Request) -> web.StreamResponse:
        try:
            following = self._console.events.follow(_pattern(request))
        except InvalidPattern as error:
            raise Refused(400, str(error)) from None
        return await stream(self._console, request, _entries(following))

    async def trace(self, request: web.Request) -> web.Response:
        try:
            found = self._console.events.trace(_count(request.match_info["id"]))
        except LookupError as error:
            raise Refused(404, str(error)) from None
        return json_response(found.to_dict())

    async def explain(self, request: web.Request) -> web.Response:
        topic = request.query.get("topic", "")
        if not topic:
            raise Refused(400, "the query must contain a topic: /api/explain?topic=file/modified")
        return json_response(self._console.events.explain(topic).to_dict())

    async def tasks(self, _: web.Request) -> web.Response:
        return json_response(self._console.tasks())

    async def routes(self, _: web.Request) -> web.Response:
        return json_response(self._console.routes())

    async def flows(self, request: web.Request) -> web.Response:
        limit = _count(request.query.get("limit", str(_DEFAULT_LIMIT)))
        try:
            return json_response(await self._console.flows(request.query.get("state", "WAITING"), limit))
        except ValueError as error:
            raise Refused(400, str(error)) from None
        except JournalError as error:
            raise Refused(503, str(error)) from None

    async def flow(self, request: web.Request) -> web.Response:
        try:
            return json_response(await self._console.flow(request.query.get("id", "")))
        except FlowError as error:
            raise Refused(404, str(error)) from None
        except JournalError as error:
            raise Refused(503, str(error)) from None

    # -- commands --------------------------------------------------------------------------------------------------

    async def commands(self, _: web.Request) -> web.Response:
        return json_response(self._console.commands())

    async def complete(self, request: web.Request) -> web.Response:
        return json_response(self._console.complete(request.query.get("line", "")))

    async def command(self, request: web.Request) -> web.Response:
        given = await json_object(request, line=str)
        try:
            return await _outcome(self._console.command(given["line"]))
        except ValueError as error:
            raise Refused(400, str(error)) from None

    async def emit(self, request: web.Request) -> web.Response:
        given = await json_object(request, topic=str)
        return await _outcome(self._console.emit(given["topic"], given.get("data")))

    async def attach(self, request: web.Request) -> web.StreamResponse:
        return await stream(self._console, request, self._output())

    async def _output(self) -> AsyncGenerator[bytes]:
        dropped = 0
        with self._console.listening() as texts:
            async for text in texts:
                if texts.dropped > dropped:
                    yield event({"dropped": texts.dropped - dropped})
                    dropped = texts.dropped
                yield event({"text": text})
                await asyncio.sleep(_PAUSE)

    async def logs(self, request: web.Request) -> web.Response:
        try:
            return json_response(self._console.lines(*_lines(request)))
        except LookupError as error:
            raise Refused(404, str(error)) from None

    async def logs_workers(self, request: web.Request) -> web.Response:
        try:
            return json_response(self._console.output_paths(*request.query.getall("worker", [])))
        except LookupError as error:
            raise Refused(404, str(error)) from None

    async def logs_stream(self, request: web.Request) -> web.StreamResponse:
        try:
            following = self._console.follow_lines(*_lines(request))
        except LookupError as error:
            raise Refused(404, str(error)) from None
        return await stream(self._console, request, _new_lines(following))

    # -- text ------------------------------------------------------------------------------------------------------

    async def diagram(self, request: web.Request) -> web.Response:
        try:
            return text_response(self._console.diagram(request.query.get("of", "system")))
        except LookupError as error:
            raise Refused(404, str(error)) from None

    async def stacks(self, request: web.Request) -> web.Response:
        try:
            return text_response(self._console.stacks(request.query.get("task")))
        except LookupError as error:
            raise Refused(404, str(error)) from None


class SharedMessages:
    """Encodes state messages once for all streams that send the same message."""

    def __init__(self) -> None:
        # The update that was encoded last, and the resulting message.
        self._full: tuple[object, bytes] = (None, b"")
        self._change: tuple[object, bytes] = (None, b"")

    def full(self, update: Update) -> bytes:
        """Return the first message of a stream, which contains all nodes."""
        if self._full[0] is not update.snapshot:
            self._full = update.snapshot, change_event(update)
        return self._full[1]

    def change(self, update: Update) -> bytes:
        """Return a message with the changed nodes. Most streams send the same message."""
        if self._change[0] is not update.nodes:
            self._change = update.nodes, change_event(update)
        return self._change[1]


def change_event(update: Update) -> bytes:
    """Encode ``update`` as a message."""
    return event({"time": update.snapshot.time, "nodes": update.nodes}, "change")


async def _outcome(work: Awaitable[Outcome]) -> web.Response:
    try:
        return json_response((await work).to_dict())
    except TooMany as error:
        raise Refused(503, str(error)) from None


async def _entries(following: Any) -> AsyncGenerator[bytes]:
    dropped = 0
    async with following as entries:
        async for first in entries:
            messages = [event(entry.to_dict()) for entry in (first, *entries.ready())]
            if entries.dropped > dropped:
                messages.insert(0, event({"dropped": entries.dropped - dropped}))
                dropped = entries.dropped
            yield b"".join(messages)
            await asyncio.sleep(_PAUSE)


def _lines(request: web.Request) -> tuple[str, int]:
    """Return the name of the worker and the number of lines from the request."""
    name = request.query.get("worker", "")
    if not name:
        raise Refused(400, "the query must contain a worker: /api/logs?worker=web")
    return name, _count(request.query.get("lines", str(_DEFAULT_LIMIT)))


async def _new_lines(following: AsyncGenerator[tuple[list[str], int]]) -> AsyncGenerator[bytes]:
    async with aclosing(following):
        async for lines, dropped in following:
            yield event({"lines": lines, "dropped": dropped})
            await asyncio.sleep(_PAUSE)


def _pattern(request: web.Request) -> str:
    return request.query.get("pattern") or "**"


def _count(text: str) -> int:
    """Parse a number from a request. It must be 1 or more."""
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS or not int(text):
        raise Refused(400, f"{text[:40]!r} is not a positive number; use 1 or more")
    return int(text)


_DIGITS = 15


class _PythonConsoles:
    """The request handlers for `PythonConsole`. Only a control socket has them, and only if they are enabled."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._output = Output()
        self._open: dict[str, PythonConsole] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/console", self.open, allow_head=False),
            web.post("/api/console/{id}", self.feed),
            web.post("/api/console/{id}/interrupt", self.interrupt),
        ]

    async def open(self, request: web.Request) -> web.StreamResponse:
        from lifecycle.observe.python_console import PythonConsole  # not needed by most programs

        python = PythonConsole(self._console, self._output)
        return await stream(self._console, request, self._messages(python))

    async def _messages(self, python: PythonConsole) -> AsyncGenerator[bytes]:
        self._open[python.id] = python
        try:
            async with aclosing(python.messages()) as messages:
                async for message in messages:
                    yield event(message)
        finally:
            del self._open[python.id]

    async def feed(self, request: web.Request) -> web.Response:
        from lifecycle.observe.python_console import BusyError

        python = self._find(request)
        given = await json_object(request, line=str)
        try:
            python.feed(given["line"])
        except BusyError as error:
            raise Refused(409, str(error)) from None
        return json_response({})

    async def interrupt(self, request: web.Request) -> web.Response:
        self._find(request).interrupt()
        return json_response({})

    def _find(self, request: web.Request) -> PythonConsole:
        try:
            return self._open[request.match_info["id"]]
        except KeyError:
            raise Refused(404, "this console is closed; open another") from None


async def _refuse_console(_: web.Request) -> web.StreamResponse:
    raise Refused(403, "the Python console is off; start the program with ControlSocket(console=True)")


def control_app(console: Console, *, python: bool = False) -> web.Application:
    """Return the API for a control socket. It accepts only clients run by our own user or root."""
    app = web.Application(middlewares=[_check_user, errors_as_json])
    app.add_routes(api_routes(console))
    app.add_routes(_PythonConsoles(console).routes() if python else [web.get("/api/console", _refuse_console)])
    return app


@web.middleware
async def _check_user(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Reject other users' clients, if the system reports which user runs a client."""
    transport = request.transport
    client = None if transport is None else peer(transport.get_extra_info("socket"))
    if client is not None and client.uid not in (0, os.geteuid()):
        answer = problem(403, "this program belongs to another user")
        answer.force_close()
        return answer
    return await handler(request)
