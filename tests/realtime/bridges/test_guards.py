"""Configurations that a bridge rejects before it can lose an event, and connections with a key or certificate."""

from __future__ import annotations

import asyncio
import json
import ssl
import traceback
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.bridges import NatsBridge, NatsServer, UnfitServer, streams
from lifecycle.bridges import bridge as bridge_module
from lifecycle.control import Event, Router
from lifecycle.errors import SourceFailed
from lifecycle.testing import running
from tests.nats_servers import LIMIT, NatsProcess
from tests.realtime.bridges.credentials import credentials
from tests.realtime.bridges.receiving import Box, by_hand

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    MakeBridge = Callable[..., NatsBridge]


async def refused(bridge: NatsBridge, why: str) -> None:
    router = Router()
    router.add_source(bridge)
    with pytest.raises(SourceFailed, match=why) as caught:
        await router.run()
    assert isinstance(caught.value.__cause__, UnfitServer)
    assert len("".join(traceback.format_exception(caught.value.__cause__)).split("Traceback")) == 2


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"subjects": ["other.>"]}, "does not include"),
        ({"retention": "workqueue"}, "is a work queue"),
        ({"no_ack": True}, "does not acknowledge"),
    ],
)
async def test_an_unsuitable_stream_is_refused(
    bridge: MakeBridge, server: NatsProcess, settings: dict[str, Any], why: str
) -> None:
    mine = bridge(group="g", publish=("**",))
    stream, prefix = mine._settings.stream, mine._settings.prefix
    async with by_hand(server) as js:
        subjects = [f"{prefix}.>"]
        config: dict[str, Any] = {"name": stream, "subjects": subjects, "duplicate_window": 10} | settings
        await js.add_stream(**config)
        await refused(mine, f"stream '{stream}' {why}")
        await js.delete_stream(stream)


async def test_an_existing_stream_is_used_unchanged(bridge: MakeBridge, server: NatsProcess) -> None:
    mine = bridge(group="g", publish=("**",))
    stream, prefix = mine._settings.stream, mine._settings.prefix
    router = Router()
    router.add_source(mine)
    async with by_hand(server) as js:
        await js.add_stream(name=stream, subjects=[f"{prefix}.>", f"mine.{prefix}"], max_msgs=7)
        async with running(router):
            await (await router.emit(Event("a")))
        config = (await js.stream_info(stream)).config
    assert (config.max_msgs, config.subjects) == (7, [f"{prefix}.>", f"mine.{prefix}"])


async def test_subjects_of_another_stream_are_reported(bridge: MakeBridge, server: NatsProcess) -> None:
    mine = bridge(group="g", publish=("**",))
    async with by_hand(server) as js:
        await js.add_stream(name="THEIRS", subjects=[f"{mine._settings.prefix}.x"])
        await refused(mine, "cannot be created: subjects overlap")
        await js.delete_stream("THEIRS")


