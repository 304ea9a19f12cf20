"""Who may ask a `Dashboard` for what: which host, which page, which token. Knows requests only by their headers.

A browser lends its user's reach to every page that is open in it. So a request counts only if it was sent to this
machine by name or number (another name that leads here is DNS rebinding), and from a page of our own (anything else is
request forgery); what changes something needs the token as well, which no other page can know.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from typing import TYPE_CHECKING

from lifecycle._net import is_loopback
from lifecycle.observe._http.refusals import Refused

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from multidict import MultiMapping

__all__ = ["HEADERS", "Guard", "made_token"]

#: On every answer: nothing from elsewhere, nothing inline, in no frame, told to nobody, kept nowhere.
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types lit-html"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    "Server": "lifecycle",
}

#: They show what the program prints, and where each line of it stands: as good as a command.
_DEEP = ("/api/dump", "/api/attach")
_READING = ("GET", "HEAD")
_SCHEME = "bearer"

#: A name or number, and perhaps a port: no user, no zone, nothing after a bracket.
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^\s\[\]:/@%]+))(?::[0-9]{0,5})?", re.IGNORECASE)


class Guard:
    """Checks requests for a server at ``host``.

    ``token`` is what commands need, and reading too where other machines can ask; ``free`` are the paths of files that
    say nothing of the program.

    Raises:
        ValueError: for a token that no header could carry.
    """

    def __init__(self, host: str, token: str, *, free: Container[str] = ()) -> None:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ValueError("the token is no word of printable ASCII; give one, or None for a token that is made")
        self._token = token.encode()
        self._free = free
        self._open = is_loopback(host)
        self._names = {"localhost", host.lower()}
        if not self._open:
            self._names.add(socket.gethostname().lower())

    def check(self, method: str, path: str, headers: MultiMapping[str], *, target: str = "/") -> None:
        """Let a request pass; ``target`` is as it was sent, ``path`` what was found for it.

        Raises:
            Refused: saying which of host, origin and token is wrong, and nothing of what is right.
        """
        if not target.startswith("/"):
            # With a host in it, it would count for more than the header that is looked at.
            raise Refused(403, "this is no proxy; ask for a path")
        host = self._checked_host(headers)
        self._check_origin(host, headers)
        self._check_site(method, path, headers)
        self._check_token(method, path, headers)

    def _checked_host(self, headers: MultiMapping[str]) -> str:
        given = headers.getall("Host", [])
        name = _name(given[0]) if len(given) == 1 else None
        if name is None or not self._is_ours(name):
            raise Refused(403, "this host is not served here; ask for the address that the program told")
        return given[0]

    def _is_ours(self, name: str) -> bool:
        """A number cannot be rebound; a port may be anything, as of a tunnel."""
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._open

    def _check_origin(self, host: str, headers: MultiMapping[str]) -> None:
        for origin in headers.getall("Origin", []):
            # https: a proxy may speak TLS for us.
            if origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
                raise Refused(403, "another page may not ask here")

    def _check_site(self, method: str, path: str, headers: MultiMapping[str]) -> None:
        """What browsers say of who asks; a link to the page itself may stand anywhere."""
        site = headers.get("Sec-Fetch-Site", "none")
        link = method in _READING and path == "/" and headers.get("Sec-Fetch-Mode") == "navigate"
        if site not in ("same-origin", "none") and not link:
            raise Refused(403, "another page may not ask here")

    def _check_token(self, method: str, path: str, headers: MultiMapping[str]) -> None:
        """A token that is there has to be the right one, needed or not: so a page can ask whether it is."""
        given = headers.getall("Authorization", [])
        reading = method in _READING and path not in _DEEP
        needed = path not in self._free and not (reading and self._open)
        if (needed or given) and not (len(given) == 1 and self._is_right(given[0])):
            raise Refused(401, "this needs the token of the program, as `Authorization: Bearer TOKEN`")

    def _is_right(self, header: str) -> bool:
        scheme, _, token = header.partition(" ")
        # Surrogates: bytes that came as a header may be anything.
        given = token.strip().encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self._token) and scheme.lower() == _SCHEME


def made_token() -> str:
    """One that nobody guesses."""
    return secrets.token_urlsafe(24)


def _name(host: str) -> str | None:
    """``host`` without its port, in lower case; brackets of an IPv6 address fall. None for what is no host."""
    found = _HOST.fullmatch(host)
    return (found["six"] or found["name"]).lower() if found else None
