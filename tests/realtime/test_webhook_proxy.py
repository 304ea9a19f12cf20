"""The configuration of nginx in docs/explanation/security.md, the block that begins with ```nginx."""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import run
from typing import TYPE_CHECKING

import pytest

from tests.programs import free_port
from tests.realtime.test_webhook_hostile import Wire, _hang_up, request, serving
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytestmark = [pytest.mark.engine("nginx"), pytest.mark.engine("openssl")]

PAGE = Path(__file__).parents[2] / "docs/explanation/security.md"

#: The settings around the block, for a server with all its files in a temporary directory.
AROUND = """
daemon off;
master_process off;
pid {home}/pid;
error_log stderr;
events {{}}
http {{
access_log off;
client_body_temp_path {home}/body;
proxy_temp_path {home}/proxy;
fastcgi_temp_path {home}/fastcgi;
uwsgi_temp_path {home}/uwsgi;
scgi_temp_path {home}/scgi;
{block}
}}
"""


@asynccontextmanager
async def proxy(home: Path, behind: int) -> AsyncGenerator[tuple[int, ssl.SSLContext]]:
    """Start nginx in front of a port, and return its port and a TLS context that trusts it."""
    key, certificate = home / "key.pem", home / "certificate.pem"
    create = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    run([*create, "-keyout", key, "-out", certificate, *subject], check=True, capture_output=True)
    found = re.search(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    port, block = free_port(), found[1]
    for shown, used in {
        "listen 443": f"listen 127.0.0.1:{port}",
        "/etc/ssl/hooks.pem": str(certificate),
        "/etc/ssl/hooks.key": str(key),
        "127.0.0.1:9000": f"127.0.0.1:{behind}",
    }.items():
        assert shown in block
        block = block.replace(shown, used)
    settings = home / "nginx.conf"
    settings.write_text(AROUND.format(home=home, block=block))
    process = await asyncio.create_subprocess_exec("nginx", "-e", "stderr", "-p", home, "-c", settings)
    try:
        yield port, ssl.create_default_context(cafile=certificate)
    finally:
        process.terminate()
        await process.wait()


async def test_slow_and_large_requests_do_not_reach_the_program(tmp_path: Path) -> None:
    async with serving() as served, AsyncExitStack() as held:
        port, trusting = await held.enter_async_context(proxy(tmp_path, int(served.source.url.rpartition(":")[2])))

        async def connect() -> Wire:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            held.push_async_callback(_hang_up, writer)
            return Wire(reader, writer)

        async def ask(data: bytes) -> int:
            wire = await connect()
            wire.send(data)
            return await wire.status()

        async def is_up() -> bool:
            try:
                return await ask(request(b"first")) == 202
            except ConnectionError:
                return False

        while not await is_up():
            await asyncio.sleep(0.02)
        clients = served.source._server.http.clients  # type: ignore[union-attr]
        for _ in range(19):
            (await connect()).send(request(b"half a body")[:-4])
        assert await ask(request(b"good")) == 202
        assert await ask(request(b"x" * 2_000_000)[:1000]) == 413
        # nginx opens one connection per request, and none for a body that has not arrived.
        await until(lambda: not clients)
    assert [event.body for event in served.seen.events] == [b"first", b"good"]
