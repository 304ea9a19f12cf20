"""An HTTP server and its error responses. The server's socket may be inherited from systemd.

Inherited sockets follow sd_listen_fds(3): ``LISTEN_FDS`` is the number of descriptors, starting at 3. ``LISTEN_PID`` is
the pid of the process that they are intended for. This module needs aiohttp, so it is imported only when a server
starts.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
from contextlib import suppress
from json.encoder import encode_basestring_ascii as _quoted
from typing import TYPE_CHECKING, Final

from aiohttp import web
from multidict import CIMultiDict

from lifecycle._http import HttpServer
from lifecycle._net import SocketFile
from lifecycle.sources._http.settings import unix_path

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Collection

__all__ = ["Listener", "json_response", "problem", "response"]

_log = logging.getLogger("lifecycle.sources")

#: The time limit, in seconds, for sending the last response on a connection when the server closes.
_LAST_ANSWERS = 0.5

#: The time, in seconds, that connected clients have to send a request when another process takes over the socket.
_LAST_REQUESTS = 1.0

#: The number of the first inherited descriptor.
_FIRST: Final = 3

#: The maximum number of digits in ``LISTEN_FDS``. Real values are less than 1,000.
_MOST_DIGITS: Final = 3

#: Maps each descriptor to the socket that uses it. A closed socket no longer uses its descriptor. This dictionary is
#: global, because descriptors belong to the process.
_users: Final[dict[int, socket.socket]] = {}


#: The ``Server`` header hides the name and version of the HTTP library.
_SERVER: Final = {"Server": "lifecycle"}
_JSON = CIMultiDict({"Content-Type": "application/json", **_SERVER})


class Listener:
    """Listens, and calls ``answer`` for each request. A client has ``header_timeout`` seconds to send the headers.

    ``refusal`` creates the response to malformed input from a status and a reason. The default is `problem`.
    """

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        header_timeout: float,
        refusal: Callable[[int, str], web.StreamResponse] | None = None,
    ) -> None:
        self._answer = answer
        self._refusal = refusal or problem
        self._timeout = header_timeout
        self._aiohttp = web.Server(self._serve)
        self._server: HttpServer | None = None
        self._file: SocketFile | None = None
        #: True if another process may take over the socket.
        self.inherited = False

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Open the socket, or use the inherited socket for this address. Return the actual host and port.

        Raises:
            OSError: if the address cannot be used. The message names the address and the reason.
        """
        found = await self._opened(host, port)
        if found is None:
            sockets = await _bound(host, port)
        else:
            sockets = [found]
        self._server = HttpServer(
            self._aiohttp,
            sockets,
            timeout=self._timeout,
            refusal=self._refusal,
            log=_log,
            context=context,
            auto_decompress=False,
        )
        try:
            await self._server.start()
        except BaseException as error:
            await self.aclose()
            if isinstance(error, OSError):
                raise _explained(error, host, port) from error
            raise
        if found is not None or port != 0:
            return host, port
        # A host name may have several addresses. Port 0 opens a different port for each of them, and we return the
        # first.
        address = sockets[0].getsockname()
        return address[0], address[1]

    async def _opened(self, host: str, port: int) -> socket.socket | None:
        """Return an inherited socket or a Unix socket, or None for a port that must still be opened."""
        path = unix_path(host)
        found = _take(await _addresses(host, port) if path is None else (path,))
        self.inherited = found is not None
        if found is None and path is not None:
            self._file = SocketFile(path)
            return self._file.socket
        return found

    async def hand_over(self) -> None:
        """Release an inherited socket for its next owner. Connected clients get a moment to send a request.

        A socket that this process opened stays in use, because no other process would accept its clients.
        """
        if not self.inherited or self._server is None:
            return
        await self._server.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_REQUESTS):
                await self._server.all_asked.wait()

    async def aclose(self) -> None:
        """Stop accepting clients, and close every connection after its last response."""
        if self._file is not None:
            self._file.remove()
            self._file = None
        if self._server is None:
            return
        try:
            # In the meantime, requests that have arrived begin, so that they get a response before idle connections are
            # closed.
            await self._server.end()
            self._aiohttp.pre_shutdown()
            await self._aiohttp.shutdown(_LAST_ANSWERS)
        finally:
            await self._server.close()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._server is not None, "it is listening"
        with self._server.answering(request) as client:
            answer = await self._answer(request)
        if not request.content.is_eof():
            with suppress(ConnectionError):
                await answer.prepare(request)
                await answer.write_eof()
            await client.linger()
        return answer


