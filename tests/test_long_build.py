"""A thirty-second build on every file change delays nothing, and always builds the newest files."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lifecycle import CommandEvent, Debounce, FileBatch, FileEvent, Router, SignalEvent, WebhookEvent, merge_files
from lifecycle.testing import ManualSource, running

if TYPE_CHECKING:
    from lifecycle.events import Topical
    from lifecycle.testing import Clock, Recorder

BUILD = 30.0


class Builder:
    """Builds, and records each build's start, end and files."""

    def __init__(self) -> None:
        self.at_work = 0
        self.began: list[float] = []
        self.built: list[set[str]] = []

    async def __call__(self, batch: FileBatch) -> None:
        self.at_work += 1
        assert self.at_work == 1, "two builds overlap"
        self.began.append(asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(BUILD)
            self.built.append({path.name for path in batch.changes})
        finally:
            self.at_work -= 1


@pytest.mark.parametrize(
    "event",
    [
        SignalEvent(signal.SIGINT),
        CommandEvent("status"),
        WebhookEvent("POST", "/deploy", {}, {}, b"", "1"),
    ],
    ids=["Ctrl+C", "the prompt", "the webhook"],
)
async def test_a_build_delays_nothing_else(clock: Clock, recorder: Recorder, event: Topical) -> None:
    router, build = Router(), Builder()
    files, others = ManualSource("files"), ManualSource("others")
    router.add_source(files)
    router.add_source(others)
    router.handle("file/*", build, debounce=Debounce(0.2, merge=merge_files))
    for pattern in ("signal/interrupt", "command/*", "webhook/deploy"):
        router.handle(pattern, recorder)
    async with running(router):
        await files.send(FileEvent("modified", Path("a.py")))
        await clock.advance(1)
        assert build.at_work == 1

        await (await others.send(event))
        assert (recorder.events, clock.time(), build.at_work) == ([event], 1, 1)
        await clock.advance(BUILD)


async def test_builds_never_overlap_and_the_last_change_is_always_built(clock: Clock) -> None:
    router, build = Router(), Builder()
    files = ManualSource("files")
    router.add_source(files)
    router.handle("file/*", build, debounce=Debounce(0.2, max_wait=2, merge=merge_files), busy="restart")
    async with running(router):
        for number in range(100):
            await files.send(FileEvent("modified", Path(f"{number}.py")))
            await clock.advance(number % 7 / 5)
        await clock.advance(2 * BUILD)

    assert "99.py" in build.built[-1]
    assert len(build.began) > len(build.built)
