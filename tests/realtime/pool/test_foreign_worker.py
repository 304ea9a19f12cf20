"""The Perl worker on the protocol page works, and the page's tables match the code."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lifecycle.errors import RemoteError
from lifecycle.workers.pool.connection import CallCancelled
from lifecycle.workers.pool.protocol import FROM_PARENT, FROM_WORKER, LIMIT, VERSION, codec, encode
from tests.realtime.pool.workers import LIMIT as SECONDS
from tests.realtime.pool.workers import chunks, outcome

if TYPE_CHECKING:
    from tests.realtime.pool.workers import Spawn

# A task in the fixture manages and stops the worker.
pytestmark = pytest.mark.keeps_tasks

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/reference/pool-protocol.md"
PROGRAM = ROOT / "examples/worker.pl"


def perl() -> str | None:
    """Return the Perl interpreter if it has the modules that the worker needs."""
    found = shutil.which("perl")
    if found and subprocess.run([found, "-MJSON::PP", "-e1"], capture_output=True, check=False).returncode == 0:
        return found
    return None


@pytest.mark.skipif(perl() is None, reason="Perl or its module JSON::PP is not installed")
async def test_the_worker_in_perl_answers_streams_fails_and_is_cancelled(spawn: Spawn) -> None:
    worker = await spawn([str(perl()), str(PROGRAM)], by="json")
    async with asyncio.timeout(SECONDS):
        await worker.connection.ready()
        assert (await worker.connection.ping()).busy_id is None
    assert await worker.result("shout", "hello") == "HELLO"
    text = " ".join(str(number) for number in range(100))
    assert await chunks(worker.call("words", text, window=3)) == text.split()
    error = await worker.result("whisper", "hello")
    assert isinstance(error, RemoteError)
    assert (error.type, error.message) == ("die", "there is no function whisper")
    request = worker.call("words", text, window=4)
    assert await request.next_chunk() == "0"
    async with asyncio.timeout(SECONDS):
        assert (await worker.connection.ping()).busy_id == request.number
    request.cancel("enough")
    assert isinstance(await outcome(request), CallCancelled)
    worker.connection.bye(SECONDS)
    assert (await worker.end()).exit_code == 0
    assert not worker.broken


def test_the_page_lists_every_frame_with_its_items() -> None:
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    documented = {tag: len([item for item in items.split(",") if item.strip()]) for tag, items in rows}
    assert documented == {tag: len(types) for tag, types in {**FROM_WORKER, **FROM_PARENT}.items()}


def test_the_page_has_the_version_and_the_limit() -> None:
    text = PAGE.read_text()
    assert f"The version is {VERSION}," in text
    assert f"{LIMIT:,}".replace(",", " ") in text
    [shown] = re.findall(r"^([0-9a-f ]{11}) (\[.*\])$", text, re.MULTILINE)
    frame = encode(codec("json"), ["call", 1, "predict", [7], {}, 9.98, 0])
    assert frame == bytes.fromhex(shown[0]) + shown[1].encode()
    assert f"these {len(frame)} bytes" in text
