"""Functions that stop waiting when the program begins to stop: `sleep`, and `read_line`, which loses no lines."""

from __future__ import annotations

import asyncio
import io
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from lifecycle._async import cancel_later
from lifecycle._durations import in_seconds
from lifecycle.errors import Interrupted
from lifecycle.runtime.lifetimes import current, current_lifetime

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from lifecycle._durations import Duration

__all__ = ["Lines", "read_line", "sleep"]

_T_co = TypeVar("_T_co", bound="bytes | str", covariant=True)
_T = TypeVar("_T", bound="bytes | str")


class Lines(Protocol[_T_co]):
    """A source of lines, such as an `asyncio.StreamReader`."""

    def readline(self) -> Awaitable[_T_co]:
        """Return the next line, or an empty line at the end of the stream."""
        ...


async def sleep(seconds: Duration) -> None:
    """Wait for ``seconds``. If the lifetime begins to stop, the wait ends early with an error.

    Use this before an action that the user should still be able to prevent with Ctrl+C.

    Raises:
        Interrupted: if the lifetime begins to stop or is already stopping.
        LookupError: if called outside a lifetime.
    """
    lifetime = current()
    limit = in_seconds("seconds", seconds, least=0)
    try:
        async with asyncio.timeout(limit):
            await lifetime.wait_stopping()
    except TimeoutError:
        return
    raise Interrupted(f"the program began to stop ({lifetime.reason}) during a sleep of {limit:g} s")


async def read_line(stream: Lines[_T], *, mode: Literal["shield", "strict"] = "shield") -> _T:
    """Return the next line of ``stream``. The wait ends if the program begins to stop or the caller is cancelled.

    No lines are lost, except as described for ``mode``.

    Args:
        stream: An object with an async ``readline``, such as an `asyncio.StreamReader`.
        mode: The behaviour if a line arrives at the same time as the shutdown or cancellation. ``"shield"`` returns the
            line, and the cancellation takes effect at the next await. ``"strict"`` discards the line.

    Raises:
        Interrupted: if the lifetime begins to stop and no line has arrived, or a line was discarded. If the caller is
            cancelled at the same time, the cancellation takes effect at the next await.
        ValueError: if ``mode`` is unknown.
        TypeError: if ``readline`` is a plain function.
    """
    if mode not in ("shield", "strict"):
        raise ValueError(f"mode={mode!r} is unknown; use 'shield' or 'strict'")
    given: object = stream
    if isinstance(given, io.IOBase):
        raise TypeError(f"{stream!r} blocks while it reads; pass an asyncio.StreamReader, or use InputSource")
    # Raise a pending cancellation here, before taking a line, so that even a reader that never waits can be cancelled.
    await asyncio.sleep(0)
    reading = asyncio.ensure_future(stream.readline())
    stopped, cancelled = await _wait_for(reading)
    if not stopped and cancelled is None:
        return reading.result()
    if cancelled is not None:
        if not stopped and reading.cancelled():
            raise cancelled
        cancel_later(cancelled)
    if reading.cancelled():
        raise Interrupted("the program began to stop before a line arrived")
    if mode == "strict":
        raise Interrupted("a line that arrived during a stop or cancellation was discarded") from reading.exception()
    return reading.result()


async def _wait_for(reading: asyncio.Future[Any]) -> tuple[bool, asyncio.CancelledError | None]:
    """Wait for ``reading``.

    Cancel it if the lifetime begins to stop or the caller is cancelled, and return which of these happened.
    """
    life = current_lifetime()
    cancelled: asyncio.CancelledError | None = None
    with nullcontext(reading) if life is None else life.stop_awaited() as stop:
        try:
            await asyncio.wait({reading, stop}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
        stopped = life is not None and stop.done()
    # The read may still return a line, so a cancellation takes effect only once the read has ended.
    while not reading.done():
        reading.cancel()
        try:
            await asyncio.wait({reading})
        except asyncio.CancelledError as error:
            cancelled = error
    return stopped, cancelled
