"""Handlers that end the program.

`ShutdownHandler` does so immediately, `TerminateHandler` after suspending, and `Escalator` step by step.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any

from lifecycle._durations import in_seconds_or_none
from lifecycle._util import name_of
from lifecycle.control.routing import as_async
from lifecycle.errors import Dropped, NotHandled
from lifecycle.events import ShutdownEvent, SuspendEvent
from lifecycle.handlers._calls import adapted

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle._durations import Duration
    from lifecycle.control.types import AsyncHandler, Handler
    from lifecycle.events import Topical
    from lifecycle.handlers.suspend import Suspendable

__all__ = ["Escalator", "ShutdownHandler", "TerminateHandler"]

_log = logging.getLogger("lifecycle.handlers")


class ShutdownHandler:
    """Calls ``fn``, async or plain, with the event if it takes one, and then shuts down the current lifetime.

    Only the first event has an effect, even while ``fn`` runs. The lifetime is shut down even if ``fn`` fails, and the
    error is raised. Outside a lifetime, the handler only calls ``fn``.

    Raises:
        TypeError: if ``fn`` is not a function of at most one argument.
    """

    def __init__(self, fn: Callable[..., Any] | None = None) -> None:
        self._fn = None if fn is None else adapted(fn, "a ShutdownHandler's function", "event")
        #: True if the handler has been called.
        self.called: bool = False

    async def __call__(self, event: Topical) -> None:
        """Shut down at the first call, and ignore later calls."""
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
    """Suspends, so that state is saved, and then shuts down.

    ``suspend`` is a `SuspendHandler`, another object with ``suspend()``, or a handler, which gets a `SuspendEvent`.
    ``shutdown`` is a handler and gets a `ShutdownEvent`. Either may be None. If ``suspend`` fails, ``shutdown`` is
    still called. All errors are raised as one `ExceptionGroup`, even a single one. With ``continue_on_failure=False``,
    the error of ``suspend`` is raised unchanged, and nothing is shut down.

    Raises:
        TypeError: for a handler that is not a callable of one argument.
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
    """Return ``suspend`` as a handler. Prefer its method ``suspend``, since a repeated event may return early."""
    if suspend is None:
        return None
    method = getattr(suspend, "suspend", None)
    if not callable(method):
        return as_async(suspend)
    call = adapted(method, "suspend()")
    return lambda _: call()


class Escalator:
    """Passes events to ``primary``, and to ``fallback`` once it has escalated.

    It escalates when ``primary`` raises `NotHandled`; the same event then goes to ``fallback``. With ``window``, it
    also escalates on a second event within ``window`` seconds of the previous one, even while ``primary`` is still
    handling that event. Any other error of ``primary``, including `Dropped`, is raised and has no further effect.

    `reset` starts again with ``primary``. A `SuspendHandler` as ``primary`` calls it after each successful resume. If
    another object has ``when_resumed``, pass it ``escalator.reset``.

    Raises:
        TypeError: for handlers that are not callables of one argument.
        ValueError: unless ``window`` is None or above 0.
    """

    def __init__(self, primary: Handler, fallback: Handler, *, window: Duration | None = None) -> None:
        self._primary, self._fallback = as_async(primary), as_async(fallback)
        self._names = f"{name_of(primary)} to {name_of(fallback)}"
        self._window = in_seconds_or_none("window", window)
        self._last = -math.inf
        #: True if ``fallback`` gets the events now.
        self.escalated: bool = False
        when_resumed = getattr(primary, "when_resumed", None)
        if when_resumed is not None:
            when_resumed(self.reset)

    def __repr__(self) -> str:
        return f"<Escalator from {self._names}{', escalated' if self.escalated else ''}>"

    def reset(self) -> None:
        """Pass the next event to ``primary`` again."""
        self.escalated = False
        self._last = -math.inf

    async def __call__(self, event: Topical) -> None:
        """Handle ``event``, and raise the errors of the handler that got it."""
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
