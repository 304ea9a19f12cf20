"""What a task can learn of itself while it runs."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

__all__ = ["CURRENT", "TaskContext", "current_task"]


class TaskContext(NamedTuple):
    """A task, a retry or a revert at work."""

    #: The id of the flow.
    flow: str
    #: Of the task.
    name: str
    #: How often it was started, this time included; above 1 it was tried again, or a crash interrupted it.
    attempt: int
    #: For effects that must happen once: give it to the service that carries them out. It stays the same each time
    #: that the task is tried again, until the task is known to be undone: its revert has succeeded, or the flow was
    #: reset.
    key: str
    #: Whether it is being undone.
    reverting: bool = False


CURRENT: ContextVar[TaskContext] = ContextVar("lifecycle_flow_task")


def current_task() -> TaskContext:
    """The task that runs, from anywhere below it.

    Raises:
        LookupError: outside of one.
    """
    try:
        return CURRENT.get()
    except LookupError:
        raise LookupError("no task of a flow runs here; call current_task() in a task, or in what it calls") from None
