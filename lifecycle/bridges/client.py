"""A subclass of nats-py's client that does not hang on a frozen server or on malformed messages.

This module is imported when a connection is created. Each workaround is for nats-py 2.16, and has a test in
``test_foreign_messages`` or ``test_outages``. Remove workarounds that newer versions no longer need.
"""

from __future__ import annotations

import asyncio
from typing import Any

from nats.aio.client import Client as NatsClient
from nats.errors import StaleConnectionError

from lifecycle._async import start_task

__all__ = ["Client"]


class Client(NatsClient):
    """A client that detects broken connections and supports cancellation."""

    _leaving: asyncio.Task[None]

    def abort(self) -> None:
        """Drop the connection along with its unsent data, which a frozen server would never receive."""
        writer: asyncio.StreamWriter | None = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    def leave(self) -> None:
        """Connect to a different server from the pool."""
        if self.is_connected:
            # The client tries the servers in order, so move the current one to the end of the pool.
            self._server_pool.sort(key=lambda server: server is self._current_server)
            self.abort()
            self._leaving = start_task(self.force_reconnect())

    async def _process_op_err(self, e: Exception) -> None:
        # Otherwise, the client would wait until all data is sent before trying the next server.
        if not (self.is_closed or self.is_reconnecting):
            self.abort()
        await super()._process_op_err(e)

    async def _read_loop(self) -> None:
        await super()._read_loop()
        # An exception has silently ended the read loop. Without this, the connection would still appear healthy.
        if self.is_connected:
            await self._process_op_err(StaleConnectionError())

    async def request(self, *args: Any, **options: Any) -> Any:  # noqa: D102  # nats-py's
        # Before Python 3.12, `asyncio.wait_for` drops a cancellation that arrives together with the result.
        asked = _cancellations()
        answer = await super().request(*args, **options)
        if _cancellations() > asked:
            raise asyncio.CancelledError
        return answer

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        # If the caller is cancelled, the client mistakes this for a cancellation of its flusher task.
        asked = _cancellations()
        result = await super()._flush_pending(force_flush)
        if _cancellations() > asked:
            raise asyncio.CancelledError
        return result

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Any:
        try:
            return super()._build_message(sid, subject, reply, data, headers)
        except UnicodeDecodeError:
            # Servers accept any bytes as a subject, but the read loop fails on invalid UTF-8.
            readable = subject.decode(errors="replace").encode()
            return super()._build_message(sid, readable, reply, data, headers)


def _cancellations() -> int:
    """Return the number of cancellation requests for the current task."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
