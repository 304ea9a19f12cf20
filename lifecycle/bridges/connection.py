"""Connections to NATS: connecting, detecting outages, and closing permanently.

The client reconnects when its server is available again. Once the client is closed, a new connection is needed.
Bridges and leaders share this module, and no other modules connect.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from lifecycle._util import needs_extra, reason_of
from lifecycle.backoff import Backoff
from lifecycle.errors import BridgeError, UnfitServer

if TYPE_CHECKING:
    import os
    import ssl
    from collections.abc import Callable

    from nats.js import JetStreamContext

    from lifecycle.bridges.client import Client

__all__ = ["OLDEST", "Change", "Connection", "NatsServer"]

_log = logging.getLogger("lifecycle.bridges")

#: The oldest supported server version. Older servers silently ignore settings that they do not support.
OLDEST = (2, 11)

#: How many seconds the first connection may take, across all servers.
_PATIENCE = 10.0

#: Seconds before an unreachable server is tried again.
_RECONNECT = 0.25

#: How many seconds to allow for sending pending data, and for stopping the client's tasks.
_LAST_BYTES = _LAST_TASKS = 1.0

#: Seconds of silence after which the client pings its server. The client disconnects after three unanswered pings.
_PING = 10

#: Seconds to wait for an expected response before the client tries the next server, if the cluster has several. The
#: wait doubles, up to a minute, until a server responds.
_UNANSWERED = Backoff(initial=5.0, maximum=60.0)


class NatsServer:
    """The addresses of NATS servers, and their credentials.

    ``urls`` lists one or more servers in a cluster: ``nats://host:4222``, or ``tls://…`` for a server that must prove
    its identity. A string may contain several URLs, separated by commas. ``credentials`` is the path to a file created
    by ``nsc``. ``tls`` is an SSL context for a custom authority or a client certificate. The URL may contain a name and
    password, or a token; these are never logged.

    Raises:
        ValueError: if there is no URL.
    """

    def __init__(
        self,
        *urls: str,
        credentials: str | os.PathLike[str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.urls: list[str] = [each.strip() for url in urls for each in url.split(",") if each.strip()]
        if not self.urls:
            raise ValueError("a NatsServer needs a URL such as nats://127.0.0.1:4222")
        self.credentials = credentials
        self.tls = tls

    def __repr__(self) -> str:
        return f"NatsServer({', '.join(url.rpartition('@')[2].rpartition('/')[2] for url in self.urls)})"

    @classmethod
    def of(cls, server: str | NatsServer) -> NatsServer:
        """Return ``server`` as a `NatsServer`. If it is a string, it is used as the URL."""
        return server if isinstance(server, NatsServer) else cls(server)


@dataclass(frozen=True, slots=True)
class Change:
    """A change in the connection's state: the connection has come up or gone down."""

    up: bool
    reason: str = ""


