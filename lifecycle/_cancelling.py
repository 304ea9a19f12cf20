"""Whose cancellation it is: the running task's, or one that code below it raised of its own accord."""

from __future__ import annotations

import asyncio

__all__ = ["was_cancelled"]


def was_cancelled() -> bool:
    """Whether somebody cancelled the running task; what a user wrote may also raise CancelledError by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
