"""What a sender is told who asked to wait until its event was handled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lifecycle.errors import Dropped, NotHandled
from lifecycle.sources._http.refusals import Refused

if TYPE_CHECKING:
    from lifecycle.control.deliveries import Delivery

__all__ = ["STILL_RUNNING", "handled", "refusal_of"]

#: The status of an answer that does not know the end: the event goes on.
STILL_RUNNING = 504


async def handled(delivery: Delivery, seconds: float) -> None:
    """Return when the handler has, but wait no longer than ``seconds``.

    Raises:
        Refused: when the handler failed, nobody wanted the event, or it is still under way.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await delivery
    except NotHandled as error:
        raise refusal_of(error, delivery.event.topic) from None
    except Exception:  # noqa: BLE001  # whatever it raised was logged by the router, and is nobody's business
        # A handler may raise TimeoutError, too.
        if limit.expired():
            raise Refused(STILL_RUNNING, f"its handler still runs after {seconds:g} s, and goes on") from None
        raise Refused(500, "its handler failed") from None


def refusal_of(error: NotHandled, topic: str) -> Refused:
    """What to answer for an event that nobody took."""
    if isinstance(error, Dropped):
        return Refused.for_now(503, "the event was dropped; its handler is busy")
    return Refused(404, f"nothing handles {topic!r}")
