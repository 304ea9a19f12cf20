"""A router and a supervised worker inside aiohttp.

python -m examples.embed.with_aiohttp
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from lifecycle import Backoff, Event, Router, Spec, Supervisor, current, lifetime

router = Router("jobs")


@router.on("mail/send")
async def send(event: Event) -> None:
    """Run after the response is sent, in the order of the requests."""
    await asyncio.sleep(0.1)
    print("sent mail to", event.data, flush=True)


async def poll() -> None:
    """Read the mailbox every second. The supervisor restarts this function after an error."""
    while True:
        await asyncio.to_thread(Path(os.environ.get("MAILBOX", __file__)).read_text)
        await asyncio.sleep(1)


async def background(_: web.Application) -> AsyncIterator[None]:
    workers = Supervisor("workers", Spec("poll", poll, backoff=Backoff(max_restarts=5)))
    async with lifetime(router, workers, signals=False):
        yield


async def mail(request: web.Request) -> web.Response:
    await router.emit(Event("mail/send", request.match_info["address"]))
    return web.Response(status=202)


async def healthz(_: web.Request) -> web.Response:
    health = current().health()
    return web.json_response(health.to_dict(), status=200 if health.ready else 503)


app = web.Application()
app.cleanup_ctx.append(background)
app.router.add_post("/mail/{address}", mail)
app.router.add_get("/healthz", healthz)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
