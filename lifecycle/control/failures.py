"""What becomes of a source that fails: it is told of, counted, and started again after a while, or not."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Literal, TypeAlias

from lifecycle import hooks
from lifecycle._util import error_text
from lifecycle.errors import SourceFailed

if TYPE_CHECKING:
    from lifecycle.backoff import Backoff

__all__ = ["Failures", "RestartSource"]

_log = logging.getLogger("lifecycle.control")

#: Whether a source that failed after its start is started again.
RestartSource: TypeAlias = Literal["on_failure", "never"]


class Failures:
    """Those of one source, announced in the name of its router.

    Raises:
        ValueError: for another ``restart``.
    """

    def __init__(self, source: object, name: str, restart: RestartSource, backoff: Backoff) -> None:
        if restart not in ("on_failure", "never"):
            raise ValueError(f"restart={restart!r} is unknown; give 'on_failure' or 'never'")
        self._source = source
        self._name = name
        # An async generator that has failed is used up.
        self._final = restart == "never" or inspect.isasyncgen(source)
        self._backoff = backoff
        #: How many, and how the last one was, for people.
        self.count: int = 0
        self.last: str | None = None
        # When the last ones were, for a backoff that gives up after too many.
        self._recent: list[float] = []
        # How many in a row, none of them after a healthy while.
        self._row = 0

    def begin(self) -> None:
        """A new life: what failed in the one before is no reason to wait longer."""
        self._row = 0

    def at_start(self, error: BaseException, router: object) -> SourceFailed:
        """It could not start: the error that ends the router."""
        self._tell(error, None, router)
        failure = SourceFailed(f"source {self._name!r} could not start: {error_text(error)}")
        failure.__cause__ = error
        return failure

    def later(self, error: BaseException, router: object, *, began: float, now: float) -> float | None:
        """It failed ``now``, at work since ``began``: the seconds until its next start, None if there is none."""
        if now - began >= self._backoff.reset_after:
            self._row = 0
        self._recent = [*(at for at in self._recent if at >= now - self._backoff.within), now]
        spent = 0 < self._backoff.max_restarts < len(self._recent)
        delay = None if self._final or spent else self._backoff.delay(self._row)
        self._row += 1
        told = "it is not started again" if delay is None else f"it is started again in {delay:.1f} s"
        _log.error("source %r failed: %s; %s", self._name, error_text(error), told, exc_info=error)
        self._tell(error, delay, router)
        return delay

    def _tell(self, error: BaseException, delay: float | None, router: object) -> None:
        self.count += 1
        self.last = error_text(error)
        hooks.source_failed.announce(router, source=self._source, error=error, restart_in=delay)
