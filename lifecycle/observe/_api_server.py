"""Serves an aiohttp application at a socket that is there, and ends it without waiting for anybody.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator

    from lifecycle.observe.console import Console

__all__ = ["serving"]

#: Connections that may wait to be accepted.
_QUEUE = 1024

#: Seconds that requests under way have for their answers when it ends; streams have none.
_LAST_ANSWERS = 0.5

#: Seconds that a client has to end a body of which nobody wants to know more.
_LINGER = 1.0


class _Refusals(logging.LoggerAdapter[logging.Logger]):
    """What is no HTTP is no failure of ours: who sent it is told, and the log only where everything is."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **how: Any) -> None:
        self.debug(msg, *args, exc_info=exc_info, **how)


@asynccontextmanager
async def serving(app: web.Application, console: Console, at: socket.socket) -> AsyncGenerator[None]:
    """Accept and answer for a block; a request whose client goes away is cancelled."""
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        lingering_time=_LINGER,
        logger=_Refusals(logging.getLogger("lifecycle.observe")),
        shutdown_timeout=_LAST_ANSWERS,
    )
    app.on_shutdown.append(lambda _: console.end_streams())
    await runner.setup()
    try:
        await web.SockSite(runner, at, backlog=_QUEUE).start()
        yield
    finally:
        server = runner.server
        await runner.cleanup()
        for connection in () if server is None else server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        # Transports close their sockets one turn later.
        await asyncio.sleep(0)
