from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aiohttp import web

from tests.realtime.embedding import parts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


async def background(_: web.Application) -> AsyncGenerator[None]:
    async with parts.background():
        yield


async def mail(request: web.Request) -> web.Response:
    return web.Response(text=await parts.work(request.match_info["to"]))


async def health(_: web.Request) -> web.Response:
    body, status = parts.health()
    return web.json_response(body, status=status)


app = web.Application()
app.cleanup_ctx.append(background)
app.router.add_post("/mail/{to}", mail)
app.router.add_get("/health", health)


def main() -> None:
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
