"""`ReloadHandler`: the new is made ready beside the old, swapped in at one stroke, or thrown away."""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lifecycle._async import is_async
from lifecycle._util import error_text
from lifecycle.handlers._calls import adapted, trimmed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.events import Topical
    from lifecycle.handlers._calls import Call

__all__ = ["ReloadHandler", "ReloadState"]

_log = logging.getLogger("lifecycle.handlers")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ReloadState:
    """What can be seen of a `ReloadHandler`."""

    #: How many reloads have succeeded; 0 is what the program started with.
    generation: int
    #: ``""`` before the first, then ``"ok"`` or the error of the last, such as ``"ValueError: no such key"``.
    last_result: str
    #: Seconds that the last took.
    duration: float
    #: Whether one is under way.
    running: bool


class _Run:
    """One reload: what it is made from, and what those who asked for it wait for."""

    def __init__(self, event: Topical) -> None:
        #: The newest of those that it serves.
        self.event = event
        #: Whether ``prepare`` has returned, and what.
        self.prepared = False
        self.new: Any = None
        self.ended = asyncio.Event()
        self.error: Exception | None = None
        #: The caller who carried it out was cancelled: nobody knows yet how it would have gone.
        self.given_up = False


class ReloadHandler:
    """Reloads in two steps, each async or plain: on any failure the old stays, and the error comes out.

    ``prepare`` makes the new (parse, connect) and returns it; it may take the event. ``commit``, if given, gets what
    ``prepare`` returned and swaps it in: what it does should be one step. When ``commit`` fails, or the time is up
    after ``prepare`` returned, ``rollback`` gets the same and throws it away. A plain function as ``prepare`` alone
    is enough; then it is the swap as well.

    A plain ``prepare`` that is followed by a ``commit`` runs in a thread, so that it may block. All else runs in the
    loop, where nobody sees half of a plain ``commit``.

    ``prepare`` and ``commit`` together have ``timeout`` seconds, and ``rollback`` the same again (None: as long as
    they need; one that blocks the loop cannot be timed out). A thread that is given up goes on: the next reload
    waits for it, and what it makes in the end is thrown away.

    Only one reload runs at a time. Calls that come meanwhile become one more, which gets the newest event and which
    all of them wait for. A route lets in as many calls at once as its ``concurrency`` says: with 1 they come one after
    the other, with 100 so many become one more.

    Raises:
        TypeError: when one of them is no function of at most one argument.
        ValueError: unless ``timeout`` is None or above 0.
    """

    def __init__(
        self,
        prepare: Callable[..., Any],
        commit: Callable[..., Any] | None = None,
        rollback: Callable[..., Any] | None = None,
        *,
        timeout: float | None = 30.0,
    ) -> None:
        if timeout is not None and not timeout > 0:
            raise ValueError(f"ReloadHandler(timeout={timeout!r}) leaves no time; give seconds above 0, or None")
        self._prepare = trimmed(prepare, "prepare", "event")
        self._in_thread = commit is not None and not is_async(prepare)
        self._commit, self._rollback = _taker(commit, "commit"), _taker(rollback, "rollback")
        self._timeout = timeout
        self._current: _Run | None = None
        # Asked for while another runs; it has not begun, so it serves whoever asks now.
        self._next: _Run | None = None
        # Waits for a thread that was given up, to throw away what it makes.
        self._late: asyncio.Task[None] | None = None
        self._generation, self._result, self._duration = 0, "", 0.0

    def __repr__(self) -> str:
        return f"<ReloadHandler: generation {self._generation}, {self._result or 'never reloaded'}>"

    def state(self) -> ReloadState:
        """Generation, last result and its duration."""
        return ReloadState(self._generation, self._result, self._duration, self._current is not None)

    async def __call__(self, event: Topical) -> None:
        """Reload, or wait for the reload that serves this event too.

        Raises:
            TimeoutError: when it took too long; the old stays.
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
        """Carry out a reload for everybody who asks before it begins."""
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
        from lifecycle.runtime.systemd import reloading  # here, so that handlers can be used without a runtime

        try:
            with reloading():
                await self._swap(run)
        except BaseException as error:
            self._result = error_text(error)
            level = logging.DEBUG if isinstance(error, asyncio.CancelledError) else logging.WARNING
            _log.log(level, "reload failed, generation %d stays: %s", self._generation, self._result)
            raise
        else:
            self._generation += 1
            self._result = "ok"
        finally:
            self._duration = clock() - began

    async def _swap(self, run: _Run) -> None:
        """Both steps, or neither."""
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
                raise TimeoutError(f"it was not done within {self._timeout:g} s") from error
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
        job = asyncio.create_task(asyncio.to_thread(self._prepare, event), name="prepare of a reload")
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            # A thread cannot be cancelled.
            self._late = asyncio.create_task(self._throw_away(job), name="the end of a prepare that was given up")
            raise

    async def _throw_away(self, job: asyncio.Task[Any]) -> None:
        """Throw away what comes too late."""
        await asyncio.wait({job})
        if job.cancelled():
            return
        if job.exception() is None:
            await self._roll_back(job.result(), TimeoutError("prepare returned too late"))
        else:
            _log.info("prepare failed after it was given up: %r", job.exception())

    async def _roll_back(self, new: Any, error: BaseException) -> None:
        """Throw ``new`` away; what fails now is logged, and noted on ``error``."""
        if self._rollback is None:
            return
        try:
            await self._in_time(self._rollback(new))
        except Exception as second:  # noqa: BLE001  # the first error is the one to tell
            _log.exception("the rollback of a reload failed")
            error.add_note(f"and the rollback failed: {second!r}")


def _taker(fn: Callable[..., Any] | None, role: str) -> Call | None:
    """Gets what ``prepare`` returned, if it takes an argument."""
    return None if fn is None else adapted(fn, role, "what prepare returned", untold=1)
