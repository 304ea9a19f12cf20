"""`current_task`: the task that runs, for the code that it calls."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

__all__ = ["CURRENT", "TaskContext", "current_task"]


class TaskContext(NamedTuple):
    """A task, a retry or a revert that runs."""

    #: The id of the flow.
    flow: str
    #: The name of the task or retry.
    name: str
    #: How often it was started, this time included; above 1 it is tried again, or a crash has interrupted it.
    attempt: int
    #: An idempotency key for effects that must happen once: give it to the service that carries them out. It stays the
    #: same for all attempts, until the task is known to be undone: its revert has succeeded, or the flow was reset.
    key: str
    #: Whether the task is being undone.
    reverting: bool = False


CURRENT: ContextVar[TaskContext] = ContextVar("lifecycle_flow_task")


def current_task() -> TaskContext:
    """Return the task that runs.

    Raises:
        LookupError: outside of a task.
    """
    try:
        return CURRENT.get()
    except LookupError:
        raise LookupError("no task of a flow runs here; call current_task() in a task, or in what it calls") from None
