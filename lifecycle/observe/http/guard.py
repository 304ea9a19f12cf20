"""`Guard`: checks the host, the origin and the token of each request to a `Dashboard`.

Any web page that is open in a browser can send requests to this machine, so three checks are necessary. First, a
request must use this machine's host name or address: any other name that resolves to it is a sign of DNS rebinding.
Second, a request must come from the dashboard's own page, which prevents request forgery. Third, a request must
contain the token, which no other page or user can know. Only the files of the page are open.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

from lifecycle._net import OwnNames
from lifecycle.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from multidict import MultiMapping

__all__ = ["HEADERS", "Guard", "generate_token"]

#: Headers for every response. They forbid content from other origins, inline content, frames, referrers and caching.
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

_READING = ("GET", "HEAD")
_SCHEME = "bearer"


class Guard:
    """Access checks for a server listening on ``host``.

    Every request requires ``token``, unless its path is in ``free``. These are the paths of files that reveal nothing
    about the program.

    Raises:
        ValueError: if the token cannot be sent in a header.
    """

    def __init__(self, host: str, token: str, *, free: Container[str] = ()) -> None:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ValueError("the token must be one word of printable ASCII characters")
        self._token = token.encode()
        self._free = free
        self._names = OwnNames(host)

    def check(self, method: str, path: str, headers: MultiMapping[str], *, target: str = "/") -> None:
        """Check a request. ``target`` is the path as the client sent it, and ``path`` is the route that it matches.

        Raises:
            Refused: if the host, the origin or the token is wrong. The reason names the failed check, not the
                expected value.
        """
        if not target.startswith("/"):
            # If the target contained a host, it would override the Host header that we check.
            raise Refused(403, "this server is not a proxy; request a path")
        host = self._checked_host(headers)
        self._check_origin(host, headers)
        self._check_site(method, path, headers)
        self._check_token(path, headers)

    def _checked_host(self, headers: MultiMapping[str]) -> str:
        given = headers.getall("Host", [])
        if len(given) != 1 or not self._names.include(given[0]):
            raise Refused(403, "this host is not served here; use the address that the program printed")
        return given[0]

    def _check_origin(self, host: str, headers: MultiMapping[str]) -> None:
        for origin in headers.getall("Origin", []):
            # We also allow https, because a proxy may terminate TLS.
            if origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
                raise Refused(403, "requests from other pages are not allowed")

    def _check_site(self, method: str, path: str, headers: MultiMapping[str]) -> None:
        """Check which site sent the request, according to the browser. Any site may link to the dashboard's page."""
        site = headers.get("Sec-Fetch-Site", "none")
        link = method in _READING and path == "/" and headers.get("Sec-Fetch-Mode") == "navigate"
        if site not in ("same-origin", "none") and not link:
            raise Refused(403, "requests from other pages are not allowed")

    def _check_token(self, path: str, headers: MultiMapping[str]) -> None:
        given = headers.getall("Authorization", [])
        if path not in self._free and not (len(given) == 1 and self._is_right(given[0])):
            raise Refused(401, "this request needs the program's token: send `Authorization: Bearer TOKEN`")

    def _is_right(self, header: str) -> bool:
        scheme, _, token = header.partition(" ")
        # A header may contain any bytes, and invalid ones are decoded to surrogates.
        given = token.strip().encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self._token) and scheme.lower() == _SCHEME


def generate_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(24)
