"""What every way of being ready has to offer, how it is read from text, and what is said where it is not reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from lifecycle.errors import WorkerFailed
from lifecycle.workers.model import End
from lifecycle.workers.readiness.lines import Line
from lifecycle.workers.readiness.notices import Notice
from lifecycle.workers.readiness.ports import Port
from lifecycle.workers.readiness.urls import Url

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from lifecycle.workers.stdio import Command

__all__ = ["Readiness", "unready", "wanted"]

#: Characters of what it wrote at last that are told; all that is kept of it stands in its `Exit`.
_TOLD: Final = 1000


class Readiness(Protocol):
    """When one process counts as ready; it serves one life. As text it completes "it did not …"."""

    @property
    def news(self) -> str:
        """What is known of why it is not yet; may be empty."""
        ...

    def prepare(self, command: Command) -> Command:
        """Take note of how things are just before the start; what is to be started. Raises OSError."""
        ...

    def reached(self, ours: Callable[[int], bool]) -> Awaitable[object]:
        """Done when it is ready; ``ours`` knows the numbers of its processes. Who gives up waiting cancels it."""
        ...

    def close(self) -> None:
        """Give back what it holds, once the process has ended or was not started; any number of times."""
        ...


def wanted(text: str) -> Readiness:
    """The condition that ``text`` means, for one process.

    Raises:
        ValueError: for anything else.
    """
    try:
        return _read(text)
    except ValueError as error:
        raise ValueError(
            f"ready={text!r} is no condition ({error}); "
            "give 'port:N', 'line:REGEX', 'http://…', 'https://…' or 'notify'"
        ) from None


def _read(text: object) -> Readiness:
    match text.split(":", 1) if isinstance(text, str) else None:
        case ["notify"]:
            return Notice()
        case ["port", number]:
            return Port(number)
        case ["line", pattern]:
            return Line(pattern)
        case ["http" | "https", _]:
            return Url(str(text))
        case _:
            raise ValueError("its kind is unknown")


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
