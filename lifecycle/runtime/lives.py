"""The machinery of one lifetime: its first cause, and what has to end before it does.

`lifetimes.Lifetime` is what users see of it, `signals` feeds it with signals, `stopping` ends it.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from lifecycle.runtime.background import Background
from lifecycle.runtime.components import Components
from lifecycle.runtime.force import tell_terminal
from lifecycle.runtime.lifetimes import Lifetime, current_life
from lifecycle.runtime.records import LifetimeState, Reason
from lifecycle.runtime.signals import Escalation
from lifecycle.runtime.stopping import Deadline, Draining, ShutdownHooks, StartedWorkers, has_route_for

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lifecycle.runtime.records import Settings
    from lifecycle.runtime.stopping import RouterLike
    from lifecycle.runtime.systemd import Notifier

__all__ = ["Life"]


class Life:
    """One lifetime from the inside. `begin` and what it calls are safe in threads and in signal handlers."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop, outer: Life | None = None) -> None:
        self.settings = settings
        self.loop = loop
        self.lifetime: Final = Lifetime(self)
        #: Whether signals reach it through the outer one, which counts them for both.
        self.is_governed: bool = outer is not None and outer.hears_signals
        self.escalation: Escalation = outer.escalation if outer and self.is_governed else Escalation(settings)
        self.background: Final = Background(self)
        self.shutdown_hooks: Final = ShutdownHooks(self.lifetime, settings.hook_timeout)
        #: Hooks that run after those, and send measurements.
        self.flush_hooks: Final = ShutdownHooks(self.lifetime, settings.hook_timeout, cut=True)
        self.deadline: Final = Deadline(self)
        self.workers: Final = StartedWorkers(self)
        #: What can be asked for its state.
        self.components: Final = Components(self)
        self.outer = outer
        #: Lifetimes inside this one: they learn of its end.
        self.inner: list[Life] = []
        #: Whether signals reach it, directly or through an outer one.
        self.hears_signals: bool = self.is_governed
        #: Whether another program runs the event loop and gets the signals.
        self.is_embedded = False
        #: The routers that run under it, and whatever else drains.
        self.draining: Final = Draining(self)
        #: Called in the loop once the shutdown has begun.
        self.interrupt: Callable[[], None] = _nothing
        #: Whom to tell how it goes, where systemd has asked.
        self.notifier: Notifier | None = None
        #: Whether all mains have started; a block has none.
        self.is_up: bool = False
        self.reason: Reason = Reason.NONE
        self.signum: int | None = None
        # The waits for the stop, in the order in which they began.
        self._stop_waits: dict[asyncio.Future[None], None] = {}
        self._has_begun = False
        # Whoever draws the first number is the first cause; drawing one is atomic, and takes no lock.
        self._causes = itertools.count()
        #: Whether it takes nothing more that would have to run.
        self.over: bool = False
        #: When it began, in seconds since the epoch.
        self.started_at: float = time.time()
        #: Where code that the lifetime calls by itself runs.
        self.context: contextvars.Context = contextvars.copy_context()

    # -- readiness ------------------------------------------------------------------------------------------------

    def up(self) -> None:
        """All mains have started."""
        self.is_up = True
        if self.notifier is not None:
            self.notifier.ready()

    @property
    def ready(self) -> bool:
        """`Lifetime.ready`."""
        if not self.is_up or self.reason is not Reason.NONE or (self.outer is not None and not self.outer.ready):
            return False
        return all(router.state().running for router in self.draining.routers)

    @property
    def stopping(self) -> bool:
        """Whether the shutdown has begun."""
        return self.reason is not Reason.NONE

    # -- the first cause ------------------------------------------------------------------------------------------

    def begin(self, reason: Reason, signum: int | None = None) -> None:
        """Begin the shutdown, if it has not begun."""
        if next(self._causes):
            return
        self.deadline.set()
        self.signum = signum
        self.reason = reason
        for inner in tuple(self.inner):
            inner.begin(reason, signum)
        self.call_soon(self._begun)
        if reason is not Reason.STOP and not self.is_governed and self.escalation.count and self.escalation.limit():
            tell_terminal(f"stopping{self.next_step()}")

    def begin_for_signal(self, signum: int) -> None:
        """Begin the shutdown because of a signal."""
        self.begin(Reason.INTERRUPT if signum == signal.SIGINT else Reason.TERMINATE, signum)

    def next_step(self) -> str:
        """How the user can end the program by force, to be added to a message; empty if that is impossible."""
        escalation = self.escalation
        left = escalation.limit() - escalation.count
        if not escalation.limit():
            return ""
        return f"; press Ctrl+C {'again' if left <= 1 else f'{left} more times'} to force"

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Call in the loop, from anywhere; not at all once the loop is closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *args, context=self.context)

    def _begun(self) -> None:
        self._has_begun = True
        # A copy: a plain function may wait in a thread, in a loop of its own.
        for wait in tuple(self._stop_waits):
            if not wait.done():
                wait.set_result(None)
        if self.notifier is not None:
            self.notifier.stopping(self.reason)
        # A lifetime inside another is ended by whoever owns the code around it, in that one's order.
        if self.outer is None or self.outer.reason is Reason.NONE:
            # After those who wait for the stop: a `sleep` in the block is interrupted rather than cancelled.
            self.loop.call_soon(self.loop.call_later, self.draining.delay(self.deadline.left_for_work), self.interrupt)

    @contextmanager
    def stop_awaited(self) -> Generator[asyncio.Future[None]]:
        """Give the block a future that is done when the shutdown has begun."""
        wait: asyncio.Future[None] = self.loop.create_future()
        if self._has_begun:
            wait.set_result(None)
        self._stop_waits[wait] = None
        try:
            yield wait
        finally:
            del self._stop_waits[wait]

    async def wait_stopping(self) -> None:
        """Return when the shutdown has begun."""
        with self.stop_awaited() as wait:
            await wait

    # -- what runs under it ---------------------------------------------------------------------------------------

    @contextmanager
    def as_current(self) -> Generator[None]:
        """Make it the current lifetime of the running task."""
        token = current_life.set(self)
        self.context = contextvars.copy_context()
        disconnect = self.workers.connect(), self.draining.connect(), self.components.connect()
        if self.outer is not None:
            self.outer.inner.append(self)
        try:
            yield
        finally:
            self.close()
            for each in disconnect:
                each()
            if self.outer is not None:
                self.outer.inner.remove(self)
            with suppress(ValueError):  # a framework may leave the block in another context than it entered it
                current_life.reset(token)

    def is_here(self) -> bool:
        """Whether code that runs here runs under it, and in its loop."""
        return self.is_current() and self.in_loop()

    def is_current(self) -> bool:
        """Whether code that runs here runs under it, in any thread."""
        return current_life.get(None) is self

    def in_loop(self) -> bool:
        """Whether this is the thread of its loop, and runs in it."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def context_below(self) -> contextvars.Context:
        """The running context, with this as the current lifetime: `Lifetime.go` can be called from elsewhere."""
        context = contextvars.copy_context()
        if context.get(current_life) is not self:
            context.run(current_life.set, self)
        return context

    def all_routers(self) -> tuple[RouterLike, ...]:
        """Those that run under it, and under the lifetimes inside it."""
        return (*self.draining.routers, *(router for inner in self.inner for router in inner.all_routers()))

    def routers_for(self, topic: str) -> tuple[RouterLike, ...]:
        """Those of `all_routers` that have a route made for ``topic``."""
        return tuple(router for router in self.all_routers() if has_route_for(router, topic))

    @property
    def had_router(self) -> bool:
        """Whether one has run under it, or runs in a lifetime inside it."""
        return self.draining.had_router or any(inner.had_router for inner in self.inner)

    def all_components(self) -> tuple[object, ...]:
        """`Lifetime.components`."""
        return (*self.components(), *(each for inner in self.inner for each in inner.all_components()))

    def close(self) -> None:
        """Take nothing more that would have to run."""
        self.over = True
        self.shutdown_hooks.close()
        self.flush_hooks.close()

    def state(self) -> LifetimeState:
        """`Lifetime.state`."""
        routed = self.reason is Reason.NONE and bool(self.routers_for("signal/interrupt"))
        return LifetimeState(
            reason=self.reason,
            signum=self.signum,
            stopping=self.reason is not Reason.NONE,
            signals=self.escalation.count,
            force_exit_at=self.escalation.limit(routed=routed) if self.hears_signals else 0,
            tasks=self.background.names,
            tasks_started=self.background.started,
            tasks_crashed=self.background.crashed,
            hooks=len(self.shutdown_hooks),
            workers=self.workers.names,
            embedded=self.is_embedded,
        )


def _nothing() -> None:
    return None
