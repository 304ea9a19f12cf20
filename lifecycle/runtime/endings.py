"""The shutdown in its order, under one deadline.

1 the reason is set (`Life.begin`) · 2 routers drain · 3 mains stop, last first, each followed by the workers it
started · 4 background tasks are cancelled and awaited · 5 hooks run · 6 what was measured is sent. What does not end
in its time is named and left behind, so that the hooks run in any case; it is awaited at last, until the process is
ended by force.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lifecycle._cancelling import see_through

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lifecycle.runtime.lives import Life
    from lifecycle.runtime.mains import Main

__all__ = ["conclude"]


async def conclude(life: Life, mains: Sequence[Main] = ()) -> None:
    """Carry the shutdown out, whoever is cancelled meanwhile; the cancellation comes out at the end."""
    work = _conclude(life, mains)
    # A framework may leave a block in another context than it entered it.
    await see_through(life.loop.create_task(work, name="lifecycle shutdown", context=life.context))


async def _conclude(life: Life, mains: Sequence[Main]) -> None:
    # Whatever waits for the stop learns of it before anything is cancelled; a wait that has just ended needs one turn.
    await life.wait_stopping()
    await asyncio.sleep(0)
    await life.draining.drain(life.deadline.left_for_work)
    for main in reversed(mains):
        await main.stop(life.deadline.left_for_work)
        await life.adopted.stop(main, life.deadline.left_for_work)
    await life.adopted.stop(None, life.deadline.left_for_work)
    in_time = life.deadline.expect_end()
    await life.background.cancel(life.deadline.left_for_work())
    await life.cleanup.run(life.deadline.left)
    life.close()
    await life.flushes.run(life.deadline.left)
    for main in mains:
        await main.over()
    await life.background.cancel()
    in_time()
