"""The publisher and consumer processes of a bus: ``python -m benchmarks._bridge_peers PEER ROLE URL COUNT RATE``.

``lifecycle`` sends events from one router to another. ``raw`` uses nats-py directly: it sends the same messages, awaits
each publication, and acknowledges each event after its handler. ``lean`` is ``raw`` with an id as the only header.
``faststream`` is the example from the faststream documentation. A consumer prints a line when it is up. After the last
event, it prints the seconds since the first event and the sorted latencies. A publisher prints the seconds until the
server has acknowledged all events.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["IN_FLIGHT", "main"]

IN_FLIGHT = 64
SUBJECT = "ev.bench.event"
STREAM = "EVENTS"
TEXT = "x" * 1000

#: The number of seconds after which an event is considered lost.
LIMIT = 60.0


class Latencies:
    """The latencies measured by a consumer."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._values: list[float] = []
        self._first = self._last = 0.0
        self._all = asyncio.Event()

    def add(self, data: dict[str, Any]) -> None:
        """Record one handled event."""
        now = time.time()
        self._first = self._first or now
        self._last = now
        self._values.append(now - data["at"])
        self._left -= 1
        if not self._left:
            self._all.set()

    async def wait(self) -> None:
        """Wait for the last event."""
        async with asyncio.timeout(LIMIT):
            await self._all.wait()

    def print_figures(self) -> None:
        """Print the latencies."""
        values = sorted(self._values)
        p50, p99 = values[len(values) // 2], values[len(values) * 99 // 100]
        print(json.dumps({"seconds": self._last - self._first, "p50": p50, "p99": p99}), flush=True)


async def _paced(count: int, rate: float, send: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
    """Send ``count`` events, either ``IN_FLIGHT`` at the same time or ``rate`` per second."""
    numbers = iter(range(count))
    began = time.perf_counter()

    async def work() -> None:
        for number in numbers:
            if rate:
                await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            await send({"number": number, "at": time.time(), "text": TEXT})

    async with asyncio.TaskGroup() as group:
        for _ in range(1 if rate else IN_FLIGHT):
            group.create_task(work())
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


# -- plain nats-py -----------------------------------------------------------------------------------------------


_FIXED = {
    "ce-specversion": "1.0",
    "ce-source": "benchmark",
    "ce-type": "Event",
    "ce-subject": "bench/event",
    "ce-datacontenttype": "application/json",
}


async def raw_publish(url: str, count: int, rate: float) -> None:
    """Publish the same messages as a bridge, with nats-py alone."""
    await _publish(url, count, rate, _as_a_cloud_event)


async def lean_publish(url: str, count: int, rate: float) -> None:
    """Publish the data with an id as the only header, with nats-py alone."""
    await _publish(url, count, rate, lambda own: {"Nats-Msg-Id": own})


async def _publish(url: str, count: int, rate: float, headers: Callable[[str], dict[str, str]]) -> None:
    import nats

    client = await nats.connect(url)
    js = client.jetstream()

    async def send(data: dict[str, Any]) -> None:
        body = json.dumps(data).encode()
        await js.publish(SUBJECT, body, headers=headers(uuid.uuid4().hex))

    await _paced(count, rate, send)
    await client.drain()


def _as_a_cloud_event(id: str) -> dict[str, str]:  # noqa: A002  # the attribute's name
    time = datetime.now(UTC).isoformat()
    return {**_FIXED, "ce-id": id, "ce-time": time, "Nats-Msg-Id": id}


async def raw_consume(url: str, count: int) -> None:
    """Consume with nats-py alone."""
    import nats
    from nats.errors import TimeoutError as NatsTimeout
    from nats.js.api import AckPolicy, ConsumerConfig

    client = await nats.connect(url)
    js = client.jetstream()
    config = ConsumerConfig(
        durable_name="raw", ack_policy=AckPolicy.EXPLICIT, ack_wait=15, filter_subject=SUBJECT, max_ack_pending=1000
    )
    await js.add_consumer(STREAM, config)
    pull = await js.pull_subscribe_bind(durable="raw", stream=STREAM)
    latencies = Latencies(count)
    print("up", flush=True)
    left = count
    while left:
        try:
            messages = await pull.fetch(IN_FLIGHT, timeout=5)
        except NatsTimeout:
            continue
        for message in messages:
            latencies.add(json.loads(message.data))
            await message.ack()
            left -= 1
    latencies.print_figures()
    await client.drain()


lean_consume = raw_consume


# -- ours --------------------------------------------------------------------------------------------------------


async def lifecycle_publish(url: str, count: int, rate: float) -> None:
    """Publish from a router to JetStream."""
    from lifecycle.bridges import NatsBridge
    from lifecycle.control import Event, Router

    router = Router()
    router.add_source(NatsBridge(url, stream=STREAM, group="publisher", publish=("bench/**",)))

    async def send(data: dict[str, Any]) -> None:
        await (await router.emit(Event("bench/event", data)))

    running = asyncio.create_task(router.run())
    await router.wait_running()
    await _paced(count, rate, send)
    router.stop()
    await running


async def lifecycle_consume(url: str, count: int) -> None:
    """Consume from JetStream with a router."""
    from lifecycle.bridges import BusEvent, NatsBridge
    from lifecycle.control import Router

    router, latencies = Router(), Latencies(count)
    router.add_source(NatsBridge(url, stream=STREAM, group="consumer", subscribe=("bench/**",)))

    @router.on("bench/*")
    async def handle(event: BusEvent) -> None:
        latencies.add(event.data)

    running = asyncio.create_task(router.run())
    await router.wait_running()
    print("up", flush=True)
    await latencies.wait()
    latencies.print_figures()
    router.stop()
    await running


# -- faststream --------------------------------------------------------------------------------------------------


async def faststream_publish(url: str, count: int, rate: float) -> None:
    """Publish with faststream's broker."""
    from faststream.nats import NatsBroker

    async with NatsBroker(url, logger=None) as broker:

        async def send(data: dict[str, Any]) -> None:
            await broker.publish(data, SUBJECT, stream=STREAM, headers={"Nats-Msg-Id": uuid.uuid4().hex})

        await _paced(count, rate, send)


async def faststream_consume(url: str, count: int) -> None:
    """Consume with faststream's subscriber."""
    from faststream.nats import JStream, NatsBroker, PullSub

    broker, latencies = NatsBroker(url, logger=None), Latencies(count)

    async def handle(data: dict[str, Any]) -> None:
        latencies.add(data)

    pull = PullSub(batch_size=IN_FLIGHT)
    broker.subscriber(SUBJECT, stream=JStream(STREAM, declare=False), durable="faststream", pull_sub=pull)(handle)
    await broker.start()
    print("up", flush=True)
    await latencies.wait()
    latencies.print_figures()
    await broker.stop()


def main() -> None:
    """Run the publisher or the consumer."""
    peer, role, url, count, rate = sys.argv[1:]
    end: Callable[..., Awaitable[None]] = globals()[f"{peer}_{role}"]
    arguments: list[Any] = [url, int(count)] + ([float(rate)] if role == "publish" else [])

    async def be() -> None:
        await end(*arguments)

    asyncio.run(be())


if __name__ == "__main__":
    main()
