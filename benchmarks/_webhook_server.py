"""Servers for ``benchmarks.webhook``: ``python -m benchmarks._webhook_server NAME`` starts one and prints its URL."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import sys
from typing import TYPE_CHECKING, Any

from aiohttp import web

from lifecycle.control import Router
from lifecycle.sources import GitHub, Inbox, Limits, WebhookSource
from lifecycle.testing import running

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.sources.signatures import Verifier

__all__ = ["SECRET", "SERVERS"]

SECRET = b"It's a Secret to Everybody"


async def _bare(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(status=202)


async def _bare_hmac(request: web.Request) -> web.Response:
    expected = "sha256=" + hmac.new(SECRET, await request.read(), hashlib.sha256).hexdigest()
    genuine = hmac.compare_digest(expected.encode(), request.headers["X-Hub-Signature-256"].encode())
    return web.Response(status=202 if genuine else 401)


async def _serve_aiohttp(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> None:
    app = web.Application()
    app.router.add_post("/deploy", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


async def _handled(_event: Any) -> None:
    pass


async def _serve_ours(verify: Verifier | None, inbox: Inbox | None = None) -> None:
    # All requests have the same delivery id. Deduplication is off, because each request must be handled.
    # No request may be refused, and benchmarks.curves opens 1,000 connections.
    router, limits = Router(), Limits(pending=1000)
    source = WebhookSource(port=0, verify=verify, inbox=inbox, dedupe=0.0, limits=limits)
    router.add_source(source)
    router.handle("webhook/deploy", _handled)
    async with running(router):
        print(source.url, flush=True)
        await asyncio.Event().wait()


SERVERS: dict[str, Callable[[], Awaitable[None]]] = {
    "aiohttp": lambda: _serve_aiohttp(_bare),
    "aiohttp_hmac": lambda: _serve_aiohttp(_bare_hmac),
    "plain": lambda: _serve_ours(None),
    "hmac": lambda: _serve_ours(GitHub(SECRET)),
    "inbox": lambda: _serve_ours(None, Inbox(sys.argv[2])),
}


async def _main() -> None:
    await SERVERS[sys.argv[1]]()


if __name__ == "__main__":
    asyncio.run(_main())
