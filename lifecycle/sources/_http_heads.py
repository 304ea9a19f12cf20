"""What the head of an HTTP request says."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

__all__ = ["headers_of", "is_encoded", "is_from_a_page", "query_of"]


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


def is_encoded(headers: Mapping[str, str]) -> bool:
    """Whether the body is to be unpacked before it is what was signed: nothing here is unpacked for strangers."""
    return headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")


def is_from_a_page(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent it because of a page that it shows, which may ask for what it likes, of loopback too."""
    return "origin" in headers or headers.get("sec-fetch-site", "none") != "none"
