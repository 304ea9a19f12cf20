"""Having what was measured sent, in a thread that nobody waits for longer than they want to."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["flush"]

_log = logging.getLogger("lifecycle.observe")


async def flush(what: str, provider: Any, seconds: float) -> None:
    """Have ``provider`` send what it still has; what it does not send in ``seconds`` is given up, and logged."""
    force = getattr(provider, "force_flush", None)
    if not callable(force):
        return
    try:
        async with asyncio.timeout(seconds):
            sent = await _in_thread(lambda: force(int(seconds * 1000)))
    except TimeoutError:
        sent = False
    except Exception as error:  # noqa: BLE001  # an exporter's error is no reason to end otherwise
        _log.error("%s could not be sent: %r", what, error)
        return
    # Some say nothing where all went well.
    if sent is False:
        _log.warning("%s were not all sent within %g s", what, seconds)


def _in_thread(fn: Callable[[], Any]) -> asyncio.Future[Any]:
    """``fn()`` in a thread that holds up neither the loop nor the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def tell(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = fn()
        except BaseException as raised:  # noqa: BLE001  # for who awaits it
            error = raised
        with suppress(RuntimeError):  # the loop may be closed
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=work, name="flush", daemon=True).start()
    return future
