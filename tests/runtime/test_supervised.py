"""Supervisors and the lifetime that they run under."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import NoReturn

import pytest

from lifecycle.runtime import run
from lifecycle.testing import VirtualLoop
from lifecycle.workers import Spec, Supervisor


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


def test_a_child_that_exits_the_program_gives_it_its_status() -> None:
    async def leave() -> NoReturn:
        sys.exit(7)

    with pytest.raises(SystemExit) as left:
        run(Supervisor("app", Spec("child", leave)), loop_factory=VirtualLoop)

    assert left.value.code == 7
