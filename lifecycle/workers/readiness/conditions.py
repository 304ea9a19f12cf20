"""What every way of being ready has to offer, and how it is read from text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lifecycle.workers.readiness.lines import Line
from lifecycle.workers.readiness.notices import Notice
from lifecycle.workers.readiness.ports import Port
from lifecycle.workers.readiness.urls import Url

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.workers.stdio import Command

__all__ = ["Readiness", "wanted"]


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
