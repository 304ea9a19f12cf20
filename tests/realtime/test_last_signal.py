"""The signal that stops the program is an event, like any other signal."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal
from lifecycle import Router, SignalSource, run
router = Router()
router.add_source(SignalSource())

@router.on("signal/terminate")
async def last_words(event):
    print("told of", event.name, flush=True)

async def main():
    os.kill(os.getpid(), signal.SIGTERM)
    import asyncio
    await asyncio.sleep(60)

run(router, main)
"""


def test_sigterm_reaches_its_route_although_it_stops_the_router() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=False)

    assert ended.stdout == "told of SIGTERM\n", ended.stderr
