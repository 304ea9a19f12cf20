"""What starts before what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lifecycle.control import Event, Router
from lifecycle.runtime import run
from lifecycle.testing import VirtualLoop

if TYPE_CHECKING:
    from lifecycle.control import Emit


class Slow:
    """A source that takes its time to start."""

    def __init__(self, order: list[str]) -> None:
        self._order = order

    async def __aenter__(self) -> None:
        await asyncio.sleep(1)
        self._order.append("the source has started")

    async def __aexit__(self, *_: object) -> None:
        return

    async def run(self, emit: Emit) -> None:
        await emit(Event("a"))


def test_a_main_after_a_router_starts_when_its_sources_have() -> None:
    order: list[str] = []
    router = Router()
    router.add_source(Slow(order))
    router.handle("a", lambda _: None)

    async def main() -> None:
        order.append("the main has started")

    run(router, main, loop_factory=VirtualLoop)

    assert order == ["the source has started", "the main has started"]
