"""Malformed messages from other programs: the bridge keeps running, and handles or rejects each message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lifecycle.control import Event, Router
from lifecycle.testing import running
from tests.realtime.bridges.receiving import Box, answered, by_hand
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.bridges import NatsBridge
    from tests.nats_servers import NatsProcess

    MakeBridge = Callable[..., NatsBridge]

JSON = b"NATS/1.0\r\nce-datacontenttype: application/json\r\n\r\n"
LONG_ID = b"NATS/1.0\r\nce-datacontenttype: application/json\r\nce-id: " + b"i" * 40_000 + b"\r\n\r\n"

MESSAGES = {
    "a subject that is no text": (b"job.\xff\xfe", b"", b"1"),
    "an empty topic": (b"=", b"", b"1"),
    "a topic that no router takes": (b"job." + b"a." * 600 + b"a", b"", b"1"),
    "a topic with no room for a letter": (b"job." + b"a" * 3900, JSON, b"{"),
    "JSON without an end": (b"job.x", JSON, b"[" * 200_000),
    "a letter that is too big": (b"job.x", JSON, b"{" * (1_048_576 - len(JSON))),
    "an id that is too long twice": (b"job.x", LONG_ID, b"{"),
    "headers that are no text": (b"job.x", b"NATS/1.0\r\nce-id: \xff\xfe\r\n\r\n", b"1"),
    "headers that are none": (b"job.x", b"nonsense\r\n\r\n", b"1"),
    "a status": (b"job.x", b"NATS/1.0 503 No\r\n\r\n", b""),
}


async def put(server: NatsProcess, prefix: str, subject: bytes, headers: bytes, body: bytes) -> None:
    """Publish raw bytes, which a client would refuse to send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await reader.readline()
    writer.write(b'CONNECT {"headers":true,"verbose":false}\r\n')
    sizes = b"%d %d" % (len(headers), len(headers) + len(body)) if headers else b"%d" % len(body)
    command = b"HPUB" if headers else b"PUB"
    writer.write(b"%s %s.%s %s\r\n%s%s\r\nPING\r\n" % (command, prefix.encode(), subject, sizes, headers, body))
    assert (await reader.readline()).startswith(b"PONG")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("what", MESSAGES)
async def test_malformed_messages_do_not_stop_the_bridge(bridge: MakeBridge, server: NatsProcess, what: str) -> None:
    receiver = bridge(group="there", subscribe=("**",), publish=("good/**",), ack_wait=1.0, max_deliver=2)
    there = Router()
    there.add_source(receiver)
    there.handle("**", Box())
    there.handle("good/**", good := Box())
    async with running(there), by_hand(server) as js:
        await put(server, receiver._settings.prefix, *MESSAGES[what])
        await (await there.emit(Event("good/x")))
        await good.wait(1)
        await until(lambda: receiver.state().handled + receiver.state().dead >= 2)
        await answered(js, receiver)
        # The bridge was neither restarted nor reconnected.
        assert [source.failures for source in there.sources()] == [0]


async def test_a_dead_letter_without_space_for_its_reason_omits_the_data(bridge: MakeBridge) -> None:
    here = Router()
    sender = bridge(group="both", publish=("job/*",), subscribe=("job/*", "dead/**"), max_deliver=1)
    here.add_source(sender)
    here.handle("dead/**", box := Box())
    async with running(here):
        await (await here.emit(Event("job/x", b"x" * 1_048_200)))
        [letter] = await box.wait(1)
    assert letter.topic == "dead/job/x"
    assert letter.data is None
    assert "too big for a dead letter, but is still in event 1 of" in letter.headers["dead-reason"]
    assert letter.headers["dead-attempts"] == "1"
