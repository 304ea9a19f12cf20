"""Why a process did not become ready, put into words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lifecycle.errors import WorkerFailed
from lifecycle.workers.records import End

if TYPE_CHECKING:
    import asyncio

    from lifecycle.workers.readiness.conditions import Readiness

__all__ = ["unready"]

#: Characters of what it wrote at last that are told; all that is kept of it stands in its `Exit`.
_TOLD: Final = 1000


def unready(name: str, ready: Readiness, life: asyncio.Future[End | None], patience: float) -> WorkerFailed:
    """What to raise for the worker ``name``, which is not ready after ``patience`` seconds, or has ended before."""
    news = f"; {ready.news}" if ready.news else ""
    if not life.done():
        return WorkerFailed(
            f"{name!r} did not {ready} within {patience:g} s and was stopped{news}; "
            "give it a longer start timeout if it is slow"
        )
    end = End.of(life)
    how = "exited with status 0" if end.error is None else str(end.error).removeprefix(f"{name!r} ")
    words = f"; its last words:\n{_last(end.stderr)}" if end.stderr.strip() else ""
    failed = WorkerFailed(f"{name!r} ended before it was ready: it {how}, and did not {ready}{news}{words}")
    failed.__cause__ = end.error
    return failed


def _last(text: str) -> str:
    """The end of ``text``, from the beginning of a line on where that can be."""
    told = text[-_TOLD:]
    whole = told.partition("\n")[2].strip()
    return whole if len(text) > _TOLD and whole else told.strip()
