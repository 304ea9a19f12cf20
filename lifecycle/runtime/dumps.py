"""What people are told on stderr, in any thread and in signal handlers: also where everything stands."""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import traceback
from typing import Any

__all__ = ["dump_stacks", "stacks", "tell_terminal", "write_stderr"]


def dump_stacks(loop: asyncio.AbstractEventLoop, headline: str) -> None:
    """Write the stacks of all threads and of the tasks of ``loop`` to stderr; callable in any thread."""
    write_stderr(f"{headline}\n\n{stacks(loop)}")


def stacks(loop: asyncio.AbstractEventLoop) -> str:
    """The stacks of all threads and of the tasks of ``loop``; callable in any thread."""
    return f"{_threads()}\n{_tasks(loop)}"


def write_stderr(text: str) -> None:
    """Write and flush, if there is a stderr that takes it."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, RuntimeError, ValueError):
        # None, gone, closed, or interrupted in the middle of a write: there is nobody left to tell.
        return


def tell_terminal(line: str) -> None:
    """Write ``line`` to stderr if that is a terminal."""
    try:
        is_terminal = sys.stderr.isatty()
    except (AttributeError, OSError, ValueError):  # None, or closed
        return
    if is_terminal:
        write_stderr(f"{line}\n")


def _threads() -> str:
    import tempfile  # rarely needed, and slow to import

    # faulthandler writes to descriptors only, and sys.stderr may be something else.
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode("utf-8", "replace")


def _tasks(loop: asyncio.AbstractEventLoop) -> str:
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    return "\n".join(f"Task {task.get_name()}:\n{_stack(task)}" for task in tasks)


def _stack(task: asyncio.Task[Any]) -> str:
    """Where ``task`` waits, down to the innermost await: asyncio itself shows the outermost only."""
    lines: list[str] = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            break
        lines += traceback.format_stack(frame, limit=1)
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return "".join(lines)
