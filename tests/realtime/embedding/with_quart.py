from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quart import Quart

from tests.realtime.embedding import parts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

app = Quart(__name__)


@app.while_serving
async def background() -> AsyncGenerator[None]:
    async with parts.background():
        yield


@app.post("/mail/<to>")
async def mail(to: str) -> str:
    return await parts.work(to)


@app.get("/health")
async def health() -> tuple[dict[str, Any], int]:
    return parts.health()
