"""Having what was measured sent, in a thread that nobody waits for longer than they want to."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from lifecycle.journal.threads import LoopThread

__all__ = ["flush"]

_log = logging.getLogger("lifecycle.observe")


async def flush(what: str, provider: Any, seconds: float) -> None:
    """Have ``provider`` send what it still has; what it does not send in ``seconds`` is given up, and logged."""
    force = getattr(provider, "force_flush", None)
    if not callable(force):
        return
    loop = asyncio.get_running_loop()
    thread = LoopThread(f"flush {what}", loop)
    try:
        async with asyncio.timeout(seconds):
            sent = await loop.run_in_executor(thread, force, int(seconds * 1000))
    except TimeoutError:
        sent = False
    except Exception as error:  # noqa: BLE001  # an exporter's error is no reason to end otherwise
        _log.error("%s could not be sent: %r", what, error)
        return
    finally:
        thread.shutdown(wait=False)
    # Some say nothing where all went well.
    if sent is False:
        _log.warning("%s were not all sent within %g s", what, seconds)
