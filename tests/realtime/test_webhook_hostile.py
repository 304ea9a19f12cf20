"""Webhooks with hostile senders, byte by byte: no unsigned request is accepted, and no resource leaks."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import resource
import socket
import ssl
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from subprocess import run
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from lifecycle.control import Router
from lifecycle.sources import GitHub, Limits, WebhookSource
from lifecycle.testing import Recorder, running
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


SECRET = b"secret"


class Wire:
    """A connection on which a test sends arbitrary bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int:
        """Read the next response, and return its status."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                await self.reader.readexactly(int(line[15:]))
        return int(head.split()[1])

    async def wait_end(self) -> bytes:
        """Read until the server closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    async def ends(self) -> bool:
        await self.wait_end()
        return True


class Served:
    def __init__(self, source: WebhookSource, seen: Recorder, stack: AsyncExitStack) -> None:
        self.source, self.seen, self._stack = source, seen, stack

    async def connect(self) -> Wire:
        port = int(self.source.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._stack.push_async_callback(_hang_up, writer)
        return Wire(reader, writer)

    async def ask(self, data: bytes) -> int:
        wire = await self.connect()
        wire.send(data)
        return await wire.status()

    async def invited(self, body: bytes) -> Wire:
        """Return a client that has sent its headers, and whose body the server has requested."""
        wire = await self.connect()
        wire.send(request(body, extra=b"Expect: 100-continue\r\n")[: -len(body)])
        assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        return wire

    async def is_well(self) -> bool:
        return await self.ask(request(b"well")) == 202


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def serving(**options: Any) -> AsyncGenerator[Served]:
    options.setdefault("verify", GitHub(SECRET))
    source, seen, router = WebhookSource(port=0, **options), Recorder(), Router()
    router.add_source(source)
    router.handle("webhook/**", seen)
    async with running(router), AsyncExitStack() as stack, asyncio.timeout(30):
        yield Served(source, seen, stack)


def request(body: bytes = b"", *, extra: bytes = b"", path: bytes = b"/deploy") -> bytes:
    signature = hmac.new(SECRET, body, hashlib.sha256).hexdigest().encode()
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nX-Hub-Signature-256: sha256=%b\r\n%b\r\n%b" % (
        path,
        len(body),
        signature,
        extra,
        body,
    )


@pytest.fixture
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the process to 64 descriptors, of which clients may use 32."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return the log, after checking that no client caused a message above INFO."""
    caplog.set_level(logging.DEBUG)
    return caplog


def assert_quiet(caplog: pytest.LogCaptureFixture, above: int = logging.INFO) -> None:
    assert [record.getMessage() for record in caplog.records if record.levelno > above] == []


# -- malformed HTTP -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00" * 100 + b"\r\n\r\n",
        b"POST /deploy HTTP/9.9\r\n\r\n",
        b"POST /deploy HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /deploy HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /deploy HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"POST /deploy HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /deploy HTTP/1.1\r\nA\x00B: c\r\n\r\n",
        b"POST /deploy HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"POST /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /deploy HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(1000)) + b"\r\n",
        b"POST /d\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_invalid_requests_are_refused_without_a_log_line(data: bytes, quiet: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        wire = await served.connect()
        wire.send(data)
        assert 400 <= await wire.status() < 500
        assert await served.is_well()
    assert [event.body for event in served.seen.events] == [b"well"]
    assert_quiet(quiet)


async def test_headers_without_an_end_are_refused(quiet: pytest.LogCaptureFixture) -> None:
    """The required version of aiohttp limits headers. Earlier versions used as much memory as was sent."""
    async with serving(limits=Limits(header_timeout=3600.0)) as served:
        assert await served.ask(b"POST /deploy HTTP/1.1\r\n" + b"X: y\r\n" * 1000) == 400
        assert await served.is_well()
    assert_quiet(quiet)


async def test_an_error_does_not_repeat_the_request() -> None:
    async with serving() as served:
        wire = await served.connect()
        wire.send(b"POST <script> HTTP/9.9\r\n\r\n")
        answer = await wire.wait_end()
    assert b"script" not in answer
    assert b"aiohttp" not in answer
    assert answer.endswith(b'{"error": "the request is malformed"}')


