"""Stops and suspends a supervisor's children, even while they are starting."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from lifecycle._async import start_task
from lifecycle.errors import WorkerFailed
from lifecycle.workers.base import BaseWorker
from lifecycle.workers.model import FINAL, Status, failed
from lifecycle.workers.specs import StopOrder, Verdict, cause_of, verdict
from lifecycle.workers.supervision.child import end_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lifecycle.workers.base import Worker
    from lifecycle.workers.model import Exit
    from lifecycle.workers.supervision.child import Child

__all__ = ["Stopper", "resume_all", "suspend_all"]

_log = logging.getLogger("lifecycle.workers")

#: Seconds to wait for a start to finish after stopping or cancelling it.
_START_ENDS: Final = 1.0
#: Seconds to wait for a start to finish if it was cancelled while the worker was still being created.
_MAKING_ENDS: Final = 10.0


class Stopper:
    """Stops a supervisor's children.

    Args:
        order: The order in which to stop the children.
        note: A function to call with a child that may have changed.
        end_with: A function to call with any error that must end the supervisor.
    """

    def __init__(
        self, order: StopOrder, note: Callable[[Child], None], end_with: Callable[[BaseException | None], None]
    ) -> None:
        self._order = order
        self._note = note
        self._end_with = end_with
        # Tasks that kill workers whose grace period has ended.
        self._kills: list[asyncio.Task[None]] = []
        self._no_time_left = False

    async def stop_all(self, children: Sequence[Child]) -> None:
        """Stop ``children``, either in reverse order or concurrently."""
        if self._order is StopOrder.PARALLEL:
            await self._stop_at_once(children)
            return
        for child in reversed(children):
            await self.stop(child)

    async def stop(self, child: Child) -> None:
        """Stop the worker of ``child``, or abort its start. Later reports from that worker are ignored."""
        self._invalidate(child)
        if child.starting is not None:
            await self._stop_start(child, child.starting)
        elif child.live and child.worker is not None:
            await self.stop_worker(child.worker, self._time_for(child))
            self._ended(child, await end_of(child.worker))
        elif child.idle_status in (Status.CREATED, Status.PENDING):
            child.idle_status = Status.STOPPED
        self._note(child)

    async def reap(self, child: Child, error: BaseException) -> Exit:
        """Return the `Exit` for a start that failed with ``error``. If the worker is still alive, stop it first."""
        if child.worker is None:
            return failed(error)
        if child.worker.status not in FINAL:
            await self.stop_worker(child.worker, child.spec.stop_timeout)
        ended = await end_of(child.worker)
        return ended if ended.error is not None else failed(error)

    async def stop_worker(self, worker: Worker, timeout: float | None) -> None:
        """Stop ``worker``. If its `stop` raises an error, log it."""
        try:
            await worker.stop(timeout)
        except Exception:  # noqa: BLE001  # logged; the siblings must still be stopped
            _log.exception("%r could not be stopped", worker)

    def kill(self, children: Iterable[Child]) -> None:
        """Kill ``children``. After this call, no children get time to stop gracefully."""
        self._no_time_left = True
        for child in children:
            if child.worker is not None and (child.live or child.starting is not None):
                killing = self.stop_worker(child.worker, 0)
                self._kills.append(start_task(killing, name=f"kill of {child.spec.name}"))

    async def wait_killed(self) -> None:
        """Wait until the killed workers have ended."""
        if self._kills:
            await asyncio.wait(self._kills)

    async def _stop_at_once(self, children: Sequence[Child]) -> None:
        """Stop ``children`` concurrently. A task is only created for workers with a custom `stop`."""
        asked: list[tuple[Child, BaseWorker]] = []
        others: list[Child] = []
        for child in children:
            worker = child.worker
            if child.live and isinstance(worker, BaseWorker) and type(worker).stop is BaseWorker.stop:
                self._invalidate(child)
                asked.append((child, worker))
            else:
                others.append(child)
        timers = [timer for each in self._by_time(asked).items() if (timer := _ask_all(*each)) is not None]
        try:
            await asyncio.gather(*(self.stop(child) for child in others))
            for child, worker in asked:
                self._ended(child, await worker.wait())
                self._note(child)
        finally:
            for timer in timers:
                timer.cancel()

    def _by_time(self, asked: Iterable[tuple[Child, BaseWorker]]) -> dict[float, list[BaseWorker]]:
        groups: dict[float, list[BaseWorker]] = {}
        for child, worker in asked:
            timeout = self._time_for(child)
            groups.setdefault(worker.stop_timeout if timeout is None else timeout, []).append(worker)
        return groups

    async def _stop_start(self, child: Child, starting: asyncio.Task[BaseException | None]) -> None:
        """Abort a start: cancel the creation of the worker, or stop the worker if it has been created."""
        made = child.worker
        if made is None:
            starting.cancel()
        else:
            await self.stop_worker(made, self._time_for(child))
        await asyncio.wait({starting}, timeout=_MAKING_ENDS if made is None else _START_ENDS)
        if not starting.done():
            starting.cancel()
            _log.error("the start of %r could not be stopped and was abandoned: %r", child.spec.name, starting)
        child.starting = None
        child.idle_status = Status.STOPPED
        if made is not None:
            self._ended(child, await end_of(made))

    def _invalidate(self, child: Child) -> None:
        child.generation += 1
        child.cancel_timers()

    def _time_for(self, child: Child) -> float | None:
        return 0 if self._no_time_left else child.spec.stop_timeout

    def _ended(self, child: Child, ended: Exit) -> None:
        """Record that a stopped child has ended. Its error is ignored unless the restart policy escalates it."""
        child.note_ended(ended)
        if ended.error is not None and verdict(child.spec.restart, ended) is Verdict.ESCALATE:
            self._end_with(cause_of(ended.error))


def _ask_all(grace: float, workers: Iterable[BaseWorker]) -> asyncio.TimerHandle | None:
    """Stop ``workers``. They share a timer, because creating a timer per worker would take longer than stopping."""
    for worker in workers:
        worker.ask_to_stop(math.inf if grace > 0 else 0)
    return asyncio.get_running_loop().call_later(grace, _kill_all, workers) if 0 < grace < math.inf else None


def _kill_all(workers: Iterable[BaseWorker]) -> None:
    for worker in workers:
        worker.ask_to_stop(0)


async def suspend_all(children: Sequence[Child]) -> None:
    """Suspend the running children that support it, in reverse order.

    Raises:
        WorkerFailed: if a child cannot be suspended. The children already suspended are then resumed.
    """
    await _each([child for child in reversed(children) if _can(child, Status.RUNNING)], "suspend", "resume")


async def resume_all(children: Sequence[Child]) -> None:
    """Resume the suspended children in order.

    Raises:
        WorkerFailed: if a child cannot be resumed. The children already resumed are then suspended again.
    """
    await _each([child for child in children if _can(child, Status.SUSPENDED)], "resume", "suspend")


def _can(child: Child, status: Status) -> bool:
    if not child.live or child.status != status:
        return False
    has = all(callable(getattr(child.worker, name, None)) for name in ("suspend", "resume"))
    return has and bool(getattr(child.worker, "suspendable", True))


async def _each(children: Iterable[Child], do: str, undo: str) -> None:
    done: list[Child] = []
    try:
        for child in children:
            await _call(child, do)
            done.append(child)
    except BaseException:
        for child in reversed(done):
            with suppress(WorkerFailed):
                await _call(child, undo)
        raise


async def _call(child: Child, method: str) -> None:
    """Suspend or resume ``child``. If the child has ended in the meantime, ignore the error."""
    worker: Any = child.worker
    try:
        await getattr(worker, method)()
    except Exception as error:
        if worker.status in FINAL:
            return
        _log.exception("%r could not %s", child.spec.name, method)
        raise WorkerFailed(f"{child.spec.name!r} could not {method}: {error}") from error
