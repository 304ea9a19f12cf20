"""nats-py's client, where a server that is frozen or what a stranger wrote would else hold it up for good.

Imported when a connection is made, and not before. Seen with nats-py 2.16, each by a test in ``test_strangers`` and
``test_outages``: drop what a newer one no longer needs.
"""

from __future__ import annotations

import asyncio
from typing import Any

from nats.aio.client import Client as NatsClient
from nats.errors import StaleConnectionError

__all__ = ["Client"]


class Client(NatsClient):
    """One that notices when it is broken, and lets itself be cancelled."""

    _leaving: asyncio.Task[None]

    def abort(self) -> None:
        """Drop the connection with what is not yet sent: a server that is frozen would never take it."""
        writer: asyncio.StreamWriter | None = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    def leave(self) -> None:
        """Go to another server of the pool."""
        if self.is_connected:
            # Servers that this one has told of stand behind it.
            self._server_pool.sort(key=lambda server: server is self._current_server)
            self.abort()
            self._leaving = asyncio.get_running_loop().create_task(self.force_reconnect())

    async def _process_op_err(self, e: Exception) -> None:
        # It would wait until all is sent before it tries the next server.
        if not (self.is_closed or self.is_reconnecting):
            self.abort()
        await super()._process_op_err(e)

    async def _read_loop(self) -> None:
        await super()._read_loop()
        # An error of its own ends it without a word, and the connection would look as if it were good.
        if self.is_connected:
            await self._process_op_err(StaleConnectionError())

    async def request(self, *args: Any, **options: Any) -> Any:  # noqa: D102  # nats-py's
        # Before Python 3.12 `asyncio.wait_for` drops a cancellation that comes together with the answer.
        asked = _cancellations()
        answer = await super().request(*args, **options)
        if _cancellations() > asked:
            raise asyncio.CancelledError
        return answer

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        # It takes the cancellation of its caller for its own.
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
            # A server takes any bytes for a subject, and whoever reads on has the error.
            readable = subject.decode(errors="replace").encode()
            return super()._build_message(sid, readable, reply, data, headers)


def _cancellations() -> int:
    """How often the current task was asked to end."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
