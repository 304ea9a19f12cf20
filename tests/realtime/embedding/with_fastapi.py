from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from tests.realtime.embedding import parts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with parts.background():
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/mail/{to}")
async def mail(to: str) -> str:
    return await parts.work(to)


@app.get("/health")
async def health() -> JSONResponse:
    body, status = parts.health()
    return JSONResponse(body, status)
