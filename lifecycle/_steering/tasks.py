"""The program's asyncio tasks: finding them by name, and determining where each is waiting."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifecycle._text import listed
from lifecycle.runtime.force import frames_of
from lifecycle.workers.model import WorkerState

if TYPE_CHECKING:
    import traceback
    from collections.abc import Iterable, Iterator

    from lifecycle.runtime import Lifetime

__all__ = ["TaskInfo", "find_task", "task_infos", "where"]

#: The directories of asyncio and this library. For a task that waits in them, the calling line in the program is more
#: useful.
_ASYNCIO = str(Path(asyncio.__file__).parent)
_LIBRARY = str(Path(sys.modules["lifecycle"].__file__ or "").parent)


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One of the program's tasks."""

    #: This ID is unique among the running tasks.
    id: str
    name: str
    #: The function's qualified name.
    function: str
    #: The number of seconds since the start. None unless the task was started with `go` or as a worker.
    age: float | None
    #: The file, line and function of the innermost frame outside libraries. None if the task has not started.
    waits_at: str | None
    #: The file and line where the task was created. None unless asyncio's debug mode is on.
    created_at: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a dict that `json.dumps` accepts."""
        return asdict(self)


def task_infos(lifetime: Lifetime) -> list[TaskInfo]:
    """Return the running tasks of the event loop, sorted by name."""
    ages = _ages(lifetime)
    found = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    return [
        TaskInfo(task_id(task), task.get_name(), _function(task), ages.get(task), where(task), _created_at(task))
        for task in found
    ]


def find_task(name: str) -> asyncio.Task[Any]:
    """Return the task with this name or ID.

    Raises:
        LookupError: if there is no such task, or more than one.
    """
    tasks = asyncio.all_tasks()
    found = [task for task in tasks if name in (task.get_name(), task_id(task))]
    if len(found) == 1:
        return found[0]
    if found:
        ids = [f"{task_id(task)} ({where(task) or 'not started'})" for task in found]
        raise LookupError(f"{len(found)} tasks are called {name!r}; use one of the ids {listed(ids)}")
    names = sorted({task.get_name() for task in tasks})
    raise LookupError(f"no task is called {name!r}; available: {listed(names)}")


def task_id(task: asyncio.Task[Any]) -> str:
    """Return an ID that no other running task has."""
    return f"{id(task):x}"


def where(task: asyncio.Task[Any]) -> str | None:
    """Return the file, line and function where the task is waiting, preferably in the program's own code."""
    frames = [(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in frames_of(task)]
    place = _innermost(frames)
    return None if place is None else f"{place[0]}:{place[1]} {place[2]}"


_Place = tuple[str, int, str]


def _innermost(frames: list[_Place]) -> _Place | None:
    """Return the innermost frame in the program, or else in a library, or else in asyncio."""
    for left_out in ((_LIBRARY, *_packages()), (_ASYNCIO,), ()):
        found = [frame for frame in frames if not frame[0].startswith(left_out)] if left_out else frames
        if found:
            return found[-1]
    return None


@cache
def _packages() -> tuple[str, ...]:
    import sysconfig

    return tuple({sysconfig.get_path(each) for each in ("purelib", "platlib", "stdlib")})


def _created_at(task: asyncio.Task[Any]) -> str | None:
    stack: traceback.StackSummary | None = getattr(task, "_source_traceback", None)
    place = _innermost([(frame.filename, frame.lineno or 0, frame.name) for frame in stack or ()])
    return None if place is None else f"{place[0]}:{place[1]}"


def _function(task: asyncio.Task[Any]) -> str:
    return str(getattr(task.get_coro(), "__qualname__", ""))


def _ages(lifetime: Lifetime) -> dict[asyncio.Task[Any], float]:
    now = asyncio.get_running_loop().time()
    ages = {task: now - began for task, began in lifetime.task_starts().items()}
    started = {state.name: state.started_at for state in _workers(lifetime.components()) if state.kind == "task"}
    for task in asyncio.all_tasks():
        began = started.get(task.get_name())
        if began is not None and _function(task) == "TaskWorker._run":
            ages[task] = max(0.0, time.time() - began)
    return ages


def _workers(components: Iterable[Any]) -> Iterator[WorkerState]:
    """Yield each worker's state, at any depth."""
    for each in components:
        left: list[object] = []
        with suppress(Exception):  # a component that the program defines may raise any error
            left.append(each.state())
        while left:
            state = left.pop()
            if isinstance(state, WorkerState):
                yield state
                left.extend(state.children)
