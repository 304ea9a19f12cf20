"""`Dashboard`: a web page that shows and controls a running program."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from lifecycle._net import check_port, is_loopback, url_of
from lifecycle.observe.console import Console
from lifecycle.observe.http.guard import HEADERS, Guard, generate_token
from lifecycle.runtime.mains import Auxiliary

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

__all__ = ["Dashboard"]

_log = logging.getLogger("lifecycle.observe")


class Dashboard(Auxiliary):
    """Server for a page that shows this program live, with buttons for its commands. Pass it to `run`.

    The page shows the tree of workers with restarts, health and memory, routes with rates and latencies, and events
    with their outcomes and causes. It also shows flows as diagrams, pools, sources, lanes and inboxes. The page loads
    nothing from other servers. The same server provides the HTTP API under ``/api``.

    If ``host`` is a loopback address, every client may read. Commands need ``token``. Reading also needs the token if
    other machines can reach ``host``. By default, a token is generated. Send the token in the header ``Authorization:
    Bearer TOKEN`` or, for the page, after ``#token=``. Never put the token in a query, a cookie or a log. On a
    terminal, the address is printed to stderr with a generated token. Without a terminal, the address is logged without
    the token: pass your own ``token``, or read the attribute. Requests that use another host name, or that come from
    another page, are rejected.

    With `run`, the server opens before the next main starts, and closes last. It does not keep the program running when
    the other mains have ended. Inside a lifetime, you can use ``async with`` instead. Both raise `OSError` if the
    address is in use or does not exist, and `LookupError` outside a lifetime. While no page is open, the dashboard
    costs almost nothing.

    Args:
        host: The address to listen on. Traffic is not encrypted, so use a tunnel or a proxy for other machines.
        port: The port; 0 for any free port.
        token: One word of printable ASCII, the longer the better.

    Raises:
        ValueError: if the port does not exist, or a header cannot contain the token.
    """

    _taken: ClassVar[str] = "is already served; create a second one with a different port"

    def __init__(self, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        check_port(port)
        super().__init__()
        #: The token that commands require.
        self.token: str = generate_token() if token is None else token
        self._generated = token is None
        Guard(host, self.token)
        self._host, self._port = host, port
        self._address = (host, port)

    def __repr__(self) -> str:
        return f"<Dashboard {self.url}>"

    @property
    def url(self) -> str:
        """The page's address, without a trailing slash. Before the start, the address contains the given port."""
        return url_of("http", *self._address)

    async def _open(self, held: AsyncExitStack) -> None:
        from lifecycle.observe.http.live import Latencies, page_app  # aiohttp is slow to import
        from lifecycle.observe.http.server import serving

        console = await held.enter_async_context(Console())
        latencies = held.enter_context(Latencies())
        at = held.enter_context(_listening_socket(self._host, self._port))
        app = page_app(console, latencies, self._host, self.token)
        await held.enter_async_context(serving(app, console, at, headers=HEADERS))
        self._address = (self._host, at.getsockname()[1])
        held.callback(setattr, self, "_address", (self._host, self._port))
        self._announce()

    def _announce(self) -> None:
        """Print or log the address. A generated token is shown only on a terminal."""
        if not is_loopback(self._host):
            _log.warning(
                "%s is not encrypted, and other machines can reach it; use a tunnel or a proxy instead", self.url
            )
        if sys.stderr is not None and sys.stderr.isatty():
            token = f"#token={quote(self.token, safe='')}" if self._generated else ""
            print(f"dashboard: {self.url}/{token}", file=sys.stderr, flush=True)  # noqa: T201  # for the person at the terminal
        else:
            _log.info("dashboard: %s/", self.url)
            if self._generated:
                _log.info("commands on the page need its token, which is not logged; set one with Dashboard(token=...)")


def _listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        OSError: with the address and the reason.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        message = (
            f"cannot serve the page at {host} port {port}: {reason}; use another address, or port 0 for a free port"
        )
        raise type(error)(error.errno, message) from error
