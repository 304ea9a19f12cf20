"""`Crew`: the functions of one flow that are at work, each in a task of its own; none outlives the engine unnoticed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lifecycle import hooks
from lifecycle._async import wait_within
from lifecycle._util import current_flow
from lifecycle.flows.contexts import CURRENT, TaskContext
from lifecycle.flows.records import Failure
from lifecycle.flows.sending import Sending

if TYPE_CHECKING:
    from lifecycle.flows.core.cores import Call
    from lifecycle.flows.plans.steps import Step
    from lifecycle.flows.serializers import Codec
    from lifecycle.journal.threads import LoopThreads

__all__ = ["CANCELLED", "LAST_WORDS", "THREADS", "Crew", "Ended"]

_log = logging.getLogger("lifecycle.flows")

#: What became of a function that was cancelled because we asked for it.
CANCELLED: Any = object()

#: Seconds that a function is given to end once it is cancelled.
_PATIENCE = 5.0
#: Plain functions that are called at once, each in a thread.
THREADS = 32
#: Seconds that all takes at most to come to rest after its tasks were cancelled: for those who do not heed it, and to
#: write what has become of them.
LAST_WORDS = _PATIENCE + 2.0


class Ended(NamedTuple):
    """A function that is at work no more."""

    call: Call
    #: What it returned, a `Failure`, or `CANCELLED`.
    outcome: Any


class Crew:
    """Those at work, and those that have ended and were not looked at."""

    def __init__(self, flow: str, codec: Codec, threads: LoopThreads, sender: object = None) -> None:
        self._flow, self._codec, self._threads = flow, codec, threads
        # To be taken for a function in a thread.
        self._seats = threads.seats
        # In whose name hooks announce.
        self._sender = sender
        self._working: dict[asyncio.Task[Any], Call] = {}
        self.ended: list[Ended] = []
        #: Set when somebody has ended, or something else wants to be looked at.
        self.news: Final = asyncio.Event()
        #: Set when nothing more is to begin: who only waits for a better time need not.
        self.hurry: Final = asyncio.Event()
        # Whether those at work were asked to stop; and those that did not.
        self._cancelling = False
        self._stubborn: set[asyncio.Task[Any]] = set()
        self._timers: list[asyncio.TimerHandle] = []

    def __len__(self) -> int:
        return len(self._working)

    def start(self, call: Call) -> None:
        """Have it done."""
        assert call.cell.step is not None
        if self._cancelling:
            self._end(call, CANCELLED)
        elif call.back and call.cell.step.undo is None:
            self._end(call, None)
        else:
            heeded = hooks.flow_task_started.receivers or hooks.flow_task_ended.receivers
            work = self._announced(call) if heeded else self._carry_out(call)
            task = asyncio.create_task(work, name=f"{self._flow}/{call.cell.name}")
            self._working[task] = call
            task.add_done_callback(self._done)

    def _expect(self, task: asyncio.Task[Any] | None, seconds: float) -> None:
        """See to it that ``task``, which is cancelled in so many seconds, comes to an end."""
        assert task is not None
        timer = asyncio.get_running_loop().call_later(seconds + _PATIENCE, self._overdue, task, seconds)
        task.add_done_callback(lambda _: timer.cancel())

    def _overdue(self, task: asyncio.Task[Any], seconds: float) -> None:
        if (call := self._working.get(task)) is not None:
            _log.warning("flow %s: %s does not heed its time-out; it is given up", self._flow, call.cell.name)
            self._drop(task, Failure.of(_too_long(call.cell.name, seconds)))

    async def _announced(self, call: Call) -> Any:
        """The same, for those who want to know when."""
        task = _context(self._flow, call)
        hooks.flow_task_started.announce(self._sender, task=task)
        failure: BaseException | None = None
        try:
            return await self._carry_out(call)
        except BaseException as error:
            failure = error
            raise
        finally:
            hooks.flow_task_ended.announce(self._sender, task=task, error=failure)

    async def _carry_out(self, call: Call) -> Any:
        step = call.cell.step
        assert step is not None
        task = _context(self._flow, call)
        CURRENT.set(task)
        current_flow.set(self._flow)
        with Sending(_key(self._flow, call, call.cell.round), self._codec, call.sent):
            return await self._call(step, call)

    async def _call(self, step: Step, call: Call) -> Any:
        if call.pause and not call.back:
            # A flow that is suspended does not wait.
            await wait_within(call.pause, self.hurry)
        if step.undo_in_thread if call.back else step.in_thread:
            # The wait for a thread does not count as time of the task. `_result` gives the seat back.
            await self._seats.acquire()
        if call.back:
            return await self._result(step.undo, call.arguments, in_thread=step.undo_in_thread)
        if step.timeout is not None:
            return await self._in_time(step, call.arguments)
        return await self._result(step.fn, call.arguments, in_thread=step.in_thread)

    async def _result(self, fn: Any, arguments: dict[str, Any], *, in_thread: bool) -> Any:
        if in_thread:
            try:
                result = await self._threads.finish(partial(fn, **arguments))
            finally:
                self._seats.release()
        else:
            result = fn(**arguments)
        return await result if inspect.isawaitable(result) else result

    async def _in_time(self, step: Step, arguments: dict[str, Any]) -> Any:
        assert step.timeout is not None
        self._expect(asyncio.current_task(), step.timeout)
        limit = asyncio.timeout(step.timeout)
        try:
            async with limit:
                result = await self._result(step.fn, arguments, in_thread=step.in_thread)
        except TimeoutError:
            if not limit.expired():
                raise
            raise _too_long(step.name, step.timeout) from None
        if step.in_thread and limit.expired():
            # A thread is not stopped: this came too late.
            raise _too_long(step.name, step.timeout)
        return result

    def _done(self, task: asyncio.Task[Any]) -> None:
        call = self._working.pop(task, None)
        if call is None:
            self._stubborn.discard(task)
            if not task.cancelled():
                # Nobody will hear of it: it was given up, and is done again.
                task.exception()
            return
        if task.cancelled():
            outcome = CANCELLED if self._cancelling else Failure.of(asyncio.CancelledError("cancelled by itself"))
        else:
            error = task.exception()
            outcome = task.result() if error is None else Failure.of(error)
        self._end(call, outcome)

    def _end(self, call: Call, outcome: Any) -> None:
        self.ended.append(Ended(call, outcome))
        self.news.set()

    def cancel_after(self, seconds: float) -> None:
        """Cancel those at work in ``seconds``, and who does not heed it a little later no longer counts."""
        self._timers.append(asyncio.get_running_loop().call_later(seconds, self._cancel))

    def _cancel(self) -> None:
        self._cancelling = True
        for task in list(self._working):
            task.cancel()
        self._timers.append(asyncio.get_running_loop().call_later(_PATIENCE, self._give_up))

    def _give_up(self) -> None:
        for task, call in list(self._working.items()):
            _log.warning(
                "flow %s: %s was cancelled and goes on all the same; it is given up, and is done again when the flow "
                "is resumed",
                self._flow,
                call.cell.name,
            )
            self._drop(task, CANCELLED)

    def _drop(self, task: asyncio.Task[Any], outcome: Any) -> None:
        """Whatever becomes of ``task`` does not count any more."""
        call = self._working.pop(task)
        self._stubborn.add(task)
        step = call.cell.step
        if step is not None and (step.undo_in_thread if call.back else step.in_thread):
            # It waits for a thread; cancelled a second time it does not.
            task.cancel()
        self._end(call, outcome)

    async def close(self) -> None:
        """Let nobody be at work any more."""
        for timer in self._timers:
            timer.cancel()
        if self._working:
            self._cancel()
            await asyncio.wait(list(self._working), timeout=_PATIENCE)
            self._give_up()
        for timer in self._timers:
            timer.cancel()


def _too_long(name: str, seconds: float | None) -> TimeoutError:
    return TimeoutError(f"task {name!r} took longer than {seconds:g} s")


def _context(flow: str, call: Call) -> TaskContext:
    cell = call.cell
    return TaskContext(flow, cell.name, cell.attempt, _key(flow, call, cell.effect), call.back)


def _key(flow: str, call: Call, number: int) -> str:
    return f"{flow}/{call.cell.name}/{number}{'/revert' if call.back else ''}"
