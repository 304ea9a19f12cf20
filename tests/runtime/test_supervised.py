"""Supervisors and the lifetimes in which they run."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, NoReturn

import pytest

from lifecycle.runtime import on_shutdown, run, shutdown
from lifecycle.testing import VirtualLoop
from lifecycle.workers import Backoff, Spec, Supervisor, TaskWorker

if TYPE_CHECKING:
    from collections.abc import Awaitable


def test_a_supervisor_left_running_stops_its_children_itself(caplog: pytest.LogCaptureFixture) -> None:
    starts = 0

    async def child() -> None:
        nonlocal starts
        starts += 1
        await asyncio.Event().wait()

    async def main() -> None:
        await Supervisor("app", Spec("child", child)).start()
        await asyncio.sleep(1)

    with caplog.at_level(logging.WARNING):
        run(main, loop_factory=VirtualLoop)

    assert starts == 1
    assert caplog.text == ""


def test_a_shutdown_during_a_restart_ends_normally() -> None:
    made = 0
    over: list[str] = []

    async def make() -> TaskWorker:
        nonlocal made
        made += 1
        if made > 1:
            shutdown()
            await asyncio.Event().wait()
        return TaskWorker("child", ends)

    def child() -> Awaitable[TaskWorker]:
        return make()

    async def ends() -> None:
        """A worker that exits immediately and must be restarted."""

    async def main() -> None:
        await Supervisor("app", Spec("child", child, backoff=Backoff(initial=0.1))).start()
        on_shutdown(lambda: over.append("hooks"))
        await asyncio.Event().wait()

    run(main, loop_factory=VirtualLoop)

    assert made == 2
    assert over == ["hooks"]


def test_a_child_that_exits_the_program_gives_it_its_status() -> None:
    async def leave() -> NoReturn:
        sys.exit(7)

    with pytest.raises(SystemExit) as left:
        run(Supervisor("app", Spec("child", leave)), loop_factory=VirtualLoop)

    assert left.value.code == 7