@pytest.mark.parametrize(
    "value", [b"sha256=\xff\xfe\xfd", b"sha256=\xc3\xbc", b"\xe2\x82\xac", b"sha256=" + b"\xff" * 64, b"sha256=\x80"]
)
async def test_header_values_outside_ascii_are_refused(value: bytes, quiet: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        assert await served.ask(b"POST /deploy HTTP/1.1\r\nHost: x\r\nX-Hub-Signature-256: %b\r\n\r\n" % value) == 401
        assert await served.ask(request(b"body", extra=b"X-Other: \xff\r\nX-GitHub-Delivery: \xff\r\n")) == 202
    event = served.seen.events[0]
    assert event.headers["x-other"] == "\udcff"
    assert event.id.isascii()
    assert_quiet(quiet)


async def test_a_second_signature_does_not_hide_the_first() -> None:
    async with serving() as served:
        assert await served.ask(request(b"body", extra=b"X-Hub-Signature-256: sha256=00\r\n")) == 401


@pytest.mark.parametrize(
    "path", [b"//", b"/a//b", b"/../etc", b"/%2e%2e", b"/*", b"/a%2Fb", b"/%00", b"/%ff", b"/%0d%0aX:y", b"*"]
)
async def test_paths_that_cannot_be_topics_are_404(path: bytes) -> None:
    async with serving() as served:
        assert await served.ask(request(b"x", path=path)) in {400, 404}
    assert not served.seen.events


async def test_connect_and_upgrade_are_refused() -> None:
    async with serving() as served:
        assert await served.ask(b"CONNECT host:443 HTTP/1.1\r\nHost: host\r\n\r\n") in {400, 404, 405}
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
        assert await served.ask(b"GET /deploy HTTP/1.1\r\nHost: x\r\n" + upgrade + b"\r\n") == 405
        assert await served.is_well()


# -- size --------------------------------------------------------------------------------------------------------


async def test_a_large_content_length_is_refused_before_the_body_is_sent() -> None:
    async with serving(limits=Limits(body=1000)) as served:
        assert await served.ask(b"POST /deploy HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n") == 413


async def test_a_chunked_body_is_cut_at_the_limit_while_it_is_still_being_sent() -> None:
    async with serving(limits=Limits(body=1000)) as served:
        wire = await served.connect()
        wire.send(b"POST /deploy HTTP/1.1\r\nHost: x\r\nX-Hub-Signature-256: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        wire.send(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        wire.send(b"1\r\nx\r\n")
        assert await wire.status() == 413


async def test_a_chunked_body_within_the_limit_is_accepted() -> None:
    body = b"hello world"
    head = request(body).replace(b"Content-Length: 11", b"Transfer-Encoding: chunked")[: -len(body)]
    async with serving() as served:
        wire = await served.connect()
        for part in (head, b"5\r\nhello\r\n", b"6;x=y\r\n world\r\n", b"0\r\n\r\n"):
            wire.send(part)
            await asyncio.sleep(0.001)
        assert await wire.status() == 202
    assert served.seen.events[0].body == body


CHUNKED = b"POST /deploy HTTP/1.1\r\nHost: x\r\nX-Hub-Signature-256: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_client_whose_body_is_mostly_framing_is_cut_off(quiet: pytest.LogCaptureFixture) -> None:
    """The cost of a chunk does not depend on its size, so a body with one-byte chunks would take seconds."""
    async with serving() as served:
        wire = await served.connect()
        wire.send(CHUNKED + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")
        assert await wire.wait_end() == b""
        assert await served.is_well()
    assert_quiet(quiet)


async def test_small_chunks_of_one_client_leave_turns_to_others() -> None:
    body = b"abcde" * 40_000
    head = request(body).replace(b"Content-Length: 200000", b"Transfer-Encoding: chunked")[: -len(body)]
    async with serving() as served:
        slow = await served.connect()
        slow.send(head[:-2] + b"Expect: 100-continue\r\n\r\n")
        assert await slow.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        slow.send(b"5\r\nabcde\r\n" * 40_000 + b"0\r\n\r\n")
        assert await served.is_well()
        assert await slow.status() == 202
    assert [event.body for event in served.seen.events] == [b"well", body]


async def test_small_chunks_of_many_clients_leave_turns_to_others() -> None:
    """In each iteration of the loop, all clients together parse a limited number of bytes."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    body = b"abcde" * 10_000
    head = request(body).replace(b"Content-Length: 50000", b"Transfer-Encoding: chunked")[: -len(body)]
    async with serving() as served:
        slow = [await served.connect() for _ in range(16)]
        counting = asyncio.create_task(count())
        for wire in slow:
            wire.send(head + b"5\r\nabcde\r\n" * 10_000 + b"0\r\n\r\n")
        assert [await wire.status() for wire in slow] == [202] * 16
        counting.cancel()
    # 1.6 MB of chunks in turns of 16 KiB.
    assert turns >= 12


async def test_a_large_body_in_one_piece_arrives_whole() -> None:
    body = bytes(range(256)) * 4000
    async with serving() as served:
        assert await served.ask(request(body)) == 202
    assert served.seen.events[0].body == body


async def test_the_body_of_a_refused_client_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(aiohttp.StreamReader, "feed_data", lambda _, data, *__: parsed.append(data))
    async with serving() as served:
        wire = await served.connect()
        wire.send(b"POST /deploy HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert await wire.status() == 401
        wire.send(b"1\r\nx\r\n" * 50_000)
        await wire.writer.drain()
        wire.writer.write_eof()
        assert await wire.ends()
    assert parsed == []


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"x,chunked"])
async def test_a_transfer_coding_that_is_not_decoded_is_refused(coding: bytes) -> None:
    """If the request were accepted, its handler would receive compressed bytes without a header that declares them."""
    async with serving() as served:
        head = request(b"hello").replace(b"Content-Length: 5", b"Transfer-Encoding: " + coding)[: -len(b"hello")]
        assert await served.ask(head + b"5\r\nhello\r\n0\r\n\r\n") == 501
    assert not served.seen.events


async def test_malformed_chunks_are_refused(quiet: pytest.LogCaptureFixture) -> None:
    head = b"POST /deploy HTTP/1.1\r\nHost: x\r\nX-Hub-Signature-256: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(limits=Limits(body_timeout=0.1)) as served:
        assert await served.ask(head + b"zz\r\n") == 400
        wire = await served.connect()
        wire.send(head + b"5\r\nhello\r\n")
        await asyncio.sleep(0.01)
        wire.send(b"zz\r\n")
        # When aiohttp's parser gives up, the code that reads the body is not notified, so the time limit ends the read.
        assert await wire.status() in {400, 408}
    assert_quiet(quiet)


async def test_expect_100_continue_is_answered() -> None:
    """A client that is rejected after sending ``Expect: 100-continue`` never sends the body."""
    body = b"x" * 100
    expecting = request(body, extra=b"Expect: 100-continue\r\n")[: -len(body)]
    async with serving(paths=["deploy"]) as served:
        wire = await served.connect()
        wire.send(expecting)
        assert await wire.status() == 100
        wire.send(body)
        assert await wire.status() == 202
        assert await served.ask(expecting.replace(b"/deploy", b"/other")) == 404
        assert await served.ask(expecting.replace(b"100\r\n", b"10000000\r\n", 1)) == 413
        assert await served.ask(expecting.replace(b"100-continue", b"a miracle")) == 417


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        (b"POST /other", b"", 404),
        (b"PUT /deploy", b"", 405),
        (b"POST /deploy", b"Content-Encoding: gzip\r\n", 415),
        (b"POST /deploy", b"", 401),
        (b"POST /deploy", b"X-Hub-Signature: sha1=00\r\n", 401),
    ],
)
async def test_a_request_without_credentials_is_refused_before_its_body(
    line: bytes, headers: bytes, status: int
) -> None:
    """The server does not wait for a body that never arrives."""
    async with serving(paths=["deploy"], limits=Limits(body_timeout=3600.0)) as served:
        assert (
            await served.ask(line + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n" + headers + b"\r\n") == status
        )


async def test_a_web_page_is_refused_without_its_body() -> None:
    head = b"POST /deploy HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nOrigin: http://x\r\n\r\n"
    async with serving(verify=None, limits=Limits(body_timeout=3600.0)) as served:
        assert await served.ask(head) == 401


async def test_without_a_verifier_only_the_servers_own_names_are_served() -> None:
    """A page whose name has been rebound to loopback sends GET requests without Origin and without Sec-Fetch-Site."""

    def asking(*hosts: bytes) -> bytes:
        lines = b"".join(b"Host: %b\r\n" % host for host in hosts)
        return b"GET /deploy HTTP/1.1\r\n%b\r\n" % lines

    async with serving(verify=None, methods=("GET",)) as served:
        for hosts in [
            (b"evil.example",),
            (b"evil.example:80",),
            (b"127.0.0.1.evil.example",),
            (),
            (b"x", b"localhost"),
        ]:
            assert await served.ask(asking(*hosts)) in {400, 403}, hosts
        assert await served.ask(b"GET http://evil.example/deploy HTTP/1.1\r\nHost: evil.example\r\n\r\n") == 403
        assert not served.seen.events
        for host in (b"127.0.0.1:8080", b"localhost", b"[::1]:22"):
            assert await served.ask(asking(host)) == 202
    async with serving(verify=lambda _headers, _body, *, now: "id", methods=("GET",), dedupe=0) as served:
        assert await served.ask(asking(b"hooks.example")) == 202


async def test_a_verifier_function_gets_the_body_in_any_case() -> None:
    def verify(headers: Any, body: bytes, *, now: float) -> str:
        assert body == b"hello"
        return "id"

    async with serving(verify=verify) as served:
        wire = await served.connect()
        wire.send(b"POST /deploy HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        await asyncio.sleep(0.01)
        wire.send(b"hello")
        assert await wire.status() == 202


# -- requests that are not completed ------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [5, 40, -1])
async def test_disconnects_at_any_byte_leave_no_trace(cut: int, quiet: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        for turn in range(40):
            wire = await served.connect()
            wire.send(request(b"half a body")[:cut])
            # In half of the cases, the server detects the connection and its end in the same loop iteration.
            await asyncio.sleep(0.001 * (turn % 2))
            wire.writer.transport.abort() if turn % 4 < 2 else wire.writer.close()
        assert await served.is_well()
    assert [event.body for event in served.seen.events] == [b"well"]
    assert_quiet(quiet)


async def test_a_disconnect_before_the_body_is_waited_for_is_not_an_error(
    quiet: pytest.LogCaptureFixture,
) -> None:
    """The data and the end arrive in the same loop iteration, so the connection is closed when the request begins."""
    async with serving() as served:
        wire = await served.connect()
        clients = served.source._server.http.clients  # type: ignore[union-attr]
        await until(lambda: len(clients))
        (theirs,) = clients
        data = request(b"half a body")[:-4]
        theirs.get_buffer(-1)[: len(data)] = data
        theirs.buffer_updated(len(data))
        assert theirs.transport is not None
        theirs.transport.abort()
        await wire.ends()
        assert await served.is_well()
    assert [event.body for event in served.seen.events] == [b"well"]
    assert_quiet(quiet)


async def test_clients_that_connect_together_are_accepted_together() -> None:
    async with serving() as served, AsyncExitStack() as stack:
        address = "127.0.0.1", int(served.source.url.rpartition(":")[2])
        # These calls block the loop, so no connection is accepted in between.
        for _ in range(100):
            stack.enter_context(socket.create_connection(address))
        clients, turns = served.source._server.http.clients, 0  # type: ignore[union-attr]
        while len(clients) < 100:
            turns += 1
            await asyncio.sleep(0)
        # uvloop accepts one client per turn.
        assert turns <= (10 if isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop) else 200)


async def test_a_client_that_does_not_send_headers_is_cut_off() -> None:
    async with serving(limits=Limits(header_timeout=0.05)) as served:
        silent, slow = await served.connect(), await served.connect()
        slow.send(b"POST /deploy HTTP/1.1\r\nX: ")
        assert await silent.wait_end() == b""
        assert await slow.wait_end() == b""


async def test_a_client_that_keeps_dripping_headers_is_cut_off_too() -> None:
    async with serving(limits=Limits(header_timeout=0.1)) as served:
        wire = await served.connect()
        ended = asyncio.create_task(wire.ends())
        wire.send(b"POST /deploy HTTP/1.1\r\nX: ")
        while not ended.done():
            wire.send(b"x")
            await asyncio.sleep(0.005)
        assert await ended


async def test_a_client_that_does_not_send_its_body_gets_408() -> None:
    async with serving(limits=Limits(body_timeout=0.05)) as served:
        wire = await served.connect()
        wire.send(request(b"half a body")[:-4])
        assert await wire.status() == 408
        assert await wire.ends()
    assert not served.seen.events


async def test_an_idle_connection_is_used_again_and_closed_in_the_end() -> None:
    async with serving(limits=Limits(header_timeout=1.0)) as served:
        wire = await served.connect()
        for _ in range(3):
            wire.send(request(b"x"))
            assert await wire.status() == 202
        assert await wire.wait_end() == b""


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as served:
        wire = await served.connect()
        wire.send(request(b"1") + request(b"2", path=b"/a//b") + request(b"3"))
        assert [await wire.status() for _ in range(3)] == [202, 404, 202]
    assert [event.body for event in served.seen.events] == [b"1", b"3"]


async def test_requests_of_a_client_that_does_not_wait_for_answers_are_not_read_without_limit() -> None:
    """The required version of aiohttp stops reading. Earlier versions read all of them while the first is handled."""
    entered, released = asyncio.Event(), asyncio.Event()

    async def handle(_: object) -> None:
        entered.set()
        await released.wait()

    source, router = WebhookSource(port=0, verify=GitHub(SECRET), answer="handled"), Router()
    router.add_source(source)
    router.handle("webhook/**", handle)
    async with running(router), AsyncExitStack() as stack:
        wire = await Served(source, Recorder(), stack).connect()
        wire.send(request(b"first"))
        await entered.wait()
        wire.send(request(b"x") * 60_000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await wire.writer.drain()
        wire.writer.transport.abort()
        released.set()


async def test_hundreds_of_slow_clients_do_not_block_fast_ones() -> None:
    """Some clients send no headers, others half a body. They are disconnected, while a fast sender is served."""
    async with serving(limits=Limits(header_timeout=1.0, body_timeout=1.0)) as served:
        wires = [await served.connect() for _ in range(300)]
        for number, wire in enumerate(wires):
            wire.send((b"POST /dep", request(b"half a body")[:-4], b"")[number % 3])
        for _ in range(10):
            assert await served.is_well()
        assert all(await asyncio.gather(*(wire.ends() for wire in wires)))
    assert {event.body for event in served.seen.events} == {b"well"}


@pytest.mark.usefixtures("few_descriptors")
async def test_a_connection_above_the_limit_closes_the_longest_waiting_one() -> None:
    async with serving() as served:
        wires = [await served.connect() for _ in range(34)]
        assert [await wire.wait_end() for wire in wires[:2]] == [b"", b""]
        assert not any(wire.reader.at_eof() for wire in wires[2:])


@pytest.mark.usefixtures("few_descriptors")
async def test_idle_clients_that_reconnect_do_not_lock_out_a_slow_client() -> None:
    """Below the limit, no client is disconnected before its time is over."""
    async with serving() as served:
        slow, *idle = [await served.connect() for _ in range(20)]
        for wire in idle:
            wire.writer.close()
            await served.connect()
        slow.send(request(b"slow"))
        assert await slow.status() == 202
    assert [event.body for event in served.seen.events] == [b"slow"]


@pytest.mark.usefixtures("few_descriptors")
async def test_a_flood_of_clients_that_reconnect_leaves_time_for_a_request() -> None:
    """Further clients wait to be accepted until those above the limit have had some time."""

    async def reconnect() -> None:
        while True:
            await (await served.connect()).wait_end()

    async with serving() as served, asyncio.TaskGroup() as flood:
        tasks = [flood.create_task(reconnect()) for _ in range(64)]
        for _ in range(3):
            wire = await served.connect()
            wire.send(request(b"slow")[:20])
            await asyncio.sleep(0.05)
            wire.send(request(b"slow")[20:])
            assert await wire.status() == 202
        for task in tasks:
            task.cancel()
    assert len(served.seen.events) == 3


@pytest.mark.usefixtures("few_descriptors")
async def test_clients_of_one_server_do_not_block_another() -> None:
    async with serving() as crowded, serving() as full, serving() as other:
        wires = [await served.connect() for served in (crowded, full) for _ in range(16)]
        assert await other.is_well()
        assert await wires[0].wait_end() == b""


@pytest.mark.usefixtures("few_descriptors")
async def test_slow_bodies_of_all_servers_count_as_waiting_and_the_oldest_are_cut() -> None:
    async with serving() as first, serving() as second:
        # The clients have not sent a byte of their bodies yet.
        wires = [await (first, second)[number % 2].invited(b"body") for number in range(34)]
        assert [await wire.wait_end() for wire in wires[:2]] == [b"", b""]
        for wire in wires[2:]:
            wire.send(b"body")
            assert await wire.status() == 202


@pytest.mark.usefixtures("few_descriptors")
async def test_clients_that_wait_with_their_bodies_do_not_lock_out_a_slow_body() -> None:
    async with serving() as served:
        slow = await served.invited(b"slow")
        for _ in range(20):
            (await served.connect()).send(request(b"body", extra=b"Expect: 100-continue\r\n")[:-4])
        # The server has handled all requests that it can read.
        await asyncio.sleep(0.1)
        slow.send(b"slow")
        assert await slow.status() == 202


async def test_a_body_that_is_still_sent_at_the_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifecycle.sources._webhook_server._GRACE", 0.01)
    monkeypatch.setattr("lifecycle.sources._webhook_server._LAST_GRACE", 0.01)
    async with AsyncExitStack() as held:
        async with serving() as served:
            wire = await Served(served.source, served.seen, held).invited(b"half a body")
        assert await wire.status() == 503


@pytest.mark.usefixtures("few_descriptors")
async def test_tls_handshakes_that_never_end_count_as_waiting() -> None:
    # The server has no certificate, because no handshake gets that far.
    async with serving(ssl_context=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) as served:
        wires = [await served.connect() for _ in range(34)]
        assert [await wire.wait_end() for wire in wires[:2]] == [b"", b""]
        assert not any(wire.reader.at_eof() for wire in wires[2:])


async def test_slow_bodies_share_bounded_memory_and_the_oldest_ends() -> None:
    async with serving(limits=Limits(body=1000, pending=2)) as served:
        # A second round makes leaked memory visible.
        for _ in range(2):
            wires = [await served.invited(b"x" * 1000) for _ in range(4)]
            for wire in wires:
                wire.send(b"x" * 800)
                await asyncio.sleep(0.02)
            # Two of the bodies fit into 2000 bytes.
            assert [await wire.status() for wire in wires[:2]] == [408, 408]
            for wire in wires[2:]:
                wire.send(b"x" * 200)
                assert await wire.status() == 202


@pytest.mark.engine("openssl")
@pytest.mark.usefixtures("every_loop")
async def test_tls_carries_several_requests_and_a_large_body(tmp_path: Path) -> None:
    """The first request may arrive together with the end of the handshake."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    create = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    run([*create, "-keyout", key, "-out", certificate, *subject], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=certificate)
    async with serving(ssl_context=context) as served:
        port = int(served.source.url.rpartition(":")[2])
        for _ in range(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            wire = Wire(reader, writer)
            for body in (b"small", b"x" * 1_000_000):
                wire.send(request(body))
                assert await wire.status() == 202
            await _hang_up(writer)
    assert [len(event.body) for event in served.seen.events] == [5, 1_000_000] * 10


@pytest.mark.usefixtures("every_loop")
@pytest.mark.parametrize("hello", [b"", b"\x16\x03\x01\x02\x00\x01\x00", b"not TLS at all\r\n\r\n"])
async def test_disconnects_during_the_tls_handshake_leave_no_trace(
    hello: bytes, quiet: pytest.LogCaptureFixture
) -> None:
    async with serving(ssl_context=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) as served:
        clients = served.source._server.http.clients  # type: ignore[union-attr]
        for turn in range(8):
            wire = await served.connect()
            wire.send(hello)
            await asyncio.sleep(0.001 * (turn % 2))
            wire.writer.transport.abort() if turn % 4 < 2 else wire.writer.close()
        # The server closes while the last handshakes have not ended.
        wires = [await served.connect() for _ in range(2)]
        await until(lambda: len(clients) == 2)
    assert [await wire.wait_end() for wire in wires] == [b"", b""]
    assert_quiet(quiet)


async def test_idle_clients_do_not_split_a_body_into_small_pieces() -> None:
    """Clients share the bytes that are parsed per loop iteration only while they send."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    body = b"x" * 1_000_000
    async with serving() as served:
        for _ in range(200):
            await served.connect()
        wire = await served.invited(body)
        counting = asyncio.create_task(count())
        wire.send(body)
        assert await wire.status() == 202
        counting.cancel()
    # In pieces of 655 bytes, it would take 1500.
    assert turns < 500
