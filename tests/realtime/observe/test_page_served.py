"""A `Dashboard` over real sockets: its responses to different clients, and its shutdown."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from lifecycle.control import Event, Router
from lifecycle.observe import Dashboard
from lifecycle.observe.http.api import api_routes
from lifecycle.observe.http.guard import HEADERS
from lifecycle.observe.http.live import page_files
from lifecycle.runtime import lifetime
from lifecycle.testing import running
from lifecycle.workers import Spec, Status, Supervisor
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

TOKEN = "a-token-of-a-user"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}
LIMIT = 30
#: The routes of the API, without a program.
NO_CONSOLE: Any = None


@asynccontextmanager
async def served(
    router: Router | None = None, host: str = "127.0.0.1", *, headers: Mapping[str, str] = RIGHT
) -> AsyncGenerator[tuple[aiohttp.ClientSession, Dashboard]]:
    """Yield a dashboard, and a client that sends ``headers`` with each request: by default, the token."""
    async with lifetime(signals=False), running(router or Router()), Dashboard(host, token=TOKEN) as dashboard:
        base = dashboard.url.replace("0.0.0.0", "127.0.0.1")
        async with aiohttp.ClientSession(base, headers=headers, timeout=aiohttp.ClientTimeout(LIMIT)) as client:
            yield client, dashboard


async def messages(answer: aiohttp.ClientResponse) -> AsyncGenerator[tuple[str, Any]]:
    name = ""
    async for line in answer.content:
        if line.startswith(b"event: "):
            name = line[7:].decode().strip()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:])


async def test_every_answer_has_the_security_headers() -> None:
    async with served() as (client, _):
        for method, path, status in (
            ("GET", "/", 200),
            ("HEAD", "/", 200),
            ("GET", "/page/app.js", 200),
            ("GET", "/page/vendor/lit-html/LICENSE", 404),
            ("GET", "/page/../dashboard.py", 404),
            ("GET", "/page/%2e%2e/dashboard.py", 404),
            ("GET", "/nowhere", 404),
            ("GET", "/api/state", 200),
            ("GET", "/api/live", 200),
            ("GET", "/api/stacks", 200),
            ("POST", "/api/command", 415),
            ("DELETE", "/api/state", 405),
        ):
            async with client.request(method, path) as answer:
                assert answer.status == status, path
                assert {name: answer.headers.get(name) for name in HEADERS} == dict(HEADERS), path
                assert "Set-Cookie" not in answer.headers
                assert "Access-Control-Allow-Origin" not in answer.headers


async def test_every_answer_with_data_needs_the_token_and_the_page_does_not() -> None:
    """A new path is closed by default: only the page's files are open."""
    paths = [(each.method, each.path.replace("{id}", "1")) for each in api_routes(NO_CONSOLE)]
    assert len(paths) > 15
    paths += [("GET", "/api/live"), ("HEAD", "/api/state"), ("GET", "/api/nowhere"), ("GET", "/elsewhere")]
    async with served(headers={}) as (client, _):
        for method, path in paths:
            async with client.request(method, path) as answer:
                assert answer.status == 401, path
                assert {name: answer.headers.get(name) for name in HEADERS} == dict(HEADERS), path
                assert answer.headers["WWW-Authenticate"] == "Bearer"
                if method != "HEAD":
                    assert await answer.json() == {
                        "error": "this request needs the program's token: send `Authorization: Bearer TOKEN`"
                    }
        for path in page_files():
            async with client.get(path) as answer:
                assert answer.status == 200, path


async def raw(dashboard: Dashboard, data: bytes) -> bytes:
    """Send ``data``, and return everything that arrives until the program closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(dashboard.url.rpartition(":")[2]))
    received = b""
    try:
        async with asyncio.timeout(LIMIT):
            writer.write(data)
            with suppress(ConnectionResetError):
                received = await reader.read()
            return received
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    "request_",
    [
        b"<script> / HTTP/1.1\r\nAccept: text/html\r\n\r\n",
        b"\x16\x03\x01\x00\r\n\r\n",
        b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: magic\r\nConnection: close\r\n\r\n",
        b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /api/state HTTP/1.0\r\n\r\n",
    ],
)
async def test_malformed_requests_get_the_same_headers_and_do_not_name_the_server(request_: bytes) -> None:
    async with served() as (_, dashboard):
        head = (await raw(dashboard, request_)).partition(b"\r\n\r\n")[0].decode()
        assert head.split()[1].startswith("4")
        for name, value in HEADERS.items():
            assert f"\r\n{name}: {value}" in head
        assert "aiohttp" not in head


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET / HTTP/1.1\r\nHost: loc", b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nHo"],
)
async def test_unfinished_headers_end_the_connection(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifecycle.observe.http.server._CLIENT_TIMEOUT", 0.05)
    async with served() as (_, dashboard):
        # On a slow machine, the server may close the connection before it has answered all requests.
        assert await raw(dashboard, begun) == b"" or b"nowhere" in begun


@pytest.fixture
def few_files() -> Iterator[None]:
    """Limit the process to a thousand open files, the usual limit."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@asynccontextmanager
