"""With ``answer="handled"``, a sender receives the handler's result, even if it repeats the request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from lifecycle.control import Router
from lifecycle.errors import NotHandled
from lifecycle.sources import GitHub, Inbox, Limits, WebhookSource
from lifecycle.testing import running
from tests.realtime.test_webhook import SECRET, serving, signature
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from lifecycle.events import WebhookEvent

HANDLED: dict[str, Any] = {"answer": "handled"}


class Handler:
    """A handler that counts its calls. Each call waits until it is released, and may fail."""

    def __init__(self) -> None:
        self.calls = 0
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, event: WebhookEvent) -> None:
        self.calls += 1
        await self.go.wait()
        if self.error is not None:
            raise self.error


async def test_the_answer_comes_when_the_handler_has_returned() -> None:
    handler = Handler()
    async with serving(handle=handler, **HANDLED) as served:
        answer = asyncio.create_task(served.send())
        await until(lambda: handler.calls)
        assert not answer.done()
        handler.go.set()
        status, data, _ = await answer
    assert (status, data["topic"]) == (200, "webhook/deploy")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ValueError("the password is swordfish"), 500, "the handler failed"),
        (TimeoutError("of its own"), 500, "the handler failed"),
        (NotHandled("not for me"), 404, "nothing handles 'webhook/deploy'"),
    ],
)
async def test_an_error_of_the_handler_is_500_without_details(error: Exception, status: int, text: str) -> None:
    handler = Handler()
    handler.error = error
    handler.go.set()
    async with serving(handle=handler, **HANDLED) as served:
        assert (await served.send())[:2] == (status, {"error": text})


async def test_a_slow_handler_continues_after_504_and_a_repetition_waits_for_it() -> None:
    handler = Handler()
    headers = signature(b"") | {"X-GitHub-Delivery": "one"}
    async with serving(handle=handler, verify=GitHub(SECRET), limits=Limits(answer_timeout=0.05), **HANDLED) as served:
        for _ in range(2):
            status, data, _headers = await served.send(headers=headers)
            assert (status, data["error"]) == (504, "the handler is still running after 0.05 s")
        handler.go.set()
        while (await served.send(headers=headers))[0] == 504:
            """On a slow machine, the handler may still be running."""
        assert (await served.send(headers=headers))[0] == 200
    assert handler.calls == 1


async def test_a_repetition_is_delivered_only_after_a_failure() -> None:
    handler = Handler()
    handler.go.set()
    handler.error = ValueError("not today")
    headers = signature(b"") | {"X-GitHub-Delivery": "one"}
    async with serving(handle=handler, verify=GitHub(SECRET), **HANDLED) as served:
        assert (await served.send(headers=headers))[0] == 500
        handler.error = None
        assert [(await served.send(headers=headers))[0] for _ in range(3)] == [200, 200, 200]
    assert handler.calls == 2


async def test_repetitions_during_the_handler_share_its_result() -> None:
    handler = Handler()
    handler.error = ValueError("not today")
    headers = signature(b"") | {"X-GitHub-Delivery": "one"}
    async with serving(handle=handler, verify=GitHub(SECRET), **HANDLED) as served:
        answers = [asyncio.create_task(served.send(headers=headers)) for _ in range(3)]
        await until(lambda: handler.calls)
        handler.go.set()
        statuses = [(await answer)[0] for answer in answers]
    # A request that arrived late enough was delivered again, and also failed.
    assert statuses == [500, 500, 500]


async def test_waiting_requests_are_answered_when_the_receiver_stops() -> None:
    handler = Handler()
    async with serving(handle=handler, **HANDLED) as served:
        answer = asyncio.create_task(served.send())
        await until(lambda: handler.calls)
        served.source.close()
        handler.go.set()
        assert (await answer)[0] == 200


async def test_waiting_requests_are_answered_while_the_router_drains_and_others_get_503() -> None:
    handler = Handler()
    async with serving(handle=handler, **HANDLED) as served:
        answer = asyncio.create_task(served.send())
        await until(lambda: handler.calls)
        served.router.stop()
        await until(lambda: not served.router.sources()[0].running)
        status, _, headers = await served.send()
        assert (status, headers["Retry-After"]) == (503, "1")
        handler.go.set()
        assert (await answer)[0] == 200
    assert handler.calls == 1


async def test_requests_get_503_while_the_router_drains() -> None:
    """No client waits for a response, but accepted events are still being handled."""
    handler = Handler()
    async with serving(handle=handler) as served:
        url = served.source.url
        assert (await served.send())[0] == 202
        await until(lambda: handler.calls)
        served.router.stop()
        await until(lambda: not served.router.sources()[0].running)
        status, data, headers = await served.send()
        assert (status, data, headers["Retry-After"]) == (503, {"error": "the receiver is stopping"}, "1")
        handler.go.set()
    with pytest.raises(aiohttp.ClientConnectionError):
        async with aiohttp.ClientSession() as client:
            await _post(client, url)


async def _post(client: aiohttp.ClientSession, url: str) -> tuple[int, bool]:
    async with client.post(url) as answer:
        return answer.status, "Retry-After" in answer.headers


async def test_a_request_whose_handler_outlasts_the_receiver_gets_504(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler is still running. After a 503, the sender would repeat the event, which would be handled twice."""
    monkeypatch.setattr("lifecycle.sources._http.requests._GRACE", 0.01)
    monkeypatch.setattr("lifecycle.sources._http.requests._LAST_GRACE", 0.01)
    handler, router, source = Handler(), Router(), WebhookSource(port=0, **HANDLED)
    router.handle("webhook", handler)
    async with running(router), aiohttp.ClientSession() as client:
        async with source:
            run = asyncio.create_task(source.run(router.emit))
            answer = asyncio.create_task(_post(client, source.url))
            await until(lambda: handler.calls)
            source.close()
            await run
        assert await answer == (504, False)
        handler.go.set()


def test_invalid_answers_raise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="answer='later' is unknown; use 'accepted' or 'handled'"):
        WebhookSource(answer="later")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(ValueError, match="leave one of them out"):
        WebhookSource(answer="handled", inbox=Inbox(tmp_path / "app.db"))
    with pytest.raises(ValueError, match="answer_timeout must be a positive number of seconds or a timedelta, got 0"):
        Limits(answer_timeout=0)
