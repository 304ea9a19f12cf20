"""A router and a supervised worker inside FastAPI.

pip install fastapi uvicorn
uvicorn examples.embed.with_fastapi:app
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Response

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


async def write(name: str) -> None:
    """Run in the background of the request. A shutdown cancels it."""
    await asyncio.sleep(0.1)
    print("exported", name, flush=True)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    workers = Supervisor("workers", Spec("poll", poll, backoff=Backoff(max_restarts=5)))
    async with lifetime(router, workers, signals=False):
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/mail/{address}", status_code=202)
async def mail(address: str) -> None:
    await router.emit(Event("mail/send", address))


@app.post("/export/{name}", status_code=202)
async def export(name: str) -> None:
    current().go(write, name)


@app.get("/healthz")
async def healthz(response: Response) -> object:
    health = current().health()
    response.status_code = 200 if health.ready else 503
    return health
