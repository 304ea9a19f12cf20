"""The HTTP server for the control API. It serves an aiohttp application, responds in JSON, and sends event streams.

Clients may read slowly or not at all, and a shutdown does not wait for them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web

from lifecycle import _http
from lifecycle._async import start_task
from lifecycle._http import HttpServer
from lifecycle._listening import Listening
from lifecycle.errors import Refused
from lifecycle.observe.console import TooMany

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Mapping

    from aiohttp.typedefs import Handler

    from lifecycle.observe.console import Console

__all__ = [
    "errors_as_json",
    "event",
    "json_object",
    "json_response",
    "problem",
    "serving",
    "stream",
    "text_response",
]

_log = logging.getLogger("lifecycle.observe")

#: How many seconds a running request has to finish when the server shuts down. Streams end immediately.
_SHUTDOWN_TIMEOUT = 0.5

#: How many seconds a client has to send the headers or the body of a request, or to receive a response or message.
_CLIENT_TIMEOUT = 30.0

#: The maximum size of a request body, in bytes.
_MAX_BODY = 1024 * 1024

#: How many seconds to wait between comments in a stream. They keep proxies from closing an idle stream.
_KEEP_ALIVE = 15.0

#: The maximum number of bytes per write. This keeps the buffers small even if a message is large.
_CHUNK = 32 * 1024

#: Headers for every response. They forbid caching and content sniffing.
_HEADERS: Mapping[str, str] = {
    **_http.SERVER,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}

_STREAM_HEADERS = {**_HEADERS, "Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}


# -- the server ----------------------------------------------------------------------------------------------------


class _DebugLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that logs everything at DEBUG level, because a malformed request is not an error in the program."""

    def info(self, msg: object, *args: object, **how: Any) -> None:
        self.debug(msg, *args, **how)

    def error(self, msg: object, *args: object, **how: Any) -> None:
        self.debug(msg, *args, **how)

    def exception(self, msg: object, *args: object, exc_info: Any = True, **how: Any) -> None:
        self.debug(msg, *args, exc_info=exc_info, **how)


_debug_log = _DebugLog(_log)


@asynccontextmanager
async def serving(
    app: web.Application, console: Console, at: socket.socket, *, headers: Mapping[str, str] | None = None
) -> AsyncGenerator[None]:
    """Serve ``app`` on a socket for the duration of the context. If a client disconnects, its request is cancelled.

    ``headers`` are added to responses to malformed requests, which do not reach ``app``.
    """
    app.on_shutdown.append(lambda _: console.end_streams())

    @web.middleware
    async def send_in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await server.respond(handler, request)

    app.middlewares.insert(0, send_in_time)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_TIMEOUT)
    await runner.setup()
    assert runner.server is not None, "it was set up"
    refusal = partial(problem, headers=headers)
    server = HttpServer(
        Listening([at]),
        server=runner.server,
        timeout=_CLIENT_TIMEOUT,
        sending=_CLIENT_TIMEOUT,
        refusal=refusal,
        log=_debug_log,
    )
    await server.start()
    try:
        yield
    finally:
        await server.aclose(runner.cleanup)


# -- responses and bodies ------------------------------------------------------------------------------------------


def json_response(value: Any) -> web.Response:
    """Return a response with ``value`` as JSON."""
    return web.json_response(value, headers=_HEADERS)


def text_response(text: str) -> web.Response:
    """Return a plain-text response. Names may contain surrogates, which are escaped."""
    return web.Response(body=text.encode(errors="backslashreplace"), content_type="text/plain", headers=_HEADERS)


