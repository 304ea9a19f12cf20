"""Ctrl+C that does not stop the program: which routers want it, and what they are sent."""

from __future__ import annotations

import inspect
import logging
import signal
from typing import TYPE_CHECKING, Any, Protocol

from lifecycle.errors import LifecycleError
from lifecycle.events import ClearLineEvent, InterruptEvent, SignalEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lifecycle.events import Topical

__all__ = ["Drainable", "RouterLike", "as_router", "send", "send_interrupt", "wants_interrupt"]

_log = logging.getLogger("lifecycle.runtime")


class Drainable(Protocol):
    """What ends by itself when asked to: ``run`` returns after `stop`."""

    async def run(self) -> object:
        """Run until `stop`."""
        ...

    def stop(self) -> None:
        """Let `run` drain and end."""
        ...


class RouterLike(Drainable, Protocol):
    """What is known of a router here: it can be asked who would get a topic, and be sent events."""

    def explain(self, topic: str) -> Sequence[Any]:
        """The routes for ``topic``; each has a ``pattern``."""
        ...

    def emit_nowait(self, event: Topical) -> object:
        """Send ``event``."""
        ...

    def state(self) -> Any:
        """It is ``running`` once its sources have started."""
        ...


def as_router(thing: Any) -> RouterLike | None:
    """``thing``, if it is a router by its shape."""
    shaped = all(callable(getattr(thing, name, None)) for name in ("explain", "emit_nowait", "run", "state", "stop"))
    return thing if shaped and not inspect.isclass(thing) else None


def wants_interrupt(router: RouterLike) -> bool:
    """Whether it has a route made for Ctrl+C; a catch-all such as ``**`` is none, or a logger would block Ctrl+C."""
    try:
        return any(str(info.pattern).startswith("signal/") for info in router.explain("signal/interrupt"))
    except Exception:  # noqa: BLE001  # called inside a signal handler: whatever fails there must not stop Ctrl+C
        return False


def send(routers: Iterable[RouterLike], *events: Topical) -> None:
    """Send ``events`` to each router; that nobody takes one, or has no room, is no error."""
    for router in routers:
        for event in events:
            try:
                router.emit_nowait(event)
            except LifecycleError as error:
                _log.debug("%r was not taken by %r: %s", event, router, error)


def send_interrupt(routers: Iterable[RouterLike], *, sent_by_source: bool) -> None:
    """Tell the routers of a captured Ctrl+C; where a source makes events of signals, the routes have it already."""
    takers = [router for router in routers if wants_interrupt(router)]
    if not takers:
        send(routers, InterruptEvent(), ClearLineEvent())
    elif not sent_by_source:
        send(takers, SignalEvent(signal.SIGINT))
