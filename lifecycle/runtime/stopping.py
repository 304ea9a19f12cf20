"""What ends by itself when asked to: the routers that run under a lifetime, and mains that have a plain ``stop``."""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from lifecycle import hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from lifecycle.events import Topical
    from lifecycle.runtime.lives import Life

__all__ = ["Drainable", "Draining", "RouterLike", "has_route_for"]

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


def has_route_for(router: RouterLike, topic: str) -> bool:
    """Whether it has a route made for ``topic``; a catch-all such as ``**`` is none, or a logger would block Ctrl+C."""
    kind = f"{topic.partition('/')[0]}/"
    try:
        return any(str(info.pattern).startswith(kind) for info in router.explain(topic))
    except Exception:  # noqa: BLE001  # called inside a signal handler: whatever fails there must not stop Ctrl+C
        return False


def _as_router(thing: Any) -> RouterLike | None:
    """``thing``, if it is a router by its shape."""
    shaped = all(callable(getattr(thing, name, None)) for name in ("explain", "emit_nowait", "run", "state", "stop"))
    return thing if shaped and not inspect.isclass(thing) else None


class Draining:
    """Remembers what drains: mains as they are begun, routers as `hooks.router_started` tells, whoever runs them."""

    def __init__(self, life: Life) -> None:
        self._life = life
        # The key is done when it has ended.
        self._running: dict[asyncio.Future[Any], Drainable] = {}
        #: Whether a router has ever run.
        self.had_router: bool = False
        # Seconds that those want who tell others that this is not ready any more.
        self._delays: list[float] = []
        # Until when they want it, by the loop's clock; None before the stop.
        self._until: float | None = None

    def connect(self) -> Callable[[], None]:
        """Begin to adopt routers; returns what ends it."""
        hooks.router_started.connect(self._router_started)
        return lambda: hooks.router_started.disconnect(self._router_started)

    def add(self, drainable: Drainable, ended: asyncio.Future[Any]) -> None:
        """Drain it first of all when the end comes, and, if it is a router, let it hear of signals until then."""
        self._running[ended] = drainable
        self.had_router |= _as_router(drainable) is not None
        ended.add_done_callback(self._running.pop)

    @property
    def routers(self) -> tuple[RouterLike, ...]:
        """Those that run."""
        return tuple(router for each in tuple(self._running.values()) if (router := _as_router(each)))

    @contextmanager
    def delayed(self, seconds: float) -> Generator[None]:
        """While the block runs, let a stop wait ``seconds`` first, for instance for a load balancer to notice."""
        self._delays.append(seconds)
        try:
            yield
        finally:
            self._delays.remove(seconds)

    def delay(self, left: Callable[[], float]) -> float:
        """Seconds for which everything has still to go on as before the stop, at most ``left()``."""
        # Of what has never been up, nobody has to notice the end.
        if not self._delays or not self._life.is_up:
            return 0.0
        now = self._life.loop.time()
        if self._until is None:
            self._until = now + max(self._delays)
        return min(max(0.0, self._until - now), left())

    async def drain(self, left: Callable[[], float]) -> None:
        """Let all end by themselves, after the longest delay: sources stop, windows flush, lanes run empty."""
        if (delay := self.delay(left)) > 0:
            await asyncio.sleep(delay)
        running = dict(reversed(tuple(self._running.items())))
        for drainable in running.values():
            drainable.stop()
        if not running:
            return
        _, stuck = await asyncio.wait(running, timeout=left())
        for ended in stuck:
            _log.warning("%r does not drain; it is cancelled", running[ended])
            ended.cancel()

    def _router_started(self, _sender: object, *, router: Any, **_: object) -> None:
        if not self._life.is_here() or any(each is router for each in self._running.values()):
            return
        # Not the task that runs it: that one may have more to do afterwards.
        ended: asyncio.Future[Any] = self._life.loop.create_future()
        self.add(router, ended)

        def stopped(_sender: object, **_: object) -> None:
            hooks.router_stopped.disconnect(stopped)
            if not ended.done():
                ended.set_result(None)

        hooks.router_stopped.connect(stopped, sender=router)
