"""Children for a conformance case. They behave as the case defines, and record their starts, failures and stops."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from lifecycle.errors import DoNotRestart, LifecycleError
from lifecycle.workers import BaseWorker, End, Supervisor

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["NORMAL", "Actor", "Diary", "Died", "observed"]

Json = Any


class Died(LifecycleError):
    """The error of a child that exits abnormally."""


def NORMAL(reason: Json) -> bool:  # noqa: N802  # one of OTP's three normal reasons
    """Return whether OTP treats ``reason`` as a normal exit."""
    return reason in ("normal", "shutdown") or (isinstance(reason, list) and bool(reason) and reason[0] == "shutdown")


class Diary:
    """The recorded events, in the case files' format, and the running children."""

    def __init__(self) -> None:
        self.events: list[list[Json]] = []
        self.starts: Counter[str] = Counter()
        #: The running children by name, oldest first.
        self.living: dict[str, list[Actor]] = {}

    def write(self, *event: Json) -> None:
        self.events.append(list(event))

    def make(self, name: str, behaviour: Json, grace: float) -> Any:
        """Start the child ``name`` as its case defines: return a worker or an invalid value, or raise an error."""
        self.starts[name] += 1
        if self._does("crash", name, behaviour):
            self.write("start_crash", name)
            raise Died("the start function raised")
        if self._does("bad", name, behaviour):
            self.write("start_bad", name)
            return "some_garbage"
        if self._does("ignore", name, behaviour):
            self.write("start_ignored", name)
            raise DoNotRestart("nothing to run")
        return Actor(self, name, behaviour, grace=grace, fails=self._does("fail", name, behaviour))

    def _does(self, what: str, name: str, behaviour: Json) -> bool:
        number = self.starts[name]
        return number in behaviour.get(f"{what}_on", ()) or number >= behaviour.get(f"{what}_from", number + 1)


class Actor(BaseWorker):
    """A child without children."""

    def __init__(self, diary: Diary, name: str, behaviour: Json, *, grace: float, fails: bool) -> None:
        super().__init__(name, stop_timeout=grace)
        self._diary = diary
        self._behaviour = behaviour
        self._fails = fails

    async def _launch(self) -> Awaitable[End | None]:
        if delay := self._behaviour.get("start_ms"):
            await asyncio.sleep(delay / 1000)
        if self._fails:
            self._diary.write("start_failed", self.name)
            raise Died("boom")
        self._diary.write("start", self.name)
        self._diary.living.setdefault(self.name, []).append(self)
        self.fate: asyncio.Future[End | None] = asyncio.get_running_loop().create_future()
        return self.fate

    async def _terminate(self, *, force: bool) -> None:
        if force:
            self.die("killed")
        if force or not self.stop_timeout:
            # A child without a grace period receives no stop request.
            return
        self._diary.write("stopping", self.name)
        delay = self._behaviour.get("stop_ms", 0) / 1000
        asyncio.get_running_loop().call_later(delay, self.die, self._behaviour.get("stop_reason", "shutdown"))

    def die(self, reason: Json) -> None:
        if self.fate.done():
            return
        self._diary.write("exit", self.name, reason)
        self._diary.living[self.name].remove(self)
        self.fate.set_result(End(error=None if NORMAL(reason) else Died(str(reason))))


def observed(diary: Diary, inner: Supervisor) -> Supervisor:
    """Return ``inner``, and record when it starts and exits. The recorded reason is always "shutdown"."""

    def changed(_old: str, new: str) -> None:
        if new == "running":
            diary.write("start", inner.name)
        elif new in ("stopped", "finished", "failed", "killed") and inner.state().started_at is not None:
            diary.write("exit", inner.name, "shutdown")

    inner.on_change(changed)
    return inner
