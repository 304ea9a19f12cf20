from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpResponse, JsonResponse
from django.urls import path

from tests.realtime.embedding import parts

if TYPE_CHECKING:
    from django.http import HttpRequest

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="test")


async def mail(_: HttpRequest, to: str) -> HttpResponse:
    return HttpResponse(await parts.work(to))


async def health(_: HttpRequest) -> JsonResponse:
    body, status = parts.health()
    return JsonResponse(body, status=status)


urlpatterns = [path("mail/<to>", mail), path("health", health)]
django = get_asgi_application()


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "lifespan":
        await django(scope, receive, send)
        return
    await receive()
    async with parts.background():
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})
