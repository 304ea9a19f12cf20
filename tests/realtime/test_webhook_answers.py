"""With ``answer="handled"``, a sender receives the handler's result, even if it repeats the request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from lifecycle import hooks
from lifecycle.control import Router, log, recover
from lifecycle.errors import NotHandled
from lifecycle.sources import GitHub, Inbox, Limits, Refused, WebhookSource
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
    monkeypatch.setattr("lifecycle.sources._webhook_server._GRACE", 0.01)
    monkeypatch.setattr("lifecycle.sources._webhook_server._LAST_GRACE", 0.01)
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


@pytest.mark.parametrize("answer", ["handled", "result"])
async def test_a_handler_refuses_a_request_without_a_traceback(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    refused: list[tuple[int, str]] = []
    failed: list[object] = []

    @hooks.webhook_refused.connect
    def note(_: object, status: int, reason: str) -> None:
        refused.append((status, reason))

    @hooks.handler_failed.connect
    def note_failure(_: object, error: object, **__: object) -> None:
        failed.append(error)

    async def handle(event: WebhookEvent) -> None:
        if event.path == "/busy":
            raise Refused(429, "the shop is closed", retry_after=90)
        raise Refused(422, "the order has no items")

    async with serving(handle=recover()(log()(handle)), answer=answer) as served:
        assert (await served.send())[:2] == (422, {"error": "the order has no items"})
        status, data, headers = await served.send("/busy")
        assert (status, data, headers["Retry-After"]) == (429, {"error": "the shop is closed"}, "90")
        state = served.router.state()
    assert refused == [(422, "the order has no items"), (429, "the shop is closed")]
    assert failed == []
    assert (state.handled, state.failed) == (2, 0)
    assert "handle refused webhook/deploy: 422, the order has no items" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000])
async def test_a_body_that_is_not_json_is_400(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    def handle(event: WebhookEvent) -> None:
        event.json()

    async with serving(handle=handle, **HANDLED) as served:
        status, data, _ = await served.send(body=body)
    assert status == 400
    assert data["error"].startswith("the body is not JSON: ")
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("value", "status", "kind", "body"),
    [
        (b"\x00\xff", 200, "application/octet-stream", b"\x00\xff"),
        ("grüße", 200, "text/plain; charset=utf-8", "grüße".encode()),
        ({"n": [1, None]}, 200, "application/json", b'{"n": [1, null]}'),
        (0, 200, "application/json", b"0"),
        (None, 204, None, b""),
        ({1, 2}, 500, "application/json", b'{"error": "the handler\'s result cannot be sent"}'),
        (float("nan"), 500, "application/json", b'{"error": "the handler\'s result cannot be sent"}'),
    ],
)
async def test_the_handlers_value_is_the_body(
    value: object, status: int, kind: str | None, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(_: WebhookEvent) -> object:
        return value

    async with (
        serving(handle=handle, answer="result") as served,
        aiohttp.ClientSession() as client,
        client.post(served.source.url + "/deploy") as answer,
    ):
        assert (answer.status, answer.headers.get("Content-Type"), await answer.read()) == (status, kind, body)
    assert (f"returned a {type(value).__name__}, which cannot be sent" in caplog.text) is (status == 500)


async def test_a_repeated_request_gets_the_same_result() -> None:
    calls = 0

    async def handle(_: WebhookEvent) -> dict[str, int]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.01)
        return {"calls": calls}

    headers = signature(b"") | {"X-GitHub-Delivery": "one"}
    async with serving(handle=handle, verify=GitHub(SECRET), answer="result") as served:
        together = await asyncio.gather(*(served.send(headers=headers) for _ in range(3)))
        assert [each[:2] for each in [*together, await served.send(headers=headers)]] == [(200, {"calls": 1})] * 4


async def test_results_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifecycle.sources._webhook_server._MOST_BYTES", 1000)
    calls = 0

    async def handle(_: WebhookEvent) -> str:
        nonlocal calls
        calls += 1
        return '"' + "x" * 398 + '"'

    async def send(name: str) -> int:
        return (await served.send(headers=signature(b"") | {"X-GitHub-Delivery": name}))[0]

    async with serving(handle=handle, verify=GitHub(SECRET), answer="result") as served:
        assert [await send(name) for name in ("a", "b", "c", "b", "c", "a")] == [200] * 6
    # The result of "a" was forgotten when that of "c" arrived.
    assert calls == 4


@pytest.mark.parametrize("status", [0, 200, 302, 600])
def test_a_refusal_needs_a_status_for_errors(status: int) -> None:
    with pytest.raises(ValueError, match=f"status={status} is not a status for errors; use 400 to 599"):
        Refused(status, "no")


def test_invalid_answers_raise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="answer='later' is unknown; use 'accepted', 'handled' or 'result'"):
        WebhookSource(answer="later")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(ValueError, match="leave one of them out"):
        WebhookSource(answer="handled", inbox=Inbox(tmp_path / "app.db"))
    with pytest.raises(ValueError, match="answer_timeout must be a positive number of seconds or a timedelta, got 0"):
        Limits(answer_timeout=0)
