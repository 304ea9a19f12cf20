"""Middleware: most functions here take settings and return a function that wraps a handler."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from lifecycle._durations import in_seconds
from lifecycle._util import name_of
from lifecycle.control.calls import as_async, returns_middleware
from lifecycle.errors import NotHandled, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lifecycle._durations import Duration
    from lifecycle.control.types import Wrapper

__all__ = ["log", "once", "recover", "timeout"]

_E = TypeVar("_E")

#: A wrapped handler, which takes the same events as the original one.
_Wrapped: TypeAlias = "Callable[[_E], Coroutine[Any, Any, None]]"


def once(handler: Callable[[_E], Any]) -> _Wrapped[_E]:
    """Run ``handler`` until it has succeeded once. Calls during and after that run return without running it.

    A run that raises an error or is cancelled does not count, so the next call runs the handler again.
    """
    call = as_async(handler)
    ran = False

    @functools.wraps(handler, updated=())
    async def run_once(event: Any) -> Any:
        nonlocal ran
        if ran:
            return None
        ran = True
        try:
            return await call(event)
        except BaseException:
            ran = False
            raise

    return run_once


@returns_middleware
def recover(on_error: Callable[[Any, Exception], Any] | None = None) -> Wrapper:
    """Catch every `Exception` except `NotHandled` and `Refused`.

    Args:
        on_error: Called as ``on_error(event, error)``, async or plain. By default, the error is logged.
    """
    react = None if on_error is None else as_async(lambda pair: on_error(*pair))

    def middleware(handler: Callable[[_E], Any]) -> _Wrapped[_E]:
        call = as_async(handler)

        @functools.wraps(handler, updated=())
        async def recovered(event: Any) -> Any:
            try:
                return await call(event)
            except (NotHandled, Refused):
                raise
            except Exception as error:  # noqa: BLE001  # its purpose is to catch every error
                if react is None:
                    _log.exception("%s failed on %s; recovered", name_of(handler), event.topic)
                else:
                    await react((event, error))
                return None

        return recovered

    return middleware


@returns_middleware
def log(logger: logging.Logger | None = None, level: int = logging.INFO) -> Wrapper:
    """Log when each call starts and finishes, and how long it took. An error is logged with its traceback.

    Args:
        logger: The logger. By default, ``lifecycle.control``.
        level: The level of the messages. `NotHandled` is logged at DEBUG.
    """
    out = logger or _log

    def middleware(handler: Callable[[_E], Any]) -> _Wrapped[_E]:
        call = as_async(handler)
        name = name_of(handler)

        @functools.wraps(handler, updated=())
        async def logged(event: Any) -> Any:
            out.log(level, "%s started on %s", name, event.topic)
            began = time.perf_counter()
            try:
                value = await call(event)
            except NotHandled as passed:
                out.debug("%s passed %s on: %s", name, event.topic, passed)
                raise
            except Refused as refusal:
                out.log(level, "%s refused %s: %s", name, event.topic, refusal)
                raise
            except Exception:
                out.exception("%s failed on %s after %.3f s", name, event.topic, time.perf_counter() - began)
                raise
            out.log(level, "%s finished on %s after %.3f s", name, event.topic, time.perf_counter() - began)
            return value

        return logged

    return middleware


@returns_middleware
def timeout(seconds: Duration) -> Wrapper:
    """Cancel a call that takes longer than ``seconds``, and raise `TimeoutError`.

    Raises:
        ValueError: if ``seconds`` is not greater than 0.
    """
    limit = in_seconds("timeout", seconds)

    def middleware(handler: Callable[[_E], Any]) -> _Wrapped[_E]:
        call = as_async(handler)

        @functools.wraps(handler, updated=())
        async def limited(event: Any) -> Any:
            async with asyncio.timeout(limit):
                return await call(event)

        return limited

    return middleware


_log = logging.getLogger("lifecycle.control")