def problem(status: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an error response with a reason for the person who sent the request."""
    return _http.problem(status, reason, {**_HEADERS, **(headers or {})})


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert refusals, including aiohttp's own, to JSON. Log any other error without sending its details."""
    try:
        return await handler(request)
    except Refused as refusal:
        return problem(refusal.status, refusal.reason)
    except web.HTTPMethodNotAllowed as refusal:
        allowed = ", ".join(sorted(refusal.allowed_methods))
        return problem(405, f"this method is not allowed here; use {allowed}", {"Allow": allowed})
    except web.HTTPNotFound:
        return problem(404, "this path does not exist")
    except web.HTTPException as refusal:
        return problem(refusal.status, refusal.reason)
    except (ConnectionError, TimeoutError):
        raise
    except Exception:  # noqa: BLE001  # a failing request must not stop the server
        _log.exception("%s %s failed", request.method, request.path)
        return problem(500, "internal error; see the program's log")


async def json_object(request: web.Request, **kinds: type[Any]) -> dict[str, Any]:
    """Return the JSON object in the body. It must have fields with the given names and types.

    Raises:
        Refused: if the body is invalid or cannot be read, with status 400, 408, 413, 415 or 501 and a reason.
    """
    if request.content_type != "application/json":
        raise Refused(415, "the body must be JSON; send Content-Type: application/json")
    if request.headers.get("Transfer-Encoding", "chunked").strip().lower() != "chunked":
        raise Refused(501, "chunked is the only supported transfer coding")
    try:
        found = json.loads(await _body(request), parse_constant=_refuse_constant)
    except RecursionError:
        raise Refused(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    fields = cast("dict[str, Any]", found)
    if not isinstance(found, dict):
        raise Refused(400, f"the body must be a JSON object with {', '.join(kinds)}")
    for field, kind in kinds.items():
        if not isinstance(fields.get(field), kind):
            raise Refused(
                400, f"the body must have the field {field!r}, a {'string' if kind is str else kind.__name__}"
            )
    return fields


async def _body(request: web.Request) -> bytes:
    if (request.content_length or 0) > _MAX_BODY:
        raise Refused(413, f"the body is larger than {_MAX_BODY} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(_CLIENT_TIMEOUT):
            while chunk := await request.content.readany():
                body += chunk
                if len(body) > _MAX_BODY:
                    raise Refused(413, f"the body is larger than {_MAX_BODY} bytes")
    except web.RequestPayloadError:
        raise Refused(400, "the body is malformed") from None
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {_CLIENT_TIMEOUT:g} s") from None
    return bytes(body)


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number")


# -- server-sent events --------------------------------------------------------------------------------------------


def event(data: Any, name: str | None = None) -> bytes:
    """Return a server-sent event of type ``name``, with ``data`` as JSON."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def stream(console: Console, request: web.Request, messages: AsyncGenerator[bytes]) -> web.StreamResponse:
    """Send ``messages`` until there are no more, the client disconnects or is too slow, or the console ends the stream.

    Raises:
        Refused: with status 503 if too many streams are open.
        ConnectionError: if the client has disconnected, or if ``messages`` raised an error, which is logged.
    """
    try:
        with console.streaming():
            client = _StreamClient(request)
            await client.begin()
            async with aclosing(messages), _keeping_alive(client):
                await _send_all(client, messages)
            return client.response
    except TooMany as error:
        raise Refused(503, str(error)) from None


async def _send_all(client: _StreamClient, messages: AsyncGenerator[bytes]) -> None:
    try:
        async for message in messages:
            await client.send(message)
    except ConnectionError:
        raise
    except Exception as error:
        # We cannot send an error response, because the client would read it as part of the response that has already
        # begun.
        _log.exception("a stream of %s failed", client.request.path)
        client.abort()
        raise ConnectionAbortedError("the stream failed") from error


class _StreamClient:
    """The client that receives a stream."""

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self.response = web.StreamResponse(headers=_STREAM_HEADERS)
        self.response.force_close()
        # True while a message is being written. A comment sent in the meantime would end up inside the message.
        self._sending = False

    async def begin(self) -> None:
        """Send the headers together with the first bytes."""
        await self.response.prepare(self.request)
        await self.send(b": stream begins\n\n")

    async def send(self, message: bytes) -> None:
        """Send ``message``, and wait while the buffer is full. A client that does not read in time is disconnected.

        Raises:
            ConnectionError: if the client has disconnected.
        """
        self._sending = True
        await self._write(message)
        self._sending = False

    async def keep_alive(self) -> None:
        """Send comments at regular intervals until the client disconnects. `send` reports the disconnection."""
        with suppress(ConnectionError):
            while True:
                await asyncio.sleep(_KEEP_ALIVE)
                if not self._sending:
                    await self._write(b": keep-alive\n\n")

    async def _write(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(_CLIENT_TIMEOUT):
                for at in range(0, len(data), _CHUNK):
                    await self.response.write(data[at : at + _CHUNK])
        except TimeoutError:
            self.abort()
            raise ConnectionResetError("the client did not read in time") from None

    def abort(self) -> None:
        """Abort the connection."""
        if self.request.transport is not None:
            self.request.transport.abort()


@asynccontextmanager
async def _keeping_alive(client: _StreamClient) -> AsyncGenerator[None]:
    task = start_task(client.keep_alive(), name="keep a stream alive")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
