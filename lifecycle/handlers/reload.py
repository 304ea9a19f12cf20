"""`ReloadHandler`: prepares a new version alongside the old one, then commits it in one step or rolls it back."""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lifecycle._async import is_async, start_task
from lifecycle._durations import in_seconds_or_none
from lifecycle._util import error_text, mark_logged
from lifecycle.handlers._calls import adapted, trimmed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle._durations import Duration
    from lifecycle.events import Topical
    from lifecycle.handlers._calls import Call

__all__ = ["ReloadHandler", "ReloadState"]

_log = logging.getLogger("lifecycle.handlers")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ReloadState:
    """The state of a `ReloadHandler`."""

    #: The number of successful reloads. 0 is the version that the program started with.
    generation: int
    #: The result of the last reload: ``"ok"``, or an error such as ``"ValueError: no such key"``. Empty before the
    #: first reload.
    last_result: str
    #: The duration of the last reload in seconds.
    duration: float
    #: True if a reload is running.
    running: bool


class _Run:
    """One reload: its event, and the result that all its callers share."""

    def __init__(self, event: Topical) -> None:
        #: The newest event.
        self.event = event
        #: True once ``prepare`` has returned.
        self.prepared = False
        #: The result of ``prepare``.
        self.new: Any = None
        self.ended = asyncio.Event()
        self.error: Exception | None = None
        #: True if the caller that ran the reload was cancelled, which means that there is no result.
        self.given_up = False


class ReloadHandler:
    """Reloads in two steps. If a step fails, the old version stays in use, and the error is raised.

    ``prepare`` creates the new version, for example by parsing a file or by connecting, and returns it. It can have a
    parameter for the event. ``commit``, if any, receives the result of ``prepare`` and puts it into use, ideally in a
    single step. If ``commit`` fails, or if time runs out after ``prepare`` has returned, ``rollback`` receives the same
    result and discards it. Without a ``commit``, ``prepare`` must put the new version into use itself. All of these
    functions can be async or synchronous.

    If there is a ``commit``, a synchronous ``prepare`` runs in a thread, so it may block. All other functions run in
    the event loop, so that no other task sees a synchronous ``commit`` half done.

    ``prepare`` and ``commit`` may take ``timeout`` seconds in total. ``rollback`` has its own limit of the same length.
    None means no limit. A function that blocks the loop cannot be timed out. If a thread times out, it keeps running.
    The next reload waits for it, and its result is discarded.

    Only one reload runs at a time. Calls made during a reload share the next reload, which receives the newest event.
    The route's ``concurrency`` limits the number of simultaneous calls: with 1, each call runs its own reload, and with
    100, up to 100 calls share a reload.

    Raises:
        TypeError: if ``prepare``, ``commit`` or ``rollback`` is not a function that can be called with at most one
            argument.
        ValueError: if ``timeout`` is neither None nor a positive number of seconds.
    """

    def __init__(
        self,
        prepare: Callable[..., Any],
        commit: Callable[..., Any] | None = None,
        rollback: Callable[..., Any] | None = None,
        *,
        timeout: Duration | None = 30.0,
    ) -> None:
        self._prepare = trimmed(prepare, "prepare", "event")
        self._in_thread = commit is not None and not is_async(prepare)
        self._commit, self._rollback = _taker(commit, "commit"), _taker(rollback, "rollback")
        self._timeout = in_seconds_or_none("timeout", timeout)
        self._current: _Run | None = None
        # The next reload, requested during the current one. It has not begun yet, so further calls share it.
        self._next: _Run | None = None
        # The task that waits for a thread that timed out and discards its result.
        self._late: asyncio.Task[None] | None = None
        self._generation, self._result, self._duration = 0, "", 0.0

    def __repr__(self) -> str:
        return f"<ReloadHandler: generation {self._generation}, {self._result or 'never reloaded'}>"

    def state(self) -> ReloadState:
        """Return the generation, the last result and its duration."""
        return ReloadState(self._generation, self._result, self._duration, self._current is not None)

    async def __call__(self, event: Topical) -> None:
        """Reload, or wait for the reload that this event shares.

        Raises:
            TimeoutError: if the reload took too long. The old version stays in use.
        """
        while self._next is not None:
            run = self._next
            run.event = event
            await run.ended.wait()
            if not run.given_up:
                if run.error is not None:
                    raise run.error
                return
        await self._lead(_Run(event))

    async def _lead(self, run: _Run) -> None:
        """Run a reload for all callers that arrive before it begins."""
        self._next = run
        try:
            if self._current is not None:
                await self._current.ended.wait()
            self._current, self._next = run, None
            await self._reload(run)
        except Exception as error:
            run.error = error
            raise
        except BaseException:
            run.given_up = True
            raise
        finally:
            self._next = None if self._next is run else self._next
            self._current = None if self._current is run else self._current
            run.ended.set()

    async def _reload(self, run: _Run) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        from lifecycle.runtime.systemd import reloading  # imported here, so that handlers can be used without a runtime

        try:
            with reloading():
                await self._swap(run)
        except BaseException as error:
            self._result = error_text(error)
            level = logging.DEBUG if isinstance(error, asyncio.CancelledError) else logging.WARNING
            _log.log(level, "reload failed; keeping generation %d: %s", self._generation, self._result)
            mark_logged(error)
            raise
        else:
            self._generation += 1
            self._result = "ok"
        finally:
            self._duration = clock() - began

    async def _swap(self, run: _Run) -> None:
        """Prepare and commit. If either step fails, nothing changes."""
        try:
            await self._in_time(self._prepare_and_commit(run))
        except BaseException as error:
            if run.prepared:
                await self._roll_back(run.new, error)
            raise

    async def _in_time(self, work: Awaitable[_T]) -> _T:
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                return await work
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"the reload did not finish within {self._timeout:g} s") from error
            raise

    async def _prepare_and_commit(self, run: _Run) -> None:
        if self._late is not None and not self._late.done():
            await asyncio.wait({self._late})
        made = await self._call_in_thread(run.event) if self._in_thread else self._prepare(run.event)
        run.new = await made if inspect.isawaitable(made) else made
        run.prepared = True
        if self._commit is not None:
            await self._commit(run.new)

    async def _call_in_thread(self, event: Topical) -> Any:
        job = start_task(asyncio.to_thread(self._prepare, event), name="prepare of a reload")
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            # A thread cannot be cancelled, so wait for it in a task.
            self._late = start_task(self._discard(job), name="waiting for a prepare that timed out")
            raise

    async def _discard(self, job: asyncio.Task[Any]) -> None:
        """Discard a result that arrives too late."""
        await asyncio.wait({job})
        if job.cancelled():
            return
        if job.exception() is None:
            await self._roll_back(job.result(), TimeoutError("prepare returned too late"))
        else:
            _log.info("prepare failed after its timeout: %r", job.exception())

    async def _roll_back(self, new: Any, error: BaseException) -> None:
        """Discard ``new``. If that also fails, log the second error and add it to ``error`` as a note."""
        if self._rollback is None:
            return
        try:
            await self._in_time(self._rollback(new))
        except Exception as second:  # noqa: BLE001  # the first error is raised
            _log.exception("the rollback of a reload failed")
            error.add_note(f"and the rollback failed: {second!r}")


def _taker(fn: Callable[..., Any] | None, role: str) -> Call | None:
    """Wrap ``fn`` so that it receives the result of ``prepare`` if it has a parameter for it."""
    return None if fn is None else adapted(fn, role, "what prepare returned", default=1)
