"""A blocking call beside the loop, in a thread of its own.

The loop's own threads may all be busy with work of the program, which the end of a worker must not wait for.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["aside"]


def aside(call: Callable[[], object], name: str) -> asyncio.Future[None]:
    """Start ``call`` in a thread ``name``; done when it has returned, with the error that it raised."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def run() -> None:
        error = None
        try:
            call()
        except Exception as raised:  # noqa: BLE001  # handed to who waits
            error = raised
        # The loop may be closed by now; then nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, done, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def _resolve(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
