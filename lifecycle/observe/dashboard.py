"""`Dashboard`: a web page that shows a running program and lets you control it."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, ClassVar

from lifecycle._net import check_port, is_loopback, url_of
from lifecycle.observe.auxiliary import Auxiliary
from lifecycle.observe.console import Console
from lifecycle.observe.http.guard import HEADERS, Guard, generate_token

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

__all__ = ["Dashboard"]

_log = logging.getLogger("lifecycle.observe")


class Dashboard(Auxiliary):
    """A server for a web page that shows this program live and has buttons for its commands. Pass it to `run`.

    The page shows the worker tree with restarts, health and memory usage; routes with their rates and latencies; and
    events with their outcomes and causes. It also shows flows as diagrams, as well as pools, sources, lanes and
    inboxes. The page loads nothing from other servers. The HTTP API is available on the same server, under ``/api``.

    Every request requires ``token``, apart from those for the files of the page, which reveal nothing about the
    program. By default, a token is generated. Send it in the header ``Authorization: Bearer TOKEN`` or, when you open
    the page, after ``#token=``. Never put the token in a query string, a cookie or a log. If stderr is a terminal, the
    address is printed there together with a generated token. Otherwise, the address is logged without the token, so
    pass your own ``token``, or read it from the attribute of that name. The server rejects requests for a different
    host name and requests sent by other web pages.

    When passed to `run`, the server opens before the mains that follow it start, and closes last. It does not keep the
    program running once the other mains have finished. Inside a lifetime, you can use ``async with`` instead. Either
    way, it raises `OSError` if the address is in use or does not exist, and `LookupError` outside a lifetime. While no
    page is open, the dashboard uses almost no resources.

    Args:
        host: The address to listen on. Traffic is not encrypted, so use a tunnel or a proxy for access from other
            machines.
        port: The port; 0 selects any free port.
        token: One word of printable ASCII, the longer the better.

    Raises:
        ValueError: if the port is not valid, or the token cannot be sent in a header.
    """

    _taken: ClassVar[str] = "is already served; create a second one with a different port"

    def __init__(self, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        check_port(port)
        super().__init__()
        #: The token that requests require.
        self.token: str = generate_token() if token is None else token
        self._generated = token is None
        Guard(host, self.token)
        self._host, self._port = host, port
        self._address = (host, port)

    def __repr__(self) -> str:
        return f"<Dashboard {self._base}>"

    @property
    def url(self) -> str:
        """The address to open in a browser. If the token was generated, the address ends in ``/#token=TOKEN``.

        Otherwise, it has no trailing slash. Until the server starts, it contains the port you passed. For requests to
        the API, use ``urljoin(dashboard.url, "/api/state")``.
        """
        return f"{self._base}/#token={self.token}" if self._generated else self._base

    @property
    def _base(self) -> str:
        """The address without the token."""
        return url_of("http", *self._address)

    async def _open(self, held: AsyncExitStack) -> None:
        from lifecycle.observe.http.live import Figures, Latencies, Refusals, page_app  # aiohttp is slow to import
        from lifecycle.observe.http.server import serving

        console = await held.enter_async_context(Console())
        latencies, refusals = held.enter_context(Latencies()), held.enter_context(Refusals())
        at = held.enter_context(_listening_socket(self._host, self._port))
        app = page_app(Figures(latencies, refusals, console), console, self._host, self.token)
        await held.enter_async_context(serving(app, console, at, headers=HEADERS))
        self._address = (self._host, at.getsockname()[1])
        held.callback(setattr, self, "_address", (self._host, self._port))
        self._announce()

    def _announce(self) -> None:
        """Print or log the address. Show a generated token only on a terminal."""
        if not is_loopback(self._host):
            _log.warning(
                "%s is not encrypted, and other machines can reach it; use a tunnel or a proxy instead", self._base
            )
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"dashboard: {self.url}", file=sys.stderr, flush=True)  # noqa: T201  # for the person at the terminal
        elif self._generated:
            _log.warning(
                "dashboard: %s/ needs its token, which is not logged; set one with Dashboard(token=...)", self._base
            )
        else:
            _log.info("dashboard: %s/", self._base)


def _listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        OSError: if we cannot listen. The message contains the address and the reason.
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
