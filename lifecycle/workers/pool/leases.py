"""A member that one caller has for itself, for as many calls as it likes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lifecycle.errors import PoolClosed
from lifecycle.workers.pool.calls import Call
from lifecycle.workers.pool.orders import Order
from lifecycle.workers.pool.seats import Seat
from lifecycle.workers.pool.streams import Stream
from lifecycle.workers.pool.targets import function_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from lifecycle.workers.pool.callers import Caller
    from lifecycle.workers.pool.members import Member

__all__ = ["Lease"]


class Lease:
    """A member for one caller: ``async with pool.lease() as worker``, then `call` and `stream` go to that member.

    It is given back at the end of the block, when its last call is over. If the member is lost, so is the lease: each
    further call raises `WorkerLost`.
    """

    def __init__(self, caller: Caller, order: Order, deadline: float) -> None:
        self._caller = caller
        self._order = order
        self._deadline = deadline
        self._seat: Seat | None = None
        self._over = False

    @property
    def member(self) -> Member:
        """The member."""
        return self._its_seat().member

    async def call(
        self, function: str | Callable[..., Any], /, *args: Any, deadline: float | None = None, **kwargs: Any
    ) -> Any:
        """Call ``function`` there; see `Pool.call`."""
        order = self._ordered(function, args, kwargs, deadline)
        if not self._caller.prepared(order):
            self._its_seat()
            await self._caller.prepare(order)
        # The lease may have ended meanwhile.
        return await Call(self._caller, order, self._its_seat()).outcome()

    def stream(
        self, function: str | Callable[..., Any], /, *args: Any, deadline: float | None = None, **kwargs: Any
    ) -> Stream:
        """Call the generator ``function`` there; see `Pool.stream`."""
        return Stream(self._caller, self._ordered(function, args, kwargs, deadline), self._its_seat())

    def discard(self) -> None:
        """Have the member end with this lease, for instance because its state is spoilt; another takes its place."""
        self._caller.retirements.retire(self._its_seat().member, "error")

    async def __aenter__(self) -> Self:
        self._order.begin()
        self._seat = await Seat.of(self._caller, self._order)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        self._its_seat(over=True).leave()

    def _its_seat(self, *, over: bool = False) -> Seat:
        if self._seat is None or self._over is not over:
            raise PoolClosed(
                f"this lease of a member of {self._caller.pool.name!r} is not held; "
                "use it within 'async with pool.lease()'"
            )
        return self._seat

    def _ordered(
        self, function: str | Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], deadline: float | None
    ) -> Order:
        seconds = self._deadline if deadline is None else deadline
        return Order(function_name(function), args, kwargs, session=self._order.session, deadline=seconds)
