"""Where a task or a thread that will not end stands, for the log."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    import threading
    from types import FrameType

__all__ = ["task_stack", "thread_stack"]


def task_stack(task: asyncio.Task[Any]) -> str:
    """The stack of ``task``, outermost call first, down to what it waits for."""
    lines: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame: FrameType | None = _either(awaited, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            lines += traceback.format_stack(frame, limit=1)
        awaited = _either(awaited, "cr_await", "gi_yieldfrom", "ag_await")
    return f"{task.get_name()}, at\n{''.join(lines)}".rstrip()


def thread_stack(thread: threading.Thread) -> str:
    """The stack of ``thread``, outermost call first."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # documented, despite its name
    lines = traceback.format_stack(frame) if frame is not None else []
    return f"{thread.name}, at\n{''.join(lines)}".rstrip()


def _either(thing: object, *names: str) -> Any:
    for name in names:
        if hasattr(thing, name):
            return getattr(thing, name)
    return None
