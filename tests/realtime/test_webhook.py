"""Webhooks over real sockets and through a real router: the responses to well-behaved senders."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from lifecycle import hooks
from lifecycle.control import Router
from lifecycle.errors import SourceFailed, VerificationError
from lifecycle.handlers import SuspendHandler
from lifecycle.observe import PrometheusMetrics
from lifecycle.sources import GitHub, Limits, WebhookSource
from lifecycle.testing import Recorder, running
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from lifecycle.events import WebhookEvent

SECRET = b"It's a Secret to Everybody"


def signature(body: bytes) -> dict[str, str]:
    return {"X-Hub-Signature-256": "sha256=" + hmac.new(SECRET, body, hashlib.sha256).hexdigest()}


class Served:
    """A running router with one webhook source, and a client."""

    def __init__(self, source: WebhookSource, client: aiohttp.ClientSession) -> None:
        self.router = Router(buffer=1)
        self.router.add_source(source)
        self.source = source
        self.seen = Recorder()
        self._client = client

    async def send(
        self, path: str = "/deploy", body: bytes = b"", **options: Any
    ) -> tuple[int, Any, Mapping[str, str]]:
        method = options.pop("method", "POST")
        async with self._client.request(method, self.source.url + path, data=body, **options) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else None, answer.headers


class Verifier:
    """Counts requests and accepts them. Once it has counted a request, that request only waits for the router."""

    def __init__(self) -> None:
        self.requests = 0

    def __call__(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        self.requests += 1
        return ""


@asynccontextmanager
async def serving(*, handle: Any = None, **options: Any) -> AsyncGenerator[Served]:
    source = WebhookSource(port=0, **options)
    async with aiohttp.ClientSession() as client:
        served = Served(source, client)
        served.router.handle("webhook/**", served.seen if handle is None else handle)
        async with running(served.router):
            yield served


async def test_a_request_becomes_an_event_and_is_accepted() -> None:
    async with serving() as served:
        headers = {"X-Thing": "one", "Content-Type": "application/json"}
        status, data, _ = await served.send("/deploy/site?ref=main&x=1&x=2&y", b'{"ref": "main"}', headers=headers)
        await until(lambda: served.seen.events)
    event: WebhookEvent = served.seen.events[0]
    assert (status, data) == (202, {"id": event.id, "topic": "webhook/deploy/site"})
    assert (event.method, event.path, event.topic) == ("POST", "/deploy/site", "webhook/deploy/site")
    assert event.query == {"ref": "main", "x": "2", "y": ""}
    assert event.headers["x-thing"] == "one"
    assert event.json() == {"ref": "main"}


async def test_the_root_path_is_the_bare_topic() -> None:
    async with serving() as served:
        assert (await served.send("/"))[1]["topic"] == "webhook"


async def test_ids_are_unique_and_those_of_the_sender_are_kept() -> None:
    async with serving(verify=GitHub(SECRET)) as served:
        first = (await served.send(headers=signature(b"")))[1]["id"]
        second = (await served.send(headers=signature(b"")))[1]["id"]
        given = (await served.send(headers=signature(b"") | {"X-GitHub-Delivery": "72d3162e"}))[1]["id"]
    assert len({first, second}) == 2
    assert given == "72d3162e"


async def test_signed_requests_are_accepted_and_others_get_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lifecycle")
    async with serving(verify=GitHub(SECRET)) as served:
        assert (await served.send(body=b"good", headers=signature(b"good")))[0] == 202
        for headers in ({}, signature(b"bad"), {"X-Hub-Signature-256": "sha256=ü"}):
            status, data, _ = await served.send(body=b"good", headers=headers)
            assert (status, list(data)) == (401, ["error"])
        await until(lambda: served.seen.events)
    assert [event.body for event in served.seen.events] == [b"good"]
    assert "refused POST '/deploy' from 127.0.0.1: 401" in caplog.text
    assert "sha256=" not in caplog.text
    assert SECRET.decode() not in caplog.text


async def test_refused_requests_are_logged_without_query_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(paths=["deploy"]) as served:
        assert (await served.send("/depoly?token=swordfish"))[0] == 404
        assert (await served.send("/" + "x" * 5000 + "?swordfish"))[0] == 404
    assert "refused POST '/depoly' from 127.0.0.1: 404" in caplog.text
    assert "swordfish" not in caplog.text
    assert "x" * 200 not in caplog.text


async def test_refused_requests_are_announced_and_counted_by_status() -> None:
    refused: list[tuple[object, int, str]] = []

    @hooks.webhook_refused.connect
    def note(source: object, *, status: int, reason: str) -> None:
        refused.append((source, status, reason))

    try:
        how: dict[str, Any] = {"verify": GitHub(SECRET), "paths": ["deploy"], "limits": Limits(body=9)}
        async with PrometheusMetrics() as metrics, serving(**how) as served:
            assert (await served.send("/depoly"))[0] == 404
            assert (await served.send(headers={"X-Hub-Signature-256": "sha256=00"}))[0] == 401
            assert (await served.send(headers={"X-Hub-Signature-256": "sha256=00"}))[0] == 401
            assert (await served.send(body=b"0123456789"))[0] == 413
            reader, writer = await asyncio.open_connection("127.0.0.1", int(served.source.url.rpartition(":")[2]))
            writer.write(b"nonsense\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.0 400")
            writer.close()
            await writer.wait_closed()
            labels = {"source": served.source.name}
            counts = {
                status: metrics.registry.get_sample_value(
                    "lifecycle_webhook_refused_total", labels | {"status": status}
                )
                for status in ("400", "401", "404", "413", "429")
            }
    finally:
        hooks.webhook_refused.disconnect(note)
    assert counts == {"400": 1, "401": 2, "404": 1, "413": 1, "429": None}
    assert [status for _, status, _ in refused] == [404, 401, 401, 413, 400]
    assert {source for source, _, _ in refused} == {served.source}
    assert refused[0][2] == "nothing exists at this path"


async def test_a_function_verifies_and_must_return_text() -> None:
    def token(headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        if headers.get("x-token") != "open sesame":
            raise VerificationError("no sesame")
        return "from-token"

    async with serving(verify=token) as served:
        assert (await served.send(headers={"X-Token": "open sesame"}))[1]["id"] == "from-token"
        assert (await served.send())[:2] == (401, {"error": "no sesame"})
    for forgetful in (None, False, True):
        async with serving(verify=lambda _headers, _body, *, now, result=forgetful: result) as served:
            assert (await served.send())[0] == 401


async def test_an_error_of_a_verifier_rejects_the_request_without_details(caplog: pytest.LogCaptureFixture) -> None:
    def broken(headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        raise RuntimeError("a detail of ours")

    async with serving(verify=broken) as served:
        assert (await served.send())[:2] == (500, {"error": "internal error"})
    assert not served.seen.events
    assert "a detail of ours" in caplog.text


async def test_unknown_paths_are_404_and_other_methods_405() -> None:
    async with serving(paths=["deploy", "/a/b"], methods=("post", "PUT")) as served:
        assert (await served.send("/a/b"))[0] == 202
        assert (await served.send("/deploy", method="PUT"))[0] == 202
        assert (await served.send("/other"))[0] == 404
        assert (await served.send("/deploy/"))[0] == 404
        for method in ("GET", "HEAD", "DELETE", "OPTIONS", "PATCH"):
            status, _, headers = await served.send("/deploy", method=method)
            assert (status, headers["Allow"]) == (405, "POST, PUT")


async def test_an_unhandled_topic_is_named_in_the_404() -> None:
    source = WebhookSource(port=0)
    async with aiohttp.ClientSession() as client:
        served = Served(source, client)
        served.router.handle("webhook/deploy", served.seen)
        async with running(served.router):
            assert (await served.send("/deploy"))[0] == 202
            assert (await served.send("/depoly"))[:2] == (404, {"error": "nothing handles 'webhook/depoly'"})


@pytest.mark.usefixtures("every_loop")
async def test_a_body_at_the_limit_is_accepted_and_one_byte_more_is_413() -> None:
    async with serving(limits=Limits(body=1000)) as served:
        assert (await served.send(body=b"x" * 1000))[0] == 202
        assert (await served.send(body=b"x" * 1001))[0] == 413


async def test_a_compressed_body_is_415_and_identity_is_accepted() -> None:
    async with serving(verify=GitHub(SECRET)) as served:
        for encoding, expected in (("gzip", 415), ("identity, br", 415), ("Identity", 202)):
            headers = signature(b"x") | {"Content-Encoding": encoding}
            assert (await served.send(body=b"x", headers=headers))[0] == expected


async def test_a_web_page_cannot_post_to_a_source_without_a_verifier() -> None:
    async with serving() as served:
        assert (await served.send(headers={"Origin": "https://example.org"}))[0] == 401
        assert (await served.send(headers={"Sec-Fetch-Site": "cross-site"}))[0] == 401
        assert (await served.send(headers={"Sec-Fetch-Site": "none"}))[0] == 202
    async with serving(verify=GitHub(SECRET)) as served:
        assert (await served.send(headers=signature(b"") | {"Origin": "https://example.org"}))[0] == 202


async def test_too_many_requests_get_429_with_retry_after() -> None:
    async with serving(limits=Limits(rate=(2, 3600.0))) as served:
        assert [(await served.send())[0] for _ in range(2)] == [202, 202]
        status, data, headers = await served.send()
    assert (status, list(data)) == (429, ["error"])
    assert 1700 < int(headers["Retry-After"]) <= 1800


async def test_senders_wait_for_a_full_lane_up_to_a_limit() -> None:
    """One event is being handled, one waits in the lane, and two requests wait for space. The fifth is rejected."""
    go_on, handled = asyncio.Event(), Recorder()

    async def slow(event: WebhookEvent) -> None:
        await go_on.wait()
        handled(event)

    verify = Verifier()
    async with serving(handle=slow, limits=Limits(pending=2), verify=verify) as served, asyncio.TaskGroup() as group:
        assert [(await served.send())[0] for _ in range(2)] == [202, 202]
        waiting = [group.create_task(served.send()) for _ in range(2)]
        await until(lambda: verify.requests == 4)
        status, _, headers = await served.send()
        assert (status, headers["Retry-After"]) == (429, "1")
        assert not any(task.done() for task in waiting)
        go_on.set()
        assert [(await task)[0] for task in waiting] == [202, 202]
        await until(lambda: len(handled.events) == 4)


async def test_an_event_that_a_busy_handler_drops_is_not_accepted() -> None:
    go_on = asyncio.Event()
    source = WebhookSource(port=0)
    async with aiohttp.ClientSession() as client:
        served = Served(source, client)

        async def slow(_event: WebhookEvent) -> None:
            await go_on.wait()

        served.router.handle("webhook/deploy", slow, busy="drop")
        async with running(served.router):
            assert (await served.send())[0] == 202
            status, _, headers = await served.send()
            assert (status, headers["Retry-After"]) == (503, "1")
            go_on.set()


async def test_waiting_requests_are_accepted_while_the_router_drains() -> None:
    verify = Verifier()
    go_on, handled = asyncio.Event(), Recorder()

    async def slow(event: WebhookEvent) -> None:
        await go_on.wait()
        handled(event)

    async with asyncio.TaskGroup() as group:
        async with serving(handle=slow, verify=verify) as served:
            assert [(await served.send())[0] for _ in range(2)] == [202, 202]
            waiting = [group.create_task(served.send()) for _ in range(2)]
            await until(lambda: verify.requests == 4)
            served.router.stop()
            await asyncio.sleep(0.02)
            async with aiohttp.ClientSession() as client, client.post(served.source.url) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            go_on.set()
        assert [(await task)[0] for task in waiting] == [202, 202]
    assert len(handled.events) == 4


async def test_a_source_that_is_held_and_suspended_accepts_requests_when_both_have_ended() -> None:
    async with serving() as served:
        source, router, statuses = served.source, served.router, list[int]()
        suspender = SuspendHandler()
        suspender.manage(source)

        async def ask() -> None:
            statuses.append((await served.send())[0])

        await suspender.suspend()
        router.hold_source(source.name)
        await ask()
        router.release_source(source.name)
        await ask()
        router.hold_source(source.name)
        await suspender.resume()
        await ask()
        router.release_source(source.name)
        await ask()
        assert statuses == [503, 503, 503, 202]


async def test_requests_that_wait_at_the_end_get_503_with_retry_after() -> None:
    """The handler never finishes and the router is cancelled, so the sender must receive a rejection."""
    source = WebhookSource(port=0)
    started = asyncio.Event()

    async def emit(_event: object) -> Any:
        started.set()
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group, aiohttp.ClientSession() as client:
        async with source:
            url = source.url
            run = group.create_task(source.run(emit))

            async def send() -> tuple[int, str]:
                async with client.post(url) as answer:
                    return answer.status, answer.headers["Retry-After"]

            sent = group.create_task(send())
            await started.wait()
            run.cancel()
        assert await sent == (503, "1")


async def test_a_request_before_the_router_takes_events_waits_for_it() -> None:
    verify = Verifier()
    source = WebhookSource(port=0, verify=verify)
    seen = Recorder()
    router = Router()
    router.handle("webhook", seen)
    async with source, aiohttp.ClientSession() as client, asyncio.TaskGroup() as group:
        sent = group.create_task(_status(client, source.url))
        await until(lambda: verify.requests)
        run = group.create_task(source.run(router.emit))
        assert await sent == 202
        run.cancel()
    assert router.state().routed == 1


async def _status(client: aiohttp.ClientSession, url: str) -> int:
    async with client.post(url) as answer:
        return answer.status


async def test_a_source_that_is_not_entered_listens_while_it_runs() -> None:
    source, router = WebhookSource(port=0), Router()
    router.handle("webhook", Recorder())
    task = asyncio.create_task(source.run(router.emit))
    await until(lambda: not source.url.endswith(":0"))
    url = source.url
    async with aiohttp.ClientSession() as client:
        assert await _status(client, url) == 202
        source.close()
        await task
        with pytest.raises(aiohttp.ClientConnectionError):
            await _status(client, url)


async def test_it_can_be_started_again() -> None:
    source = WebhookSource(port=0)
    for _ in range(2):
        async with aiohttp.ClientSession() as client:
            served = Served(source, client)
            served.router.handle("webhook/**", served.seen)
            async with running(served.router):
                assert (await served.send())[0] == 202


async def test_an_idle_connection_does_not_delay_the_end() -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.source.url.rpartition(":")[2]))
        await served.send()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_a_port_that_is_taken_fails_the_start_and_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        router = Router()
        router.add_source(WebhookSource(port=port))
        with pytest.raises(SourceFailed, match=f"port {port} on 127.0.0.1 is in use by another program") as failed:
            await router.run()
    assert isinstance(failed.value.__cause__, OSError)


async def test_an_address_of_another_machine_fails_the_start() -> None:
    source = WebhookSource("192.0.2.1", 0, verify=GitHub(SECRET))
    with pytest.raises(OSError, match="not an address of this machine"):
        async with source:
            pass


def test_aiohttp_is_loaded_only_when_a_source_starts() -> None:
    code = (
        "import sys; from lifecycle import GitHub, WebhookSource; WebhookSource(verify=GitHub('x')); "
        "sys.exit('aiohttp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
