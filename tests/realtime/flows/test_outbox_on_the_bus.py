"""Events that a task sends to another router over a bus, through an outbox and a bridge in one router."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from lifecycle import Router
from lifecycle.bridges import BusEvent, NatsBridge
from lifecycle.flows import Flows, linear, send, task
from tests.nats_servers import LIMIT, NatsProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def running(router: Router) -> AsyncIterator[None]:
    task = asyncio.create_task(router.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.timeout(120)
async def test_an_event_that_a_task_sends_is_handled_elsewhere_and_forgotten_here(tmp_path: Path) -> None:
    got: asyncio.Queue[BusEvent] = asyncio.Queue()
    here, there, up = Router(), Router(), asyncio.Event()
    # A subscriber would miss events that are sent before it is ready.
    there.handle("health/bridge/there/up", lambda _: up.set())
    there.handle("deploy/**", got.put)
    flow = linear("f", task(lambda: send("deploy/done", {"ref": "v2"}), name="a"))
    (tmp_path / "bus").mkdir()
    with NatsProcess(tmp_path / "bus") as bus:
        async with Flows(tmp_path / "flows.db") as flows:
            here.add_source(flows.outbox())
            here.add_source(NatsBridge(bus.url, group="here", publish=("deploy/**",)))
            there.add_source(NatsBridge(bus.url, group="there", subscribe=("deploy/**",)))
            async with running(there), running(here), asyncio.timeout(2 * LIMIT):
                await up.wait()
                await flows.start(flow, id="one")
                event = await got.get()
                while await flows.store.outbox().take(1, now=1e12, until=0.0):
                    await asyncio.sleep(0.01)
    assert (event.topic, event.data, event.id) == ("deploy/done", {"ref": "v2"}, "one/a/1/1")