async def _bound(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on every address of ``host``.

    Raises:
        OSError: if the address cannot be used. The message names the address and the reason.
    """
    sockets: list[socket.socket] = []
    try:
        # Let asyncio resolve the name and bind the sockets. The server then accepts clients on duplicates of them.
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
        sockets += [each.dup() for each in server.sockets]
        server.close()
    except OSError as error:
        for each in sockets:
            each.close()
        raise _explained(error, host, port) from error
    return sockets


def _explained(error: OSError, host: str, port: int) -> OSError:
    """Return the error with a message that suggests a remedy."""
    # Since Python 3.12, asyncio raises an error without an errno if the address does not exist.
    number = error.errno or errno.EADDRNOTAVAIL
    if number == errno.EADDRINUSE:
        text = (
            f"port {port} on {host} is in use by another program; stop it, or use a different port (0 for a free one)"
        )
    elif number == errno.EACCES:
        text = f"port {port} on {host} requires privileges that this process does not have; use a port above 1023"
    elif number == errno.EADDRNOTAVAIL:
        text = f"{host} is not an address of this machine; use a local address, such as 127.0.0.1"
    else:
        text = f"cannot listen on {host}, port {port}: {error.strerror or error}"
    return OSError(number, text)


# -- inherited sockets -----------------------------------------------------------------------------------------


async def _addresses(host: str, port: int) -> Collection[object]:
    """Return the addresses that an inherited socket for this host and port may have.

    The result is empty if any port will do.
    """
    if port == 0 or not _inherited():
        return ()
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        # Opening a socket will also fail, and the error will explain the reason.
        return ()
    return {where[:2] for *_, where in found}


def _take(wanted: Collection[object]) -> socket.socket | None:
    """Return an unused inherited socket that is bound to one of ``wanted``, or None.

    The returned socket is a duplicate, so that the descriptor stays open for its next owner. Closing the socket makes
    the descriptor available again. Child processes inherit neither of them.
    """
    for number in _inherited() if wanted else ():
        if number not in _users or _users[number].fileno() == -1:
            taken = _duplicate(number)
            if taken is not None and _listens(taken) and _address_of(taken) in wanted:
                os.set_inheritable(number, False)
                _users[number] = taken
                return taken
            if taken is not None:
                taken.close()
    return None


def _inherited() -> range:
    """Return the descriptors passed to this process.

    The range is empty if they were passed to a parent with the same environment.
    """
    number = os.environ.get("LISTEN_FDS", "")
    ours = os.environ.get("LISTEN_PID") == str(os.getpid())
    usable = ours and number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS
    return range(_FIRST, _FIRST + int(number)) if usable else range(0)


def _duplicate(number: int) -> socket.socket | None:
    with suppress(OSError):
        if stat.S_ISSOCK(os.fstat(number).st_mode):
            return socket.socket(fileno=os.dup(number))
    return None


def _listens(given: socket.socket) -> bool:
    return given.type == socket.SOCK_STREAM and bool(given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _address_of(given: socket.socket) -> object:
    name = given.getsockname()
    return name if given.family == socket.AF_UNIX else name[:2]


# -- responses -------------------------------------------------------------------------------------------------


def problem(status: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    """Return an error response. Its reason helps users configure the sender."""
    answer = json_response(status, '{"error": %s}', reason)
    answer.headers.update(headers or {})
    return answer


def json_response(status: int, template: str, *values: str) -> web.Response:
    """Return a response with ``template`` as its body, in which the ``values`` replace ``%s`` as JSON strings."""
    body = template % tuple(map(_quoted, values))
    return web.Response(status=status, body=body.encode(), headers=_JSON)


def response(status: int, body: bytes, content_type: str) -> web.Response:
    """Return a response with ``body``."""
    headers = {**_SERVER, **({"Content-Type": content_type} if content_type else {})}
    return web.Response(status=status, body=body or None, headers=headers)