class Connection:
    """One client, from the time it connects until it is closed.

    This is an async context manager that can be entered only once. Entering it raises `UnfitServer` if the server is
    too old or has no JetStream, and `BridgeError` if no server can be reached within ten seconds.
    """

    def __init__(self, server: NatsServer, name: str, told: Callable[[Change], None] = lambda _: None) -> None:
        #: The server to connect to.
        self.server = server
        self._name = name
        self._told = told
        self._client: Client = _new_client()
        self._up = asyncio.Event()
        #: Set once the client is closed for any reason.
        self.closed: Final = asyncio.Event()
        self._trouble = ""
        # True if this process is closing the client, in which case we don't report the disconnect.
        self._ending = False
        # When JetStream stopped responding, or None if it responds.
        self._unanswered: float | None = None
        # The number of servers that we have abandoned since the last response.
        self._left = 0
        self.js: JetStreamContext

    @property
    def client(self) -> Client:
        """The nats-py client."""
        return self._client

    @property
    def is_up(self) -> bool:
        """Whether the server is reachable now."""
        return self._up.is_set()

    def said(self, word: str) -> object:
        """Return a field of the INFO message that the server sent when the client connected."""
        # nats-py has no public API for this message.
        info: dict[str, object] = getattr(self._client, "_server_info", {})
        return info.get(word)

    @property
    def trouble(self) -> str:
        """The last connection error. Empty while the connection works."""
        return self._trouble

    def answered(self) -> None:
        """Record that JetStream has responded through this server."""
        self._unanswered = None
        self._left = 0

    def missed(self, reason: str, *, seconds: float = 0.0) -> None:
        """Record that JetStream has not responded for ``seconds``.

        If this lasts too long, switch to a different server. We cannot rely on the connection closing: a server that is
        frozen or cut off from its cluster keeps its connections open.
        """
        now = asyncio.get_running_loop().time()
        if self._unanswered is None:
            self._unanswered = now - seconds
        is_over = now - self._unanswered >= _UNANSWERED.delay(self._left)
        if not is_over or not self.is_up or len(self._client.server_pool) == 1:
            return
        self._unanswered = None
        self._left += 1
        self._trouble = f"it did not respond ({reason}); trying another server"
        self._client.leave()

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._client.connect(**self._options())
            self._check()
            # From now on, each connection attempt uses a different server than the previous attempt.
            self._client.options["dont_randomize"] = True
            self.js = self._client.jetstream()  # pyright: ignore[reportUnknownMemberType]  # of nats-py
        except TimeoutError:
            await self.close()
            raise BridgeError(
                f"{self.server!r} could not be reached within {_PATIENCE:g} s"
                f"{self._trouble and ': '}{self._trouble}; start it, or correct the URL"
            ) from None
        except BaseException:
            await self.close()
            raise
        self._up.set()
        self._told(Change(up=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def drain(self) -> None:
        """Send all pending data, then close."""
        self._ending = True
        with suppress(Exception):
            await self._client.drain()
        await self.close()

    def _options(self) -> dict[str, Any]:
        server = self.server
        options: dict[str, Any] = {
            "servers": server.urls,
            "name": self._name,
            "connect_timeout": 2,
            "reconnect_time_wait": _RECONNECT,
            "max_reconnect_attempts": -1,
            "ping_interval": _PING,
            "error_cb": self._failed,
            "disconnected_cb": self._went_down,
            "reconnected_cb": self._came_up,
            "closed_cb": self._ended,
        }
        if server.credentials is not None:
            options["user_credentials"] = str(server.credentials)
        if server.tls is not None:
            options["tls"] = server.tls
        return options

    def _check(self) -> None:
        version = self._client.connected_server_version
        if (version.major, version.minor) < OLDEST:
            raise UnfitServer(
                f"{self.server!r} is nats-server {version.major}.{version.minor}.{version.patch}, which ignores "
                f"unknown settings; a bridge needs {OLDEST[0]}.{OLDEST[1]} or newer"
            )

    async def close(self) -> None:
        """Close immediately. Further calls do nothing."""
        self._ending = True
        tasks = _tasks_of(self._client)
        with suppress(Exception):
            async with asyncio.timeout(_LAST_BYTES):
                await self._client.close()
        self._client.abort()
        self._up.clear()
        self.closed.set()
        # When it is closed, the client cancels its tasks but does not await them.
        tasks |= _tasks_of(self._client)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_TASKS)

    # -- callbacks from the client ------------------------------------------------------------------------------------

    async def _failed(self, error: Exception) -> None:
        self._trouble = reason_of(error)
        if not hasattr(self, "js") and "authorization" in self._trouble.lower():
            # Left to itself, the client would retry indefinitely, even with a wrong password.
            raise BridgeError(f"{self.server!r} refuses the connection: {self._trouble}")
        _log.debug("%s: %s", self._name, self._trouble)

    async def _went_down(self) -> None:
        was_up = self._up.is_set()
        self._up.clear()
        if was_up and not self._ending:
            self._told(Change(up=False, reason=self._trouble or "the connection was lost"))

    async def _came_up(self) -> None:
        try:
            self._check()
        except UnfitServer as error:
            _log.error("%s", error)  # a traceback would add nothing
            self.closed.set()
            return
        self._trouble = ""
        self._unanswered = None
        self._up.set()
        self._told(Change(up=True))

    async def _ended(self) -> None:
        await self._went_down()
        self.closed.set()


def _tasks_of(client: Client) -> set[asyncio.Task[Any]]:
    """Return the client's running tasks, which it does not await when it is closed."""
    names = ("_reconnection_task", "_reading_task", "_ping_interval_task", "_flusher_task")
    tasks: list[Any] = [getattr(client, name, None) for name in names]
    subscriptions: dict[int, Any] = getattr(client, "_subs", {})
    tasks += [getattr(each, "_wait_for_msgs_task", None) for each in subscriptions.values()]
    return {task for task in tasks if task is not None and not task.done()}


def _new_client() -> Client:
    try:
        from lifecycle.bridges.client import Client
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(needs_extra("a bridge", "nats-py", "nats"), name=error.name) from None
    return Client()
