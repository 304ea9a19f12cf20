"""The part shared by all hosts: a router, a supervised worker that fails on request, and a control socket."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from lifecycle import Event, Intensity, Router, Spec, Supervisor, TaskWorker, current, go, lifetime
from lifecycle.observe import ControlSocket

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

MODE = os.environ.get("MODE", "mains")

router = Router("jobs")
failing = asyncio.Event()


@router.on("mail/send")
async def send(event: Event) -> None:
    print("sent to", event.data, flush=True)


async def poll() -> None:
    await failing.wait()
    raise ValueError("the poll is dead")


@asynccontextmanager
async def background() -> AsyncGenerator[None]:
    """Run the parts either as mains or in separate blocks, depending on MODE."""
    app = Supervisor("app", Spec("poll", poll), Spec("process", ["sleep", "1000"]), intensity=Intensity(0, within=1))
    parts = {"mains": (router, app), "block": (router,), "worker": (router,)}[MODE]
    async with lifetime(*parts, signals=False) as life, ControlSocket(os.environ.get("NAME", "web")):
        life.on_shutdown(lambda: print("closed", flush=True))
        if MODE == "mains":
            yield
        else:
            async with app if MODE == "block" else TaskWorker("poll", poll):
                yield


async def work(to: str) -> str:
    """Emit an event, start a background task from a request, and make the worker fail."""
    await (await router.emit(Event("mail/send", to)))
    await go(asyncio.sleep, 0)
    if to == "nobody":
        failing.set()
    return "accepted"


def health() -> tuple[dict[str, Any], int]:
    """Return the body and the status of a health endpoint."""
    found = current().health()
    return found.to_dict(), 200 if found.ready else 503
