"""Import the files of a folder, controlled at a prompt: ``python examples/pipeline.py FOLDER``.

``import`` queues files, ``files`` lists them, and ``retry`` imports a failed file again. Ctrl+C or ``suspend`` stops
the import after the current file, and ``resume`` continues it. ``help`` lists all commands.
"""

import asyncio
import os
import sys
from collections import deque
from pathlib import Path
from typing import Literal

from lifecycle import Gate, TaskWorker, UsageError, new_interactive_router, run

FOLDER = Path(*sys.argv[1:2])
PACE = float(os.environ.get("PACE", "1"))

states: dict[str, str] = {}
queue: deque[str] = deque()


async def load(path: Path) -> None:
    """Simulate an import. Replace this function with your own."""
    await asyncio.sleep(PACE)
    if not await asyncio.to_thread(path.read_text):
        raise ValueError("the file is empty")


async def work(gate: Gate) -> None:
    """Import the files one after the other. The gate is checked even while the queue is empty."""
    while True:
        await gate.checkpoint()
        if not queue:
            await asyncio.sleep(0.1)
            continue
        name = queue.popleft()
        try:
            await load(FOLDER / name)
            states[name] = "done"
        except (OSError, ValueError) as error:
            states[name] = f"failed: {error}"
        print(name, "is", states[name], flush=True)


def enqueue(name: str) -> None:
    """Add a file to the queue."""
    states[name] = "queued"
    queue.append(name)


worker = TaskWorker("import", work)
router = new_interactive_router(prompt="pipeline> ", suspend=worker)


@router.command("import", help="Queue the new files that match a pattern or, with --again, every file that matches.")
def import_files(pattern: str = "*", *, again: bool = False) -> None:  # noqa: D103  # the help above describes it
    new = [path.name for path in sorted(FOLDER.glob(pattern)) if again or path.name not in states]
    for name in new:
        enqueue(name)
    print(len(new), "files queued", flush=True)


@router.command
def files(state: Literal["queued", "done", "failed", "all"] = "all") -> None:
    """List the files in a state."""
    print(*(f"{name}: {now}" for name, now in states.items() if state == "all" or now.startswith(state)), sep="\n")


@router.command
def retry(name: str) -> None:
    """Import a failed file again."""
    if not states.get(name, "").startswith("failed"):
        raise UsageError(f"{name!r} has not failed; the command `files failed` lists failed files")
    enqueue(name)


if __name__ == "__main__":
    run(worker, router)
