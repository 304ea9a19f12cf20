"""What a `Dashboard` serves: the files of its page, the API, and the stream that the page follows, behind a guard."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from aiohttp import web

from lifecycle.observe._dashboard.figures import Figures
from lifecycle.observe._dashboard.guard import HEADERS, Guard
from lifecycle.observe._dashboard.live import live
from lifecycle.observe._http.answers import problem
from lifecycle.observe._http.api import SharedMessages, api_routes, errors_as_json
from lifecycle.observe._http.refusals import Refused
from lifecycle.observe._http.streams import stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

    from aiohttp.typedefs import Handler, Middleware

    from lifecycle.observe._dashboard.figures import Latencies
    from lifecycle.observe.console import Console

__all__ = ["page_app", "page_files"]

#: What a browser is told that each is; other files, such as licences, are not served.
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


def page_app(console: Console, latencies: Latencies, host: str, token: str) -> web.Application:
    """The page and the API for a server at ``host``."""
    pages = page_files()
    guard = _guarding(Guard(host, token, free=pages.keys()))
    app = web.Application(middlewares=[guard, errors_as_json])
    app.on_response_prepare.append(_secure)
    figures, shared = Figures(latencies, console), SharedMessages()

    async def follow(request: web.Request) -> web.StreamResponse:
        return await stream(console, request, live(console, figures, shared))

    app.add_routes([web.get(path, _served(*page)) for path, page in pages.items()])
    app.add_routes([*api_routes(console), web.get("/api/live", follow, allow_head=False)])
    return app


def page_files() -> dict[str, tuple[bytes, str]]:
    """The files of the page by their paths: content and type."""
    found = dict(_below(files("lifecycle.observe") / "page", "/page"))
    return {"/": found.pop("/page/index.html"), **found}


def _below(folder: Traversable, path: str) -> Iterator[tuple[str, tuple[bytes, str]]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _below(each, f"{path}/{each.name}")
        elif (kind := _TYPES.get(each.name.rpartition(".")[2])) is not None:
            yield f"{path}/{each.name}", (each.read_bytes(), kind)


def _served(body: bytes, kind: str) -> Handler:
    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8")

    return serve


def _guarding(guard: Guard) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        try:
            path = resource.canonical if resource else request.path
            guard.check(request.method, path, request.headers, target=request.raw_path)
        except Refused as refusal:
            challenge = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else None  # noqa: PLR2004  # unauthorized
            answer = problem(refusal.status, refusal.reason, challenge)
            answer.force_close()
            return answer
        return await handler(request)

    return guarded


async def _secure(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
