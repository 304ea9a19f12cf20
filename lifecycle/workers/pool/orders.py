"""What somebody wants of a pool: one call, with the time that it has in all."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["Order"]


class Order:
    """One call as it was wished for.

    Args:
        function: what is called.
        args, kwargs: with what.
        session: whose member it wants.
        deadline: seconds that it has from now on, in all.
        patient: whether it waits however many wait.
    """

    __slots__ = ("args", "began", "deadline", "function", "kwargs", "patient", "sealed", "session", "until")

    def __init__(
        self,
        function: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        session: str | None = None,
        deadline: float,
        patient: bool = False,
    ) -> None:
        self.function: str = function
        self.args: list[Any] = list(args)
        self.kwargs: dict[str, Any] = kwargs or {}
        self.session: str | None = session
        self.deadline: float = deadline
        self.patient: bool = patient
        #: The arguments as the codec has sealed them, if they are large and that was done beforehand.
        self.sealed: tuple[Any, Any] | None = None
        self.begin()

    def begin(self) -> None:
        """Its time begins now."""
        self.began: float = asyncio.get_running_loop().time()
        #: When it is up, by the loop's clock.
        self.until: float = self.began + self.deadline

    def unsendable(self, error: Exception) -> Exception:
        """What to raise when the codec could not carry what it was to be given."""
        kind = TypeError if isinstance(error, TypeError) else ValueError
        return kind(f"{self.function!r} was not called; what it was to be given cannot be sent: {error}")

    def overdue(self, where: str) -> TimeoutError:
        """What to raise when its time is up, and it was ``where``."""
        session = "" if self.session is None else f" of session {self.session!r}"
        return TimeoutError(f"{self.function!r}{session} was not done in {self.deadline:g} s: it was {where}")