async def test_a_group_with_old_settings_gets_the_new_ones(
    bridge: MakeBridge, server: NatsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New patterns are added to the group. Old patterns are removed when no member uses them."""
    router = Router()
    router.add_source(bridge(group="g", subscribe=("old/*",), ack_wait=7.0))
    async with running(router):
        pass
    monkeypatch.setattr(bridge_module, "_LOOK", 0.05)
    router = Router()
    mine = bridge(group="g", subscribe=("new/*", "newer/**"), publish=("new/*",), ack_wait=9.0)
    router.add_source(mine)
    router.handle("new/*", box := Box())
    stream, prefix = mine._settings.stream, mine._settings.prefix
    new = [f"{prefix}.new.*", f"{prefix}.newer", f"{prefix}.newer.>"]
    async with running(router), by_hand(server) as js:
        await (await router.emit(Event("new/x")))
        await box.wait(1)
        config = (await js.consumer_info(stream, "g")).config
        assert config.filter_subjects == [*new, f"{prefix}.old.*"]
        assert config.ack_wait == 9.0
        monkeypatch.setattr(streams, "_FORGOTTEN", 0.2)
        async with asyncio.timeout(LIMIT):
            while (await js.consumer_info(stream, "g")).config.filter_subjects != new:
                await asyncio.sleep(0.01)


async def test_a_group_that_cannot_be_changed_is_refused(bridge: MakeBridge, server: NatsProcess) -> None:
    mine = bridge(group="g", subscribe=("**",))
    stream, prefix = mine._settings.stream, mine._settings.prefix
    async with by_hand(server) as js:
        await js.add_stream(name=stream, subjects=[f"{prefix}.>"])
        await js.add_consumer(stream, durable_name="g", ack_policy="none")
        await refused(mine, "the server rejected the group 'g'")


async def test_a_server_without_streams_is_refused(tmp_path: Path) -> None:
    with NatsProcess(tmp_path, settings="jetstream: disabled") as server:
        await refused(NatsBridge(server.url, group="g", publish=("**",)), "does not support streams")


@pytest.mark.parametrize("version", ["2.10.26", "1.4.1"])
async def test_a_server_that_ignores_settings_in_silence_is_refused(version: str) -> None:
    """No old server is available to the suite, so a fake reports an old version."""
    info = {"server_id": "X", "version": version, "max_payload": 1_048_576, "proto": 1, "headers": True}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as old:
        port = old.sockets[0].getsockname()[1]
        bridge = NatsBridge(f"nats://127.0.0.1:{port}", group="g", publish=("**",))
        await refused(bridge, rf"is nats-server {version}, which ignores unknown settings; .* needs 2.11 or newer")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"group": "a b"}, "group must consist of .* got 'a b'"),
        ({"group": ""}, "group must consist of .* got ''"),
        ({"stream": "a.b"}, r"stream must consist of .* got 'a\.b'"),
        ({"prefix": "a.*"}, "prefix must be words"),
        ({"prefix": ""}, "prefix must be words"),
        ({"prefix": "a\n"}, "prefix must be words"),
        ({"group": "g\n"}, "group must consist of"),
        ({"max_in_flight": 0}, "max_in_flight=0"),
        ({"max_deliver": 0}, "max_deliver=0"),
        ({"ack_wait": 0.1}, r"ack_wait must be 1 or more seconds, or a timedelta, got 0\.1"),
        ({"ack_wait": float("inf")}, "ack_wait must be .* got inf"),
        ({"subscribe": ()}, "needs patterns"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        NatsBridge("nats://x", **({"group": "g", "subscribe": ("a",)} | settings))


def test_invalid_patterns_and_urls_are_refused() -> None:
    with pytest.raises(TypeError, match=r"must contain patterns .* got 7"):
        NatsBridge("nats://x", group="g", subscribe=(7,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a URL"):
        NatsBridge(" , ", group="g", subscribe=("a",))


def test_a_bridge_belongs_to_one_router() -> None:
    bridge = NatsBridge("nats://x", group="g", publish=("a",))
    Router("first").add_source(bridge)
    with pytest.raises(ValueError, match=r"already belongs to .*first"):
        Router("second").add_source(bridge)


async def test_a_password_in_the_url_is_used_and_never_logged(tmp_path: Path) -> None:
    settings = 'authorization { user: me, password: "s3cret" }'
    with NatsProcess(tmp_path, settings=settings) as server:
        url = server.url.replace("//", "//me:s3cret@")
        bridge, router = NatsBridge(url, group="g", publish=("a",)), Router()
        router.add_source(bridge)
        async with running(router):
            await (await router.emit(Event("a")))
    assert "s3cret" not in repr(bridge)


async def test_a_wrong_password_fails_at_once(tmp_path: Path) -> None:
    with NatsProcess(tmp_path, settings='authorization { user: me, password: "s3cret" }') as server:
        router = Router()
        router.add_source(NatsBridge(server.url.replace("//", "//me:wr0ng@"), group="g", publish=("a",)))
        with pytest.raises(SourceFailed, match=r"refuses the connection: .*Authorization Violation") as caught:
            await router.run()
    assert "wr0ng" not in str(caught.value)


async def test_a_credentials_file_is_accepted(tmp_path: Path) -> None:
    settings, text = credentials()
    path = tmp_path / "me.creds"
    path.write_text(text)
    with NatsProcess(tmp_path / "nats", settings=settings) as server:
        bridge, router = NatsBridge(NatsServer(server.url, credentials=path), group="g", publish=("a",)), Router()
        router.add_source(bridge)
        async with running(router):
            await (await router.emit(Event("a")))
    assert bridge.state().published == 1


async def test_both_sides_present_their_certificates(tmp_path: Path) -> None:
    """The server and the client each have a certificate from the same authority."""
    paths = certificates(tmp_path)
    settings = (
        f'tls {{ cert_file: "{paths["cert"]}", key_file: "{paths["key"]}", ca_file: "{paths["cert"]}", verify: true }}'
    )
    context = ssl.create_default_context(cafile=paths["cert"])
    context.load_cert_chain(paths["cert"], paths["key"])
    with NatsProcess(tmp_path / "nats", settings=settings) as server:
        where = NatsServer(server.url.replace("nats:", "tls:"), tls=context)
        bridge, router = NatsBridge(where, group="g", publish=("a",)), Router()
        router.add_source(bridge)
        async with running(router):
            await (await router.emit(Event("a")))
    assert bridge.state().published == 1


def certificates(directory: Path) -> dict[str, str]:
    """Create a self-signed certificate for 127.0.0.1 that the server and the client can use."""
    from ipaddress import IPv4Address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = {"cert": str(directory / "cert.pem"), "key": str(directory / "key.pem")}
    (directory / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (directory / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return paths
