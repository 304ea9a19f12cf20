"""A router and a supervised worker inside Django. The settings, URLs and views are in this file.

pip install django uvicorn
uvicorn examples.embed.with_django:application
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

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


async def mail(_: HttpRequest, address: str) -> HttpResponse:
    await router.emit(Event("mail/send", address))
    return HttpResponse(status=202)


async def healthz(_: HttpRequest) -> JsonResponse:
    health = current().health()
    return JsonResponse(health.to_dict(), status=200 if health.ready else 503)


urlpatterns = [path("mail/<address>", mail), path("healthz", healthz)]
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"], SECRET_KEY=os.urandom(16).hex())
django = get_asgi_application()


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Handle the ASGI lifespan, which Django does not support, and pass requests to Django."""
    if scope["type"] != "lifespan":
        await django(scope, receive, send)
        return
    await receive()  # lifespan.startup
    workers = Supervisor("workers", Spec("poll", poll, backoff=Backoff(max_restarts=5)))
    async with lifetime(router, workers, signals=False):
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
    await send({"type": "lifespan.shutdown.complete"})
