"""Ending the program: `ShutdownHandler` at once, `TerminateHandler` after suspending."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lifecycle.control.routing import as_async
from lifecycle.events import ShutdownEvent, SuspendEvent
from lifecycle.handlers._calls import adapted

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.control.types import AsyncHandler, Handler
    from lifecycle.events import Topical
    from lifecycle.handlers.suspend import Suspendable

__all__ = ["ShutdownHandler", "TerminateHandler"]

_log = logging.getLogger("lifecycle.handlers")


class ShutdownHandler:
    """Calls ``fn``, async or plain, with the event if it takes one; then shuts the current lifetime down.

    Once: events after the first are ignored, also while ``fn`` runs. The lifetime is shut down even if ``fn`` fails,
    and the error comes out. Outside a lifetime there is only ``fn``.

    Raises:
        TypeError: when ``fn`` is no function of at most one argument.
    """

    def __init__(self, fn: Callable[..., Any] | None = None) -> None:
        self._fn = None if fn is None else adapted(fn, "a ShutdownHandler's function", "event")
        #: Whether it has been called.
        self.called: bool = False

    async def __call__(self, event: Topical) -> None:
        """Shut down, the first time."""
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
    from lifecycle.runtime import shutdown  # here, so that handlers can be used without a runtime

    try:
        shutdown()
    except LookupError:
        _log.debug("there is no lifetime to shut down here")


class TerminateHandler:
    """Suspends, so that state is saved, then shuts down.

    ``suspend`` is a `SuspendHandler`, anything else with ``suspend()``, or a handler, which gets a `SuspendEvent`;
    ``shutdown`` is a handler and gets a `ShutdownEvent`; either may be None. If ``suspend`` fails, ``shutdown`` is
    still called, and the errors of both come out as one `ExceptionGroup`, also if there is only one;
    with ``continue_on_failure=False`` the error of ``suspend`` comes out as it is and nothing is shut down.

    Raises:
        TypeError: for a handler that is no callable of one argument.
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
        for step, order in ((self._suspend, SuspendEvent()), (self._shutdown, ShutdownEvent(event.topic))):
            try:
                if step is not None:
                    await step(order)
            except Exception as error:
                if not self._continue:
                    raise
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"{event.topic} was carried out with errors", errors)


def _suspending(suspend: Any) -> AsyncHandler | None:
    """``suspend`` as a handler that returns when suspended: a method says so, an event may be ignored as a repeat."""
    if suspend is None:
        return None
    method = getattr(suspend, "suspend", None)
    if not callable(method):
        return as_async(suspend)
    call = adapted(method, "suspend()")
    return lambda _: call()
