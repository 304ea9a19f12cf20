"""What the head of an HTTP request says."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from lifecycle.sources._http.refusals import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

__all__ = ["headers_of", "is_from_a_page", "loggable", "query_of", "require_plain"]

#: Characters of a path that are logged.
_LONGEST_PATH = 200


def headers_of(request: web.BaseRequest) -> dict[str, str]:
    """Names in lower case; what was sent several times is joined, so that no copy of a signature hides another."""
    given = request.headers
    headers = {name.lower(): value for name, value in given.items()}
    if len(headers) != len(given):
        headers = {name: ", ".join(given.getall(name)) for name in headers}
    return headers


def query_of(request: web.BaseRequest) -> dict[str, str]:
    """The last of each name."""
    query = request.raw_path.partition("?")[2]
    return dict(parse_qsl(query, keep_blank_values=True)) if query else {}


def loggable(request: web.BaseRequest) -> str:
    """What was asked for, without the query, where many put a token."""
    return request.raw_path.partition("?")[0][:_LONGEST_PATH]


def require_plain(headers: Mapping[str, str]) -> None:
    """Refuse a body that must be unpacked to be what was meant: that is done for no stranger."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Refused(415, "the body is compressed; send it as it is", headers={"Accept-Encoding": "identity"})


def is_from_a_page(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent it because of a page that it shows, which may ask for what it likes, of loopback too."""
    return "origin" in headers or headers.get("sec-fetch-site", "none") != "none"
