"""Ready when a URL answers."""

from __future__ import annotations

import ipaddress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lifecycle._util import reason_of
from lifecycle.workers.readiness.listeners import Listeners
from lifecycle.workers.readiness.polling import poll

if TYPE_CHECKING:
    import aiohttp

    from lifecycle.workers.stdio import Command

__all__ = ["Url"]

#: Seconds for one answer: who accepts a connection before it can serve may have lost it.
_PATIENCE: Final = 5.0
_PORTS: Final = {"http": 80, "https": 443}


class Url:
    """Ready when a GET of ``url`` is answered with a status of 200 to 399; a redirection is not followed.

    Raises:
        ValueError: for what is no URL.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if not parts.hostname or any(each.isspace() for each in url):
            raise ValueError("a URL has a host, and no spaces")
        self.news: str = ""
        self._url = url
        # A password is nobody's business.
        self._told = url.replace(f"{parts.netloc}", parts.netloc.rpartition("@")[2], 1)
        port = parts.port or _PORTS[parts.scheme]
        self._listeners = Listeners(port) if _is_here(parts.hostname) else None

    def __str__(self) -> str:
        return f"answer {self._told} with a status below 400"

    def prepare(self, command: Command) -> Command:
        """Take note of who listens there already, if it is on this machine."""
        if self._listeners is not None:
            self._listeners.remember()
        return command

    async def reached(self, ours: Any) -> None:  # noqa: ARG002  # as with a port
        """Nothing tells us, so it is asked."""
        import aiohttp

        connector = aiohttp.TCPConnector(force_close=True)
        patience = aiohttp.ClientTimeout(total=_PATIENCE)
        async with aiohttp.ClientSession(connector=connector, timeout=patience) as session:
            await poll(lambda: self._answers(session))

    def close(self) -> None:
        """Nothing is held."""

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        import aiohttp

        try:
            async with session.get(self._url, allow_redirects=False) as response:
                self.news = self._objection(response.status)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.news = f"the last attempt failed: {reason_of(error)}"
        return not self.news

    def _objection(self, status: int) -> str:
        if status >= HTTPStatus.BAD_REQUEST:
            return f"the last answer had the status {status}"
        return self._listeners.objection() if self._listeners is not None else ""


def _is_here(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