async def silent(dashboard: Dashboard, count: int) -> AsyncGenerator[list[asyncio.StreamReader]]:
    """Open connections that send no request."""
    port = int(dashboard.url.rpartition(":")[2])
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    try:
        yield [reader for reader, _ in pairs]
    finally:
        for _, writer in pairs:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in pairs), return_exceptions=True)


async def test_connections_that_ask_for_nothing_take_half_of_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifecycle.observe.http.server._CLIENT_TIMEOUT", 3600.0)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 128))
    async with served() as (client, dashboard), silent(dashboard, 100) as readers, asyncio.timeout(LIMIT):
        async with client.get("/api/program") as answer:
            assert answer.status == 200
        # The newest connections stay open.
        assert await asyncio.gather(*(reader.read() for reader in readers[:36])) == [b""] * 36
        assert not any(reader.at_eof() for reader in readers[-60:])


@pytest.mark.usefixtures("few_files")
async def test_readers_of_streams_take_an_eighth_of_the_descriptors() -> None:
    ask = f"GET /api/state/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    async with served() as (client, dashboard), AsyncExitStack() as held, asyncio.timeout(LIMIT):
        for _ in range(128):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(dashboard.url.rpartition(":")[2]))
            held.callback(writer.close)
            writer.write(ask)
            await reader.readuntil(b"stream begins")
        async with client.get("/api/state/stream") as answer:
            assert answer.status == 503
            assert (await answer.json())["error"] == "128 streams are already open; close some"


async def test_a_lack_of_descriptors_is_logged_and_ends_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (_, dashboard), asyncio.timeout(LIMIT):
        reader, writer = await _connected_without_a_descriptor(dashboard, caplog)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said[0].startswith("socket.accept() out of system resource")


async def _connected_without_a_descriptor(
    dashboard: Dashboard, caplog: pytest.LogCaptureFixture
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The program cannot accept the connection at first."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    client, taken = socket.socket(), [os.dup(0)]
    try:
        # No descriptor is left below the limit.
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken[0], client.fileno()) + 50, limits[1]))
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", int(dashboard.url.rpartition(":")[2])))
        await until(lambda: caplog.records)
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    return await asyncio.open_connection(sock=client)


async def test_a_client_that_does_not_read_its_answer_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifecycle.observe.http.server._CLIENT_TIMEOUT", 0.05)
    ask = b"GET /page/vendor/dagre/dagre.esm.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with served() as (_, dashboard), asyncio.timeout(LIMIT):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", int(dashboard.url.rpartition(":")[2])))
            client.setblocking(False)
            with pytest.raises(ConnectionError):
                while True:
                    with suppress(BlockingIOError):
                        client.send(ask)
                    await asyncio.sleep(0)


async def test_a_wrong_token_is_refused_without_a_hint_of_the_right_one() -> None:
    async with served(headers={}) as (client, _):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"token={TOKEN}"}):
            async with client.post(f"/api/command?token={TOKEN}", json={"line": "status"}, headers=headers) as answer:
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"] == "Bearer"
                said = await answer.text()
                assert TOKEN not in said
                assert "wrong" not in said
        async with client.post("/api/command", json={"line": "status"}, headers=RIGHT) as answer:
            assert (answer.status, (await answer.json())["outcome"]) == (200, "handled")


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
async def test_another_name_or_page_is_refused_with_the_right_token_too(headers: dict[str, str]) -> None:
    done: list[object] = []
    router = Router()
    router.command("deploy", done.append)
    async with served(router) as (client, _):
        async with client.post("/api/command", json={"line": "deploy"}, headers=RIGHT | headers) as answer:
            assert answer.status == 403
        async with client.get("/api/state", headers=headers) as answer:
            assert answer.status == 403
            assert set(await answer.json()) == {"error"}
    assert done == []


async def test_malformed_requests_get_an_error_and_others_are_served() -> None:
    async with served() as (client, _):
        for body, status in (
            (b"", 400),
            (b"{", 400),
            (b"[]", 400),
            (b'{"line": 1}', 400),
            (b'{"line": "  "}', 400),
            (b"[" * 100_000, 400),
        ):
            headers = RIGHT | {"Content-Type": "application/json"}
            async with client.post("/api/command", data=body, headers=headers) as answer:
                assert answer.status == status, body[:20]
                assert (await answer.json())["error"]
        async with client.post("/api/command", data="line=stop", headers=RIGHT) as answer:
            assert answer.status == 415
        async with client.get("/api/state") as answer:
            assert answer.status == 200


