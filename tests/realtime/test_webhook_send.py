"""`lifecycle webhook send` against a real receiver, and against other servers."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from lifecycle.cli import main
from lifecycle.control import Router
from lifecycle.sources import GitHub, GitLab, Hmac, Slack, StandardWebhooks, Stripe, WebhookSource
from lifecycle.testing import Recorder, running

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

SHARED = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PRIVATE = "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk="


async def send(url: str, *options: str, scheme: str = "github") -> int:
    line = ["webhook", "send", url, "--scheme", scheme, "--secret-env", "WEBHOOK_SECRET", *options]
    return await asyncio.to_thread(main, line)


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", "hush")


@asynccontextmanager
async def receiving(verify: Any) -> AsyncGenerator[tuple[str, Recorder]]:
    router, seen = Router(), Recorder()
    source = WebhookSource(port=0, verify=verify)
    router.add_source(source)
    router.handle("webhook/**", seen)
    async with running(router):
        yield source.url, seen


class Case(NamedTuple):
    scheme: str
    verify: Any
    secret: str = "hush"
    options: tuple[str, ...] = ()
    #: Whether the scheme signs the delivery id.
    has_id: bool = False


@pytest.mark.parametrize(
    "case",
    [
        Case("github", GitHub("hush"), has_id=True),
        Case("standard", StandardWebhooks(SHARED), SHARED, has_id=True),
        Case("standard", StandardWebhooks(PRIVATE), PRIVATE, has_id=True),
        Case("stripe", Stripe("hush")),
        Case("slack", Slack("hush")),
        Case("gitlab", GitLab("hüsh"), "hüsh", has_id=True),
        Case("hmac", Hmac("hush", header="X-Sig"), options=("--header", "X-Sig")),
        Case(
            "hmac",
            Hmac("hush", header="X-Sig", algorithm="sha512", encoding="base64", prefix="v="),
            options=("--header", "X-Sig", "--algorithm", "sha512", "--encoding", "base64", "--prefix", "v="),
        ),
    ],
    ids=lambda case: case.scheme,
)
async def test_signed_requests_are_accepted(
    case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", case.secret)
    async with receiving(case.verify) as (url, seen):
        options = ("--data", '{"who": "jürgen"}', *case.options)
        assert await send(f"{url}/deploy?ref=ü x", *options, scheme=case.scheme) == 0
    [event] = seen.events
    said, answer = capsys.readouterr().out.splitlines()
    assert (said, json.loads(answer)) == ("202 Accepted", {"id": event.id, "topic": "webhook/deploy"})
    assert (event.json(), event.query) == ({"who": "jürgen"}, {"ref": "ü x"})
    assert event.headers["content-type"] == "application/json"
    assert (len(event.id) == 36) is case.has_id


async def test_data_come_from_a_file_stdin_or_are_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "push.json").write_bytes(b"\xff\n@")
    async with receiving(GitHub("hush")) as (url, seen):
        assert await send(url, "--data", f"@{tmp_path / 'push.json'}") == 0
        with io.TextIOWrapper(io.BytesIO(b"\0typed")) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            assert await send(url, "--data", "@-") == 0
        assert await send(url) == 0
    assert [event.body for event in seen.events] == [b"\xff\n@", b"\0typed", b""]
    assert capsys.readouterr().err == ""


async def test_a_refusal_is_shown_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    async with receiving(GitHub("another")) as (url, seen):
        assert await send(url) == 1
    said, answer = capsys.readouterr().out.splitlines()
    assert (said, seen.events) == ("401 Unauthorized", [])
    assert "the secret is wrong or the body was changed" in json.loads(answer)["error"]


@asynccontextmanager
async def answering(answer: bytes) -> AsyncGenerator[str]:
    """Run a server that sends the same response to every client, and yield its URL."""
    calls: list[asyncio.Task[Any] | None] = []

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(asyncio.current_task())
        # A client may disconnect early.
        with suppress(ConnectionError), closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(say, "127.0.0.1") as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"
        await asyncio.gather(*filter(None, calls))


async def test_a_redirect_is_shown_and_not_followed(capsys: pytest.CaptureFixture[str]) -> None:
    answer = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 3\r\n\r\n\xffx\n"
    async with answering(answer) as url:
        assert await send(url) == 1
    assert capsys.readouterr().out == "302 Found\n\ufffdx\n"


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 99999 \r\n\r\n", b"\0" * 100_000])
async def test_an_invalid_answer_is_one_line_and_fails(answer: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    async with answering(answer) as url:
        assert await send(url) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"[lifecycle] no response from {url}: ")
    assert said.err.count("\n") == 1


async def test_a_refused_connection_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    async with answering(b"") as url:
        pass
    assert await send(url) == 1
    assert capsys.readouterr().err == f"[lifecycle] no response from {url}: Connection refused\n"
