"""Waits that a stop ends: `sleep`, and `read_line`, which says what becomes of data that came with it."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from lifecycle.errors import Interrupted
from lifecycle.runtime.lifetimes import current, current_life

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["Lines", "read_line", "sleep"]

_T_co = TypeVar("_T_co", bound="bytes | str", covariant=True)
_T = TypeVar("_T", bound="bytes | str")


class Lines(Protocol[_T_co]):
    """What lines are read from, such as an `asyncio.StreamReader`."""

    def readline(self) -> Awaitable[_T_co]:
        """The next line, empty at the end."""
        ...


async def sleep(seconds: float) -> None:
    """Wait ``seconds``, so that the user can still think better of it.

    Raises:
        Interrupted: at once when the lifetime begins to stop, or is stopping already.
        LookupError: outside a lifetime.
    """
    lifetime = current()
    try:
        async with asyncio.timeout(seconds):
            await lifetime.wait_stopping()
    except TimeoutError:
        return
    raise Interrupted(f"the program began to stop ({lifetime.reason}) during a sleep of {seconds} s")


async def read_line(stream: Lines[_T], *, mode: Literal["shield", "strict"] = "shield") -> _T:
    """The next line of ``stream``, or an end to the wait when the program stops or the caller is cancelled.

    With ``"shield"``, data first: a line that came together with the cancellation is returned, and the cancellation
    takes effect at the next await. With ``"strict"``, safety first: such a line is discarded.

    Raises:
        Interrupted: when the lifetime began to stop and no line came with that; in mode ``"strict"`` also when one
            did, or came with a cancellation (which then takes effect at the next await).
        ValueError: for another mode.
        TypeError: for a stream whose ``readline`` blocks.
    """
    if mode not in ("shield", "strict"):
        raise ValueError(f"mode={mode!r} is unknown; give 'shield' or 'strict'")
    given: object = stream
    if isinstance(given, io.IOBase):
        raise TypeError(f"{stream!r} blocks while it reads; give an asyncio.StreamReader, or use InputSource")
    reading = asyncio.ensure_future(stream.readline())
    stopping = asyncio.ensure_future(_stopping())
    cancelled = None
    try:
        await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        interrupted = stopping.done()
    except asyncio.CancelledError as error:
        cancelled, interrupted = error, True
    got_line = await _settle(reading, stopping)
    if not interrupted:
        return reading.result()
    if not got_line:
        raise cancelled or Interrupted("the program began to stop before a line came")
    if cancelled is not None:
        _rearm(cancelled)
    if mode == "strict":
        raise Interrupted("a line that came while the program began to stop was discarded") from reading.exception()
    return reading.result()


async def _stopping() -> None:
    """Return when the current lifetime stops; never, where there is none."""
    life = current_life.get(None)
    await (asyncio.Event().wait() if life is None else life.wait_stopping())


async def _settle(reading: asyncio.Future[_T], stopping: asyncio.Future[None]) -> bool:
    """End both waits; whether a line was read."""
    ended: list[asyncio.Future[Any]] = [reading, stopping]
    for each in ended:
        each.cancel()
    await asyncio.wait(ended)
    return not reading.cancelled()


def _rearm(cancelled: asyncio.CancelledError) -> None:
    """Let the cancellation that was caught take effect at the next await."""
    task = asyncio.current_task()
    assert task is not None, "only a task can be cancelled"
    # Not at once: a task that ends with the line would end cancelled, and the line would be lost.
    asyncio.get_running_loop().call_soon(_cancel_again, task, *cancelled.args)


def _cancel_again(task: asyncio.Task[Any], *message: Any) -> None:
    # Whoever cancelled may have taken it back: a time-out that was left with the line has.
    if not task.done() and task.cancelling():
        # It stays one request, so that time-outs and task groups recognise theirs.
        task.uncancel()
        task.cancel(*message)