async def test_the_stream_has_everything_that_the_page_shows() -> None:
    router = Router("main")

    @router.on("greet/*")
    async def greet(event: Event) -> None:
        await router.emit(Event("wave/back", event.data))

    router.handle("wave/*", print)
    async with served(router) as (client, _), client.get("/api/live") as answer, asyncio.timeout(LIMIT):
        seen: dict[str, Any] = {}
        topics: dict[str, str] = {}
        figures: dict[str, Any] = {}
        emitted = False
        async for name, data in messages(answer):
            if name == "change":
                seen |= data["nodes"]
            elif name == "entries":
                topics |= {each["topic"]: each["what"] for each in data["entries"]}
            else:
                figures = data
            if not emitted and "router:main" in seen:
                emitted = True
                await router.emit(Event("greet/world"))
            if topics == {"greet/world": "handled", "wave/back": "handled"} and "greet/*" in figures.get("latency", ()):
                break
        assert seen["router:main/route:greet/*"]["kind"] == "route"
        assert figures["latency"]["greet/*"]["count"] == 1
        assert figures["cpu"] >= 0


async def test_memory_is_shown_by_pid_until_the_process_has_exited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards, the page has no pid of the worker, because another process may have the same one."""
    monkeypatch.setattr("lifecycle.observe.http.live._FIGURES_INTERVAL", 0.02)
    shop = Supervisor("shop", Spec("web", ["sleep", "600"]))
    async with served() as (client, _), shop, client.get("/api/live") as answer, asyncio.timeout(LIMIT):
        web: dict[str, Any] = {}
        measured = 0
        async for name, data in messages(answer):
            if name == "change":
                web = data["nodes"].get("worker:shop/web", web)
            if web.get("status") == "stopped":
                break
            if name == "figures" and not measured and str(web.get("pid")) in data["memory"]:
                measured = data["memory"][str(web["pid"])]
                await shop.stop_child("web")
    assert measured > 0
    assert web["pid"] is None


async def test_a_page_that_is_open_does_not_hold_up_the_end() -> None:
    async with served() as (client, dashboard), client.get("/api/live") as answer:
        await answer.content.readline()
        await dashboard.__aexit__(None, None, None)
        with suppress(aiohttp.ClientError):
            async for _ in answer.content:
                pass
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get("/")
        async with dashboard:
            pass


async def test_answers_show_no_secret() -> None:
    router = Router("main")

    @router.on("order/*")
    async def fail(_: Event) -> None:
        raise OSError("no database at postgres://bob:hunter2@db")

    async def crash() -> None:
        raise OSError("the login failed: password=hunter2")

    async with served(router) as (client, _), Supervisor("shop", Spec("web", crash, restart="never")) as shop:
        async with asyncio.timeout(LIMIT):
            with suppress(OSError):
                await (await router.emit(Event("order/new")))
            while shop.workers()[0].status is not Status.FAILED:
                await (await client.get("/api/program")).read()
            texts = []
            for path in ("/api/state", "/api/events", "/api/diagram", "/api/explain?topic=order/new"):
                async with client.get(path) as answer:
                    assert answer.status == 200
                    texts.append(await answer.text())
            async with client.get("/api/live") as answer:
                async for name, data in messages(answer):
                    texts.append(json.dumps(data))
                    if name == "entries":
                        break
    assert "hunter2" not in "".join(texts)
    assert "password=***" in texts[0]
    assert "postgres://bob:***@db" in texts[1]


async def test_the_address_is_logged_and_no_token_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "lifecycle.observe"):
        async with lifetime(signals=False), Dashboard() as made, Dashboard(token=TOKEN) as given:
            urls = made.url, given.url
    log_messages = [record.getMessage() for record in caplog.records]
    assert urls[0].endswith(f"/#token={made.token}")
    assert TOKEN not in urls[1]
    base = urls[0].partition("/#")[0]
    assert log_messages == [
        f"dashboard: {base}/ needs its token, which is not logged; set one with Dashboard(token=...)",
        f"dashboard: {urls[1]}/",
    ]
    assert made.token not in caplog.text


async def test_an_address_in_use_is_an_error_with_its_reason() -> None:
    async with lifetime(signals=False), Dashboard(token=TOKEN) as one:
        port = int(one.url.rpartition(":")[2])
        with pytest.raises(
            OSError, match=f"cannot serve the page at 127.0.0.1 port {port}: Address already in use; use another"
        ):
            async with Dashboard(port=port):
                pass
        with pytest.raises(RuntimeError, match="is already served"):
            await one.__aenter__()
