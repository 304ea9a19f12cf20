"""Results of many megabytes: a thread encodes them, using little more memory than the text needs."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.errors import FlowError
from lifecycle.flows import JSON, Change, Flows, FlowState, Run, Times, linear, task
from lifecycle.flows.client import registry_of

if TYPE_CHECKING:
    from pathlib import Path


LIMIT = 30.0


class Noting(JSON):
    """A codec that records whether each call came from the event loop's thread."""

    def __init__(self) -> None:
        self.in_loop: list[bool] = []

    def encode(self, value: Any) -> str:
        self.in_loop.append(threading.current_thread() is threading.main_thread())
        return super().encode(value)


LARGE: list[Any] = [
    [{}] * 200_000,
    {"rows": [[number, str(number), None] for number in range(50_000)], 'a"ü': {"x": "y" * 300_000}, "": [[]]},
    "ü" * 300_000,
    [[["deep" * 100_000], 1], "end"],
]


@pytest.mark.parametrize("value", LARGE, ids=["many", "rows", "text", "deep"])
def test_a_large_value_has_the_same_text_as_from_json(value: Any) -> None:
    assert JSON().encode(value) == json.dumps(value, separators=(",", ":"))


def test_checking_a_large_value_takes_little_memory() -> None:
    value: list[Any] = [{} for _ in range(200_000)]
    tracemalloc.start()
    try:
        JSON().encode(value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000


async def test_a_large_result_is_encoded_in_a_thread_and_a_small_one_in_the_loop(tmp_path: Path) -> None:
    codec = Noting()
    flow = linear("f", task(lambda: LARGE[0], name="large"), task(len_of, name="small"), retry=Times(1))
    async with Flows(tmp_path / "app.db", codec=codec) as flows:
        codec.in_loop.clear()
        out = await flows.start(flow)
    assert out == {"large": LARGE[0], "small": 200_000}
    # The encoded values are the flow's arguments, the attempt number, both results, and the retry's history.
    assert codec.in_loop.count(False) == 1


def len_of(large: list[Any]) -> int:
    return len(large)


async def test_a_listener_is_given_a_large_result_and_a_reload_has_it(tmp_path: Path) -> None:
    received: list[Any] = []

    def hear(_: Run, *, change: Change) -> None:
        if change.new == "SUCCESS" and change.kind == "task":
            received.append(change.result)

    flow = linear("f", task(lambda: LARGE[1], name="large"))
    async with Flows(tmp_path / "app.db") as flows:
        with hooks.flow_changed.connected_to(hear):
            await flows.start(flow, id="one")
        assert await flows.start(flow, id="two") == {"large": LARGE[1]}
    assert received == [LARGE[1]]
    async with Flows(tmp_path / "app.db") as flows:
        assert await flows.start(flow, id="two") == {"large": LARGE[1]}


class Waiting(JSON):
    """A codec that encodes a large value only after `go` is set."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def encode(self, value: Any) -> str:
        if value is LARGE[2]:
            self.begun.set()
            assert self.go.wait(LIMIT)
        return super().encode(value)


async def test_a_flow_left_while_it_encodes_starts_no_further_task() -> None:
    codec, begun = Waiting(), list[str]()
    flow = linear("f", task(lambda: LARGE[2], name="large"), task(lambda: begun.append("next"), name="next"))
    async with Flows(codec=codec) as flows:
        run = flows.start(flow)
        async with asyncio.timeout(LIMIT):
            assert await asyncio.to_thread(codec.begun.wait, LIMIT)
            leaving = asyncio.create_task(registry_of(flows).leave(run, FlowError("left")))
            await asyncio.sleep(0)
            codec.go.set()
            await leaving
        assert run.state is FlowState.RUNNING
    assert begun == []
