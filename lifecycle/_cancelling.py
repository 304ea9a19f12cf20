"""Cancellations: telling the running task's own from a stray one, and putting one off."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

__all__ = ["cancel_later", "shield", "was_cancelled"]

_T = TypeVar("_T")


def was_cancelled() -> bool:
    """Whether somebody cancelled the running task; what a user wrote may also raise CancelledError by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def cancel_later(cancelled: asyncio.CancelledError) -> None:
    """Let a cancellation of the running task that was caught take effect at its next await."""
    task = asyncio.current_task()
    assert task is not None, "only a task can be cancelled"
    # A cancellation now would end a task that returns without another await, and lose its result.
    asyncio.get_running_loop().call_soon(_cancel_again, task, *cancelled.args)


def _cancel_again(task: asyncio.Task[Any], *message: Any) -> None:
    # The cancellation may have been withdrawn: a time-out does so when its block is left.
    if not task.done() and task.cancelling():
        # It stays one request, so that time-outs and task groups recognise theirs.
        task.uncancel()
        task.cancel(*message)


async def shield(work: asyncio.Future[_T]) -> _T:
    """Wait for ``work`` even if the caller is cancelled; the cancellation is raised when it has ended."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as error:
            cancelled = error
    result = work.result()
    if cancelled is not None:
        raise cancelled
    return result
