"""Serves an aiohttp application at a socket that is there, and ends it without waiting for anybody."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web

from lifecycle._connections import NEVER, Acceptor, Connection, Connections
from lifecycle.observe._http.answers import problem

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Mapping

    from aiohttp.typedefs import Handler

    from lifecycle.observe.console import Console

__all__ = ["serving"]

#: Connections that may wait to be accepted.
_QUEUE = 1024

#: Seconds that requests under way have for their answers when it ends; streams have none.
_LAST_ANSWERS = 0.5

#: Seconds that a client has for the head of a request, the first and each after an answer, and to take an answer.
_PATIENCE = 30.0


class _Refusals(logging.LoggerAdapter[logging.Logger]):
    """A request that is no HTTP is no failure of ours: its sender is told, and the log at level DEBUG."""

    def info(self, msg: object, *args: object, **how: Any) -> None:
        self.debug(msg, *args, **how)

    def error(self, msg: object, *args: object, **how: Any) -> None:
        self.debug(msg, *args, **how)

    def exception(self, msg: object, *args: object, exc_info: Any = True, **how: Any) -> None:
        self.debug(msg, *args, exc_info=exc_info, **how)


_refusals = _Refusals(logging.getLogger("lifecycle.observe"))


@web.middleware
async def _sent(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Send what is answered, and cut off who does not take it: it would be kept for ever."""
    connection = request.protocol
    assert isinstance(connection, Connection), "it is made here"
    connection.begin(request)
    try:
        answer = await handler(request)
        try:
            async with asyncio.timeout(_PATIENCE):
                await answer.prepare(request)
                await answer.write_eof()
        except TimeoutError:
            connection.cut()
    finally:
        connection.end()
    if not request.content.is_eof():
        await connection.linger()
    return answer


@asynccontextmanager
async def serving(
    app: web.Application, console: Console, at: socket.socket, *, headers: Mapping[str, str] | None = None
) -> AsyncGenerator[None]:
    """Accept and answer for a block; a request whose client goes away is cancelled.

    ``headers`` are for what is refused before ``app`` knows of it.
    """
    app.on_shutdown.append(lambda _: console.end_streams())
    app.middlewares.insert(0, _sent)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_LAST_ANSWERS)
    await runner.setup()
    server = runner.server
    assert server is not None, "it was set up"
    connections = Connections(timeout=_PATIENCE)

    def connection() -> Connection:
        return Connection(
            connections,
            server,
            refusal=partial(problem, headers=headers),
            log=_refusals,
            access_log=None,
            keepalive_timeout=NEVER,
            lingering_time=0,
            logger=_refusals,
        )

    at.listen(_QUEUE)
    acceptor = Acceptor([at], connections, connection)
    try:
        try:
            yield
        finally:
            acceptor.close()
            connections.end()
    finally:
        await runner.cleanup()
        await connections.abort()
