"""One call for each of many rows, some at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable

__all__ = ["outcomes"]


async def outcomes(
    call: Callable[[Any], Coroutine[Any, Any, Any]], rows: Iterable[Any], *, ordered: bool, limit: int
) -> AsyncGenerator[Any, None]:
    """What ``call`` returns for each of ``rows``, which are read as they are needed, ``limit`` calls at a time.

    The first error is raised; then, and when it is closed, the calls that still run are cancelled and awaited.
    """
    left = iter(rows)
    tasks: deque[asyncio.Task[Any]] = deque()
    try:
        while True:
            while len(tasks) < limit:
                try:
                    row = next(left)
                except StopIteration:
                    break
                tasks.append(asyncio.create_task(call(row)))
            if not tasks:
                return
            yield await _next(tasks, ordered=ordered)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _next(tasks: deque[asyncio.Task[Any]], *, ordered: bool) -> Any:
    """Wait for the first of ``tasks``, or for the first that is done, and take it out."""
    if not ordered:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        task = next(task for task in tasks if task in done)
        tasks.remove(task)
        return task.result()
    await asyncio.wait({tasks[0]})
    return tasks.popleft().result()
