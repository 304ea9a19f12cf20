"""`Source`: the base class of everything that sends events to a router."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

from lifecycle._async import Condition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

__all__ = ["PAUSES", "Input", "Pause", "Source"]


class Pause(StrEnum):
    """Whether a source is paused, and why."""

    NONE = "none"
    HELD = "held"
    SUSPENDED = "suspended"
    BOTH = "held and suspended"


class Input(StrEnum):
    """A request that changes the `Pause` of a source."""

    HOLD = "hold"
    RELEASE = "release"
    SUSPEND = "suspend"
    RESUME = "resume"


#: The next `Pause`, by the current one and the request. A source continues once it is both released and resumed.
PAUSES: Final[dict[Pause, dict[Input, Pause]]] = {
    state: dict(zip(Input, row, strict=True))
    for state, row in {
        # after:          hold          release          suspend          resume
        Pause.NONE: (Pause.HELD, Pause.NONE, Pause.SUSPENDED, Pause.NONE),
        Pause.HELD: (Pause.HELD, Pause.NONE, Pause.BOTH, Pause.HELD),
        Pause.SUSPENDED: (Pause.BOTH, Pause.SUSPENDED, Pause.SUSPENDED, Pause.NONE),
        Pause.BOTH: (Pause.BOTH, Pause.SUSPENDED, Pause.BOTH, Pause.HELD),
    }.items()
}


class Source(ABC):
    """The base class of sources. Override `run`, and any other method whose default does not fit.

    The router enters the source (``async with``), awaits `run`, and exits the source. If ``__aenter__`` raises an
    error, the source has failed to start. If `run` raises an error, the source is exited, and entered again after a
    delay. A router that runs again runs its sources again, so prepare each run in ``__aenter__`` or `run`.
    """

    #: The name in messages and states [default: the name of the class].
    name: str = ""
    # Class attributes, so that a subclass need not call ``super().__init__()``.
    _pause: Pause = Pause.NONE
    #: While not None, the source's next event waits for it.
    gate: Condition | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def __aenter__(self) -> Self:
        """Open resources. By default, do nothing."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Close resources. By default, do nothing.

        If `close` made `run` return, the router calls this once each `Delivery` has ended.
        """
        return None

    @abstractmethod
    async def run(self, emit: Callable[[Any], Awaitable[Any]], /) -> None:
        """Emit events with ``await emit(event)`` until there are no more, or until cancelled.

        ``emit`` is an ``Emit``: it waits for space in the lane, and returns the `Delivery`.
        """

    def close(self) -> bool | None:
        """Let `run` emit its last events and return. The router calls this when it stops.

        By default, return False, which means that the router cancels `run` instead.
        """
        return False

    async def settle(self) -> None:  # noqa: B027  # optional
        """Store the results of the events. By default, do nothing.

        The router awaits this after it has stopped, once each `Delivery` has ended and the source has been exited.
        """

    def use_router(self, router: Any, /) -> None:  # noqa: B027  # optional
        """Prepare for this router. It calls this when the source is added. By default, do nothing."""

    # -- pausing -----------------------------------------------------------------------------------------------------

    @property
    def held(self) -> bool:
        """True if the source is held."""
        return self._pause in (Pause.HELD, Pause.BOTH)

    @property
    def paused(self) -> bool:
        """True if the source is held, suspended, or both."""
        return self._pause is not Pause.NONE

    def hold(self) -> None:
        """Pause the source until `release` is called. `Router.hold_source` calls this."""
        self._change(Input.HOLD)

    def release(self) -> None:
        """End `hold`. The source continues unless it is suspended."""
        self._change(Input.RELEASE)

    def suspend(self) -> None:
        """Pause the source until `resume` is called. A `SuspendHandler` that manages the source calls this."""
        self._change(Input.SUSPEND)

    def resume(self) -> None:
        """End `suspend`. The source continues unless it is held."""
        self._change(Input.RESUME)

    def pause_changed(self, *, paused: bool) -> None:
        """Pause, or continue. By default, the next event waits while the source is paused.

        Override this to pause in a different way, for example by refusing requests. It is called once when the source
        is held or suspended, and once when it continues.
        """
        if paused:
            self.gate = Condition()
        elif self.gate is not None:
            gate, self.gate = self.gate, None
            gate.notify_all()

    def _change(self, request: Input) -> None:
        old, new = self._pause, PAUSES[self._pause][request]
        self._pause = new
        if (old is Pause.NONE) is not (new is Pause.NONE):
            try:
                self.pause_changed(paused=new is not Pause.NONE)
            except BaseException:
                self._pause = old
                raise
