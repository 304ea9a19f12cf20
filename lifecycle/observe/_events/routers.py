"""The routers that run under a lifetime, and what their sources failed with last."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._text import component_name
from lifecycle.control.source_runner import source_name
from lifecycle.observe._events.summaries import masked_error
from lifecycle.runtime.lifetimes import current_life

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Failure", "Routers"]

#: Of how many sources the last failure is known.
_FAILURES = 100


@dataclass(frozen=True, slots=True)
class Failure:
    """What a source failed with last."""

    #: In seconds since 1970.
    time: float
    error: str
    #: Seconds from then; None: not at all.
    restart_in: float | None


class Routers:
    """Those of the current lifetime and of those inside it; outside a lifetime, those that run under none."""

    def __init__(self) -> None:
        self._life = current_life.get(None)
        self._loop = asyncio.get_running_loop()
        running = () if self._life is None else self._life.all_routers()
        #: Those that run, each with its name.
        self.names: dict[Any, str] = {router: component_name(router) for router in running}
        #: By the names of router and source.
        self.failures: dict[tuple[str, str], Failure] = {}

    def receivers(self) -> Iterator[tuple[hooks.Hook, Callable[..., None]]]:
        """What is to be connected."""
        yield hooks.router_started, self._started
        yield hooks.router_stopped, self._stopped
        yield hooks.source_failed, self._source_failed

    def name(self, router: Any) -> str | None:
        """The name of one of ours, also of one that does not run and gets an event from us; None for a stranger."""
        name = self.names.get(router)
        return component_name(router) if name is None and self._is_here() else name

    def _is_here(self) -> bool:
        """Whether what runs here runs under our lifetime, or under one inside it."""
        try:
            if self._loop is not asyncio.get_running_loop():
                return False
        except RuntimeError:  # an event can be given to a router that does not run from anywhere
            return False
        life = current_life.get(None)
        while life is not None and life is not self._life:
            life = life.outer
        return life is self._life

    def _started(self, _sender: object, *, router: Any) -> None:
        if self._is_here():
            self.names[router] = component_name(router)

    def _stopped(self, _sender: object, *, router: Any) -> None:
        self.names.pop(router, None)

    def _source_failed(self, router: Any, *, source: Any, error: BaseException, restart_in: float | None) -> None:
        name = self.name(router)
        if name is None:
            return
        if len(self.failures) >= _FAILURES:
            del self.failures[next(iter(self.failures))]
        self.failures[name, source_name(source)] = Failure(time.time(), masked_error(error), restart_in)
