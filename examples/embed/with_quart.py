"""A router and a supervised worker inside Quart.

pip install quart hypercorn
hypercorn examples.embed.with_quart:app
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from quart import Quart

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


app = Quart(__name__)


@app.while_serving
async def background() -> AsyncIterator[None]:
    workers = Supervisor("workers", Spec("poll", poll, backoff=Backoff(max_restarts=5)))
    async with lifetime(router, workers, signals=False):
        yield


@app.post("/mail/<address>")
async def mail(address: str) -> tuple[str, int]:
    await router.emit(Event("mail/send", address))
    return "", 202


@app.get("/healthz")
async def healthz() -> tuple[dict[str, object], int]:
    health = current().health()
    return health.to_dict(), 200 if health.ready else 503
