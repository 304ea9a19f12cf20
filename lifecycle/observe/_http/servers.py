"""Serves an aiohttp application at a socket that is there, and ends it without waiting for anybody."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

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

#: Seconds that a client has to end a body of which nobody wants to know more.
_LINGER = 1.0

#: Seconds that a client has for the head of a request, the first and each after an answer, and to take an answer.
_PATIENCE = 30.0


class _Refusals(logging.LoggerAdapter[logging.Logger]):
    """What is no HTTP is no failure of ours: who sent it is told, and the log only where everything is."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **how: Any) -> None:
        self.debug(msg, *args, exc_info=exc_info, **how)


_refusals = _Refusals(logging.getLogger("lifecycle.observe"))


class _Connection(web.RequestHandler):
    """aiohttp's protocol; what could not be parsed is answered as all else is, and says nothing of who serves."""

    __slots__ = ("_headers",)

    def __init__(self, *args: Any, headers: Mapping[str, str], **how: Any) -> None:
        super().__init__(*args, **how)
        self._headers = headers

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002  # it repeats what was sent
    ) -> web.StreamResponse:
        """Answer what is no HTTP, or a failure of the server's own."""
        self.log_exception("a request failed: %r", exc, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer had begun when the request failed")
        said = "the request is malformed" if status < 500 else "internal error"  # noqa: PLR2004  # ours
        answer = problem(status, said, self._headers)
        answer.force_close()
        return answer


@web.middleware
async def _sent(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Send what is answered, and cut off who does not take it: it would be kept for ever."""
    answer = await handler(request)
    try:
        async with asyncio.timeout(_PATIENCE):
            await answer.prepare(request)
            await answer.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
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
    connections = runner.server
    assert connections is not None, "it was set up"
    loop = asyncio.get_running_loop()

    def connection() -> _Connection:
        return _Connection(
            connections,
            loop=loop,
            headers=headers or {},
            access_log=None,
            keepalive_timeout=_PATIENCE,
            lingering_time=_LINGER,
            logger=_refusals,
        )

    try:
        accepting = await loop.create_server(connection, sock=at, backlog=_QUEUE)
        try:
            yield
        finally:
            accepting.close()
    finally:
        await runner.cleanup()
        for each in connections.connections:
            if each.transport is not None:
                each.transport.abort()
        # Transports close their sockets one turn later.
        await asyncio.sleep(0)
