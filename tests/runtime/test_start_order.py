"""The order in which components start."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lifecycle.control import Event, Router
from lifecycle.runtime import run
from lifecycle.testing import VirtualLoop

if TYPE_CHECKING:
    from lifecycle.control import Emit


class Slow:
    """A source with a slow start."""

    def __init__(self, order: list[str]) -> None:
        self._order = order

    async def __aenter__(self) -> None:
        await asyncio.sleep(1)
        self._order.append("the source has started")

    async def __aexit__(self, *_: object) -> None:
        return

    async def run(self, emit: Emit) -> None:
        await emit(Event("a"))


class Announced:
    """A main whose start announcement fails."""

    def __init__(self, *, ends: bool) -> None:
        self.ended = False
        self._ends = ends

    async def run(self) -> None:
        try:
            await asyncio.sleep(0 if self._ends else 1000)
        finally:
            self.ended = True

    async def wait_running(self) -> None:
        await asyncio.sleep(1)
        raise OSError("the port is taken")


def test_an_error_in_wait_running_ends_the_program() -> None:
    announced, order = Announced(ends=False), list[str]()

    async def main() -> None:
        order.append("the main has started")

    with pytest.raises(OSError, match="the port is taken"):
        run(announced, main, loop_factory=VirtualLoop)
    assert announced.ended
    assert not order


def test_an_error_in_wait_running_of_a_main_that_returns_when_cancelled_ends_the_program() -> None:
    class Returns(Announced):
        async def run(self) -> None:
            with suppress(asyncio.CancelledError):
                await super().run()

    async def main() -> None:
        raise AssertionError("a main started although an earlier start had failed")

    with pytest.raises(OSError, match="the port is taken"):
        run(Returns(ends=False), main, loop_factory=VirtualLoop)


def test_a_main_that_ends_before_its_start_was_announced_lets_the_next_one_start() -> None:
    async def main() -> str:
        return "the main has started"

    assert run(Announced(ends=True), main, loop_factory=VirtualLoop) == "the main has started"


def test_a_main_after_a_router_starts_when_its_sources_have() -> None:
    order: list[str] = []
    router = Router()
    router.add_source(Slow(order))
    router.handle("a", lambda _: None)

    async def main() -> None:
        order.append("the main has started")

    run(router, main, loop_factory=VirtualLoop)

    assert order == ["the source has started", "the main has started"]
