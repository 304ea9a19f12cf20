"""Middleware: functions that wrap a handler. Each can be used bare, such as ``recover``, or with settings."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from lifecycle._durations import in_seconds
from lifecycle._util import name_of
from lifecycle.control.calls import as_async
from lifecycle.errors import NotHandled, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lifecycle._durations import Duration
    from lifecycle.control.types import Wrapper

__all__ = ["log", "once", "recover", "timeout"]

_E = TypeVar("_E")

#: A wrapped handler, which takes the same events as the original one.
_Wrapped: TypeAlias = "Callable[[_E], Coroutine[Any, Any, None]]"


@overload
def once(handler: Callable[[_E], Any], /) -> _Wrapped[_E]: ...


@overload
def once() -> Wrapper: ...


def once(handler: Callable[..., Any] | None = None, /) -> Any:
    """Run ``handler`` until it has succeeded once. Calls during and after that run return without running it.

    A run that raises an error or is cancelled does not count, so the next call runs the handler again.
    """

    def middleware(handler: Callable[..., Any]) -> _Wrapped[Any]:
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

    return middleware if handler is None else middleware(handler)


@overload
def recover(wrapped: Callable[[_E], Any], /) -> _Wrapped[_E]: ...


@overload
def recover(*, handler: Callable[[Any, Exception], Any] | None = None) -> Wrapper: ...


def recover(
    wrapped: Callable[..., Any] | None = None, /, *, handler: Callable[[Any, Exception], Any] | None = None
) -> Any:
    """Catch every `Exception` except `NotHandled` and `Refused`.

    Use it as ``recover`` or as ``recover(handler=…)``.

    Args:
        wrapped: The handler to wrap. The router passes it.
        handler: Called as ``handler(event, error)``, async or plain. By default, the error is logged.
    """
    react = None if handler is None else as_async(_with_pair(handler))

    def middleware(wrapped: Callable[..., Any]) -> _Wrapped[Any]:
        call = as_async(wrapped)

        @functools.wraps(wrapped, updated=())
        async def recovered(event: Any) -> Any:
            try:
                return await call(event)
            except (NotHandled, Refused):
                raise
            except Exception as error:  # noqa: BLE001  # its purpose is to catch every error
                if react is None:
                    _log.exception("%s failed on %s; recovered", name_of(wrapped), event.topic)
                else:
                    await react((event, error))
                return None

        return recovered

    return middleware if wrapped is None else middleware(wrapped)


def _with_pair(handler: Callable[[Any, Exception], Any]) -> Callable[[tuple[Any, Exception]], Any]:
    if not callable(handler):
        raise TypeError(f"recover(handler={handler!r}) is not a function; use one such as lambda event, error: …")
    return lambda pair: handler(*pair)


@overload
def log(wrapped: Callable[[_E], Any], /) -> _Wrapped[_E]: ...


@overload
def log(*, logger: logging.Logger | None = None, level: int = logging.INFO) -> Wrapper: ...


def log(
    wrapped: Callable[..., Any] | None = None, /, *, logger: logging.Logger | None = None, level: int = logging.INFO
) -> Any:
    """Log when each call starts and finishes, and how long it took. An error is logged with its traceback.

    Use it as ``log`` or with settings, as ``log(level=…)``.

    Args:
        wrapped: The handler to wrap. The router passes it.
        logger: The logger. By default, ``lifecycle.control``.
        level: The level of the messages. `NotHandled` is logged at DEBUG.
    """
    out = logger or _log

    def middleware(wrapped: Callable[..., Any]) -> _Wrapped[Any]:
        call = as_async(wrapped)
        name = name_of(wrapped)

        @functools.wraps(wrapped, updated=())
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

    return middleware if wrapped is None else middleware(wrapped)


@overload
def timeout(seconds: Callable[[_E], Any], /) -> _Wrapped[_E]: ...


@overload
def timeout(seconds: Duration = 30.0) -> Wrapper: ...


def timeout(seconds: Duration | Callable[..., Any] = 30.0) -> Any:
    """Cancel a call that takes longer than ``seconds``, and raise `TimeoutError`.

    Use it as ``timeout(5)``, or as ``timeout`` for 30 seconds.

    Raises:
        ValueError: if ``seconds`` is not greater than 0.
    """
    if callable(seconds):
        return timeout()(seconds)
    limit = in_seconds("timeout", seconds)

    def middleware(handler: Callable[..., Any]) -> _Wrapped[Any]:
        call = as_async(handler)

        @functools.wraps(handler, updated=())
        async def limited(event: Any) -> Any:
            async with asyncio.timeout(limit):
                return await call(event)

        return limited

    return middleware


_log = logging.getLogger("lifecycle.control")
