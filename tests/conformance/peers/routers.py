"""Peers that dispatch events and requests."""

from __future__ import annotations

import asyncio
import fnmatch
from contextlib import suppress
from functools import partial
from typing import Any

__all__ = [
    "blinker_calls_every_receiver_before_send_returns",
    "blinker_lets_the_error_of_a_receiver_out_and_calls_no_other",
    "pyee_calls_every_listener_of_that_very_name_and_knows_no_patterns",
    "pyee_sends_what_an_async_listener_raises_as_the_event_error",
    "pyee_starts_async_listeners_at_once_however_many_are_at_work",
    "starlette_keeps_a_path_that_is_there_twice_and_takes_the_first",
    "starlette_takes_the_first_route_that_matches",
    "the_star_of_fnmatch_crosses_the_slash",
]


def the_star_of_fnmatch_crosses_the_slash() -> None:
    assert fnmatch.fnmatch("order/1/paid", "order/*")


def starlette_takes_the_first_route_that_matches() -> None:
    assert _starlette("/users/{name}", "/users/me") == b"/users/{name}"
    assert _starlette("/users/me", "/users/{name}") == b"/users/me"


def starlette_keeps_a_path_that_is_there_twice_and_takes_the_first() -> None:
    assert _starlette("/users/me", "/users/me", names=("first", "second")) == b"first"


def _starlette(*paths: str, names: tuple[str, ...] = ()) -> bytes:
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route, Router

    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    def route(path: str, name: str) -> Any:
        async def endpoint(_: object) -> Any:
            return PlainTextResponse(name)

        return Route(path, endpoint)

    router: Any = Router([route(path, name) for path, name in zip(paths, names or paths, strict=True)])
    scope = {"type": "http", "method": "GET", "path": "/users/me", "headers": [], "query_string": b"", "root_path": ""}
    asyncio.run(router(scope, receive, send))
    return bytes(sent[-1]["body"])


def pyee_calls_every_listener_of_that_very_name_and_knows_no_patterns() -> None:
    seen: list[int] = []
    emitter = _emitter()
    for number in (1, 2):
        emitter.on("file/modified", partial(seen.append, number))
    emitter.on("file/*", seen.append)
    assert emitter.emit("file/modified")
    assert seen == [1, 2]


def pyee_starts_async_listeners_at_once_however_many_are_at_work() -> None:
    async def ten() -> int:
        emitter, working = _emitter(), set()

        async def slow(number: int) -> None:
            working.add(number)
            await asyncio.sleep(0.1)

        emitter.on("build", slow)
        for number in range(10):
            emitter.emit("build", number)
        await asyncio.sleep(0)
        at_work = len(working)
        await emitter.wait_for_complete()
        return at_work

    assert asyncio.run(ten()) == 10


def pyee_sends_what_an_async_listener_raises_as_the_event_error() -> None:
    async def failing() -> list[BaseException]:
        emitter, errors = _emitter(), list[BaseException]()

        async def fail() -> None:
            raise OSError

        emitter.on("error", errors.append)
        emitter.on("build", fail)
        emitter.emit("build")
        await asyncio.sleep(0.1)
        return errors

    [error] = asyncio.run(failing())
    assert isinstance(error, OSError)


def _emitter() -> Any:
    from pyee.asyncio import AsyncIOEventEmitter

    return AsyncIOEventEmitter()


def blinker_calls_every_receiver_before_send_returns() -> None:
    from blinker import Signal

    signal_, seen = Signal(), []
    receivers = [lambda _, number=number: seen.append(number) for number in (1, 2)]
    for receiver in receivers:
        signal_.connect(receiver)
    signal_.send(None)
    assert sorted(seen) == [1, 2]


def blinker_lets_the_error_of_a_receiver_out_and_calls_no_other() -> None:
    from blinker import Signal

    signal_, called = Signal(), []

    def fail(_: object) -> None:
        called.append(1)
        raise OSError

    receivers = [lambda sender, each=each: each(sender) for each in (fail, fail)]
    for receiver in receivers:
        signal_.connect(receiver)
    with suppress(OSError):
        signal_.send(None)
    assert called == [1]
