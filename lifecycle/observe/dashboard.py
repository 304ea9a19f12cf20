"""`Dashboard`: the page that shows and controls a running program."""

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
    """Serves a page that shows this program live, with buttons for its commands; a main for `run`.

    It shows the tree of workers with restarts, health and memory, routes with rates and latencies, events with their
    outcomes and causes, flows as diagrams, pools, sources, lanes and inboxes. It loads nothing from other servers. The
    same server answers the HTTP API, below ``/api``.

    Every client of a loopback address may read. Commands need ``token``, as does reading if other machines can reach
    ``host``; by default a token is generated. It belongs in the header ``Authorization: Bearer TOKEN`` or, for the
    page, after ``#token=``: never in a query, a cookie or a log. At a terminal the address is printed on stderr, with a
    generated token. Otherwise the address is logged without it: pass your own ``token``, or read the attribute.
    Requests by another name than the machine's, or from another page, are refused.

    As a main it is up before the next one starts, and the last to stop. It does not keep a program running whose other
    mains have ended. ``async with`` does the same inside a lifetime. Both raise `OSError` if the address is taken or
    does not exist, and `LookupError` outside a lifetime. While no page is open, it costs almost nothing.

    Args:
        host: The address to listen at. Traffic is not encrypted: for other machines, use a tunnel or a proxy.
        port: 0 for any free port.
        token: One word of printable ASCII, the longer the better.

    Raises:
        ValueError: for a port that does not exist, and a token that no header can carry.
    """

    _taken: ClassVar[str] = "is served already; make another for another port"

    def __init__(self, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        check_port(port)
        super().__init__()
        #: The token that commands need.
        self.token: str = generate_token() if token is None else token
        self._generated = token is None
        Guard(host, self.token)
        self._host, self._port = host, port
        self._address = (host, port)

    def __repr__(self) -> str:
        return f"<Dashboard {self.url}>"

    @property
    def url(self) -> str:
        """The address of the page, without a slash at the end; before the start, the one that was given."""
        return url_of("http", *self._address)

    async def _open(self, held: AsyncExitStack) -> None:
        from lifecycle.observe.http.live import Latencies, page_app  # aiohttp is heavy
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
        """Print or log the address; only a terminal shows a generated token."""
        if not is_loopback(self._host):
            _log.warning("%s is not encrypted and not only for this machine; a tunnel or a proxy is better", self.url)
        if sys.stderr is not None and sys.stderr.isatty():
            token = f"#token={quote(self.token, safe='')}" if self._generated else ""
            print(f"dashboard: {self.url}/{token}", file=sys.stderr, flush=True)  # noqa: T201  # for the person at the terminal
        else:
            _log.info("dashboard: %s/", self.url)
            if self._generated:
                _log.info("commands on the page need its token, which is not logged; give Dashboard(token=...) one")


def _listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        OSError: naming the address and the reason.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        message = f"no page at {host} port {port}: {reason}; give another address, or port 0 for a free one"
        raise type(error)(error.errno, message) from error
