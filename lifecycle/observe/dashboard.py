"""`Dashboard`: the page at which a running program is seen and steered."""

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
    """Serves a page that shows this program as it lives, with buttons for its commands; a main for `run`.

    On it are the tree of workers with restarts, health and memory, routes with rates and latencies, events with what
    became of each and what they came from, flows as diagrams, pools, sources, lanes and inboxes. It needs nothing from
    elsewhere. The same server answers the HTTP API, below ``/api``.

    Whoever can reach a loopback address may look. Commands need ``token``, as does looking where ``host`` is an address
    that other machines reach; without one a token is made. It belongs into the header ``Authorization: Bearer TOKEN``,
    or, for the page, behind ``#token=``: never into a query, a cookie or a log. At a terminal the address is printed on
    stderr, with a token that was made. Elsewhere the address is logged without it: give a ``token`` of your own, or
    read the attribute. Requests that came by another name than the machine's, or from another page, are refused.

    As a main it is up before the next one starts, and the last to stop; a program whose other mains have ended does
    not go on for its sake. ``async with`` does the same inside a lifetime. Both raise `OSError` when the address is
    taken or not to be had, and `LookupError` outside a lifetime. A page that nobody looks at costs nothing.

    Args:
        host: The address to listen at. Traffic is not encrypted: for other machines, a tunnel or a proxy is better.
        port: 0: any that is free.
        token: One word of printable ASCII, the longer the better.

    Raises:
        ValueError: for a port that there cannot be, and a token that no header could carry.
    """

    _taken: ClassVar[str] = "is served already; make another for another port"

    def __init__(self, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        check_port(port)
        super().__init__()
        #: What commands need.
        self.token: str = generate_token() if token is None else token
        self._is_made = token is None
        Guard(host, self.token)
        self._host, self._port = host, port
        self._address = (host, port)

    def __repr__(self) -> str:
        return f"<Dashboard {self.url}>"

    @property
    def url(self) -> str:
        """Where the page is, without a slash at the end; before the start what was asked for."""
        return url_of("http", *self._address)

    async def _open(self, held: AsyncExitStack) -> None:
        from lifecycle.observe.http.live import Latencies, page_app  # aiohttp is heavy
        from lifecycle.observe.http.server import serving

        console = await held.enter_async_context(Console())
        latencies = held.enter_context(Latencies())
        at = held.enter_context(_opened(self._host, self._port))
        app = page_app(console, latencies, self._host, self.token)
        await held.enter_async_context(serving(app, console, at, headers=HEADERS))
        self._address = (self._host, at.getsockname()[1])
        held.callback(setattr, self, "_address", (self._host, self._port))
        self._tell()

    def _tell(self) -> None:
        """Print or log where the page is; only a terminal gets a token that was made."""
        if not is_loopback(self._host):
            _log.warning("%s is not encrypted and not only for this machine; a tunnel or a proxy is better", self.url)
        if sys.stderr is not None and sys.stderr.isatty():
            token = f"#token={quote(self.token, safe='')}" if self._is_made else ""
            print(f"dashboard: {self.url}/{token}", file=sys.stderr, flush=True)  # noqa: T201  # for the person there
        else:
            _log.info("dashboard: %s/", self.url)
            if self._is_made:
                _log.info("commands on the page need its token, which is not logged; give Dashboard(token=...) one")


def _opened(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        OSError: saying which address is not to be had, and why.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        told = f"no page at {host} port {port}: {reason}; give another address, or port 0 for a free one"
        raise type(error)(error.errno, told) from error
