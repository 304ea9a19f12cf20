"""Run one build per burst of changes. A change during a build restarts it. Two builds never overlap.

The example needs no files and exits without input: ``python examples/debounce.py``. The source simulates
`FileWatchSource`, and ``await asyncio.sleep`` in the build simulates a compiler.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from lifecycle import Debounce, FileBatch, FileEvent, Router, merge_files, run, shutdown

router = Router()
building = asyncio.Event()
#: Changes since the last completed build. A cancelled build must not lose its changes.
unbuilt: dict[Path, None] = {}


async def edits() -> AsyncIterator[FileEvent]:
    """Simulate saving three files at the same time, and one of them again during the build."""
    for name in ("a.py", "b.py", "c.py"):
        yield FileEvent("modified", Path(name))
    await building.wait()
    yield FileEvent("modified", Path("b.py"))


router.add_source(edits)


@router.on("file/*", debounce=Debounce(0.2, max_wait=2, merge=merge_files), busy="restart")
async def build(batch: FileBatch) -> None:
    """Build for a while. A newer burst cancels the build."""
    unbuilt.update(dict.fromkeys(batch.changes))
    print("build:", ", ".join(path.name for path in unbuilt), flush=True)
    building.set()
    try:
        await asyncio.sleep(1.5)
    except asyncio.CancelledError:
        print("given up: there are newer changes", flush=True)
        raise
    unbuilt.clear()
    print("built", flush=True)
    shutdown()


if __name__ == "__main__":
    run(router)
