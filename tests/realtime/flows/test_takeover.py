"""A process that is killed in a step: another one that knows the workflow continues it, without being asked."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import pytest

from lifecycle.flows import Flows
from tests import postgres
from tests.realtime.flows._hanging import order

if TYPE_CHECKING:
    from pathlib import Path

# The timer of open Flows may look for runs when a test ends.
pytestmark = pytest.mark.keeps_tasks

LIMIT = 30.0


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.engine("postgres"))])
async def test_a_run_of_a_killed_process_continues_in_a_living_one(tmp_path: Path, kind: str) -> None:
    url = postgres.server().cleared() if kind == "postgres" else str(tmp_path / "flows.db")
    async with Flows(url) as flows, asyncio.timeout(LIMIT):
        assert await flows.recover(order) == []
        argv = [sys.executable, "-m", "tests.realtime.flows._hanging", url]
        process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        try:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"working\n"
        finally:
            process.kill()
            await process.wait()
        assert await flows.wait("one") == os.getpid()
