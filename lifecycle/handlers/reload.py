"""`ReloadHandler`: the new is made ready beside the old, swapped in at one stroke, or thrown away."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lifecycle.handlers._calls import adapted

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.events import Topical

__all__ = ["ReloadHandler", "ReloadState"]

_log = logging.getLogger("lifecycle.handlers")


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
    """One reload: what those who asked for it wait for."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.error: Exception | None = None
        #: The caller who carried it out was cancelled: nobody knows yet how it would have gone.
        self.given_up = False


class ReloadHandler:
    """Reloads in two steps, each async or plain: on any failure the old stays, and the error comes out.

    ``prepare`` makes the new (parse, connect) and returns it; it may take the event. ``commit``, if given, gets what
    ``prepare`` returned and swaps it in: what it does should be one step. When ``commit`` fails, or the time is up
    after ``prepare`` returned, ``rollback`` gets the same and throws it away. A plain function as ``prepare`` alone
    is enough. ``prepare`` and ``commit`` together have ``timeout`` seconds, and ``rollback`` the same again (None: as
    long as they need; one that blocks the loop cannot be timed out).

    Only one reload runs at a time. Calls that come meanwhile become one more, which all of them wait for. Give its
    route a ``concurrency`` above 1, or they come one after the other.

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
        if timeout is not None and timeout <= 0:
            raise ValueError(f"ReloadHandler(timeout={timeout!r}) leaves no time; give seconds above 0, or None")
        self._prepare = adapted(prepare, "prepare", "event")
        self._commit = None if commit is None else adapted(commit, "commit", "what prepare returned")
        self._rollback = None if rollback is None else adapted(rollback, "rollback", "what prepare returned")
        self._timeout = timeout
        self._current: _Run | None = None
        # Asked for while another runs; it has not begun, so it serves whoever asks now.
        self._next: _Run | None = None
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
            await run.ended.wait()
            if not run.given_up:
                if run.error is not None:
                    raise run.error
                return
        await self._lead(event)

    async def _lead(self, event: Topical) -> None:
        """Carry out a reload for everybody who asks before it begins."""
        run = self._next = _Run()
        try:
            if self._current is not None:
                await self._current.ended.wait()
            self._current, self._next = run, None
            await self._reload(event)
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

    async def _reload(self, event: Topical) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            await self._swap(event)
        except BaseException as error:
            self._result = f"{type(error).__name__}: {error}".removesuffix(": ")
            _log.warning("reload failed, generation %d stays: %s", self._generation, self._result)
            raise
        else:
            self._generation += 1
            self._result = "ok"
        finally:
            self._duration = clock() - began

    async def _swap(self, event: Topical) -> None:
        prepared = False
        new: Any = None
        try:
            async with asyncio.timeout(self._timeout):
                new = await self._prepare(event)
                prepared = True
                if self._commit is not None:
                    await self._commit(new)
        except BaseException as error:
            if prepared and self._rollback is not None:
                await self._roll_back(new, error)
            raise

    async def _roll_back(self, new: Any, error: BaseException) -> None:
        assert self._rollback is not None
        try:
            async with asyncio.timeout(self._timeout):
                await self._rollback(new)
        except Exception as second:  # noqa: BLE001  # the first error is the one to tell
            _log.exception("the rollback of a reload failed")
            error.add_note(f"and the rollback failed: {second!r}")
