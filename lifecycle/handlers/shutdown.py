"""Handlers that shut down the program.

`ShutdownHandler` does this immediately, `TerminateHandler` after suspending, and `Escalator` step by step.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any

from lifecycle._durations import in_seconds_or_none
from lifecycle._util import name_of
from lifecycle.control.calls import as_async
from lifecycle.errors import Dropped, NotHandled
from lifecycle.events import ShutdownEvent, SuspendEvent
from lifecycle.handlers._calls import adapted
from lifecycle.handlers.suspend import SuspendHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle._durations import Duration
    from lifecycle.control.types import AsyncHandler, Handler
    from lifecycle.events import Topical
    from lifecycle.handlers.suspend import Suspendable

__all__ = ["Escalator", "ShutdownHandler", "TerminateHandler"]

_log = logging.getLogger("lifecycle.handlers")


class ShutdownHandler:
    """Calls ``fn``, which may be async or synchronous, and then shuts down the current lifetime.

    ``fn`` receives the event if it has a parameter for it. Only the first event has an effect, even while ``fn`` is
    still running. If ``fn`` fails, the lifetime is shut down anyway, and the error is raised. Outside a lifetime, the
    handler only calls ``fn``.

    Raises:
        TypeError: if ``fn`` is not a function that can be called with at most one argument.
    """

    def __init__(self, fn: Callable[..., Any] | None = None) -> None:
        self._fn = None if fn is None else adapted(fn, "a ShutdownHandler's function", "event")
        #: True once the handler has been called.
        self.called: bool = False

    async def __call__(self, event: Topical) -> None:
        """Shut down on the first call, and ignore any others."""
        if self.called:
            return
        self.called = True
        _log.info("shutting down on %s", event.topic)
        try:
            if self._fn is not None:
                await self._fn(event)
        finally:
            _shut_lifetime_down()


def _shut_lifetime_down() -> None:
    from lifecycle.runtime import shutdown  # imported here, so that handlers can be used without a runtime

    try:
        shutdown()
    except LookupError:
        _log.debug("there is no lifetime to shut down here")


class TerminateHandler:
    """Suspends the program to save its state, and then shuts it down.

    ``suspend`` is a `SuspendHandler`, another object with ``suspend()``, or a handler that is called with a
    `SuspendEvent`. ``shutdown`` is a handler that is called with a `ShutdownEvent`. Either may be None. If ``suspend``
    fails, ``shutdown`` is still called. Errors are always raised as an `ExceptionGroup`, even if there is only one.
    With ``continue_on_failure=False``, an error from ``suspend`` is raised unchanged, and nothing is shut down.

    Raises:
        TypeError: if a handler cannot be called with one argument.
    """

    def __init__(
        self,
        suspend: Suspendable | Handler | None,
        shutdown: Handler | None,
        *,
        continue_on_failure: bool = True,
    ) -> None:
        self._suspend = _suspending(suspend)
        self._shutdown = None if shutdown is None else as_async(shutdown)
        self._continue = continue_on_failure

    async def __call__(self, event: Topical) -> None:
        """Suspend, then shut down."""
        errors: list[Exception] = []
        for step, step_event in ((self._suspend, SuspendEvent()), (self._shutdown, ShutdownEvent(event.topic))):
            try:
                if step is not None:
                    await step(step_event)
            except Exception as error:
                if not self._continue:
                    raise
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"{event.topic} had errors", errors)


def _suspending(suspend: Any) -> AsyncHandler | None:
    """Return ``suspend`` as a handler.

    If it has a ``suspend`` method, call that method, because handling a repeated event may return early.
    """
    if suspend is None:
        return None
    method = getattr(suspend, "suspend", None)
    if not callable(method):
        return as_async(suspend)
    call = adapted(method, "suspend()")
    return lambda _: call()


class Escalator:
    """Passes events to ``primary`` until it escalates, and then to ``fallback``.

    It escalates when ``primary`` raises `NotHandled`, and passes the same event to ``fallback``. If ``window`` is set,
    it also escalates when an event arrives within ``window`` seconds of the previous one, even if ``primary`` is still
    handling that event. Any other error raised by ``primary``, including `Dropped`, is raised and has no further
    effect.

    `reset` makes it return to ``primary``. If ``primary`` is a `SuspendHandler`, this happens after each successful
    resume. For any other object with ``when_resumed``, pass ``escalator.reset`` to that method.

    Raises:
        TypeError: if a handler cannot be called with one argument.
        ValueError: if ``window`` is neither None nor a positive number of seconds.
    """

    def __init__(self, primary: Handler, fallback: Handler, *, window: Duration | None = None) -> None:
        self._primary, self._fallback = as_async(primary), as_async(fallback)
        self._names = f"{name_of(primary)} to {name_of(fallback)}"
        self._window = in_seconds_or_none("window", window)
        self._last = -math.inf
        #: True if events now go to ``fallback``.
        self.escalated: bool = False
        if isinstance(primary, SuspendHandler):
            primary.when_resumed(self.reset)

    def __repr__(self) -> str:
        return f"<Escalator from {self._names}{', escalated' if self.escalated else ''}>"

    def reset(self) -> None:
        """Pass the next event to ``primary`` again."""
        self.escalated = False
        self._last = -math.inf

    async def __call__(self, event: Topical) -> None:
        """Handle ``event``. Errors raised by the handler that received it are raised here."""
        if self._is_second():
            self.escalated = True
        if not self.escalated:
            try:
                await self._primary(event)
            except Dropped:
                raise
            except NotHandled:
                self.escalated = True
            else:
                return
        await self._fallback(event)

    def _is_second(self) -> bool:
        if self._window is None:
            return False
        now = asyncio.get_running_loop().time()
        before, self._last = self._last, now
        return now - before <= self._window
