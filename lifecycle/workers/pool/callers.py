"""What calls need of their pool, in one place: where they get their seats, and what is done about those that fail."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Final

from lifecycle import hooks
from lifecycle.errors import WorkerLost
from lifecycle.workers.pool.calls import Call
from lifecycle.workers.pool.codecs import INERT, LARGE, size_of
from lifecycle.workers.pool.deadlines import Deadlines
from lifecycle.workers.pool.losses import lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.workers.pool.codecs import Codec
    from lifecycle.workers.pool.members import Member
    from lifecycle.workers.pool.orders import Order
    from lifecycle.workers.pool.phases import Reason
    from lifecycle.workers.pool.retirements import Retirements
    from lifecycle.workers.pool.seats import Seats
    from lifecycle.workers.pool.stats import CallTimes

__all__ = ["Caller"]


class Caller:
    """Makes calls for a pool.

    Args:
        pool: who sends what the hooks announce.
        seats: where calls get their member.
        times: where it is noted how long they take.
        codec: encodes arguments.
        grace: seconds that a call has to break off before its member is killed.
        retirements: hears when a member was given a call, and when a seat on it is given back.
        kill: ends a member that does not break off a call.
    """

    def __init__(  # each is a part of the pool
        self,
        pool: Any,
        seats: Seats,
        times: CallTimes,
        *,
        codec: Codec,
        grace: float,
        retirements: Retirements,
        kill: Callable[[Member, Reason, str], None],
    ) -> None:
        self.pool = pool
        self.seats = seats
        self.times = times
        self.grace = grace
        self._codec = codec
        self.retirements = retirements
        self.kill = kill
        #: Where a call is that has no member yet, for messages.
        self.queued: str = f"queued in {pool.name!r}"
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.deadlines: Final = Deadlines()
        # For each session, the last of its calls that is not made yet since an argument is being encoded.
        self._unmade: Final[dict[str | None, asyncio.Future[None]]] = {}

    async def call(self, order: Order, *, idempotent: bool) -> Any:
        """Have ``order`` carried out on some member; once more on another, if it is lost and that does no harm."""
        if not self.prepared(order):
            await self.prepare(order)
        call = Call(self, order)
        try:
            return await call.outcome()
        except WorkerLost as error:
            if not idempotent or self.seats.refusal is not None or call.member is None:
                raise
            reason, member = call.member.going or "exited", call.member.id
            hooks.pool_recovered.announce(self.pool, action="retry", member=member, reason=reason, error=error)
        return await Call(self, order).outcome()

    def prepared(self, order: Order) -> bool:
        """Whether ``order`` can be sent at once: its arguments are small, or need no encoding of their own.

        It cannot before an earlier one of its session.
        """
        args, kwargs = order.args, order.kwargs
        if order.session in self._unmade:
            return False
        if INERT.issuperset(map(type, args)) and (not kwargs or INERT.issuperset(map(type, kwargs.values()))):
            order.sealed = args, kwargs
            return True
        return size_of(args) + size_of(kwargs.values()) < LARGE

    async def prepare(self, order: Order) -> None:
        """Encode the arguments of ``order`` in a thread, since that would block the loop.

        Return when the calls of its session that came before have been made: the caller makes it in the same step.

        Raises:
            TypeError, ValueError: if they cannot be sent.
            TimeoutError: if its time is up meanwhile.
        """
        limit = asyncio.timeout_at(None if order.until == math.inf else order.until)
        session, made = order.session, self.loop.create_future()
        before = self._unmade.get(session)
        if session is not None:
            self._unmade[session] = made
        try:
            async with limit:
                args = await asyncio.to_thread(self._codec.seal_in_thread, order.args)
                order.sealed = args, await asyncio.to_thread(self._codec.seal_in_thread, order.kwargs)
                if before is not None:
                    await asyncio.wait({before})
        except (TypeError, ValueError) as error:
            raise order.unsendable(error) from error
        except TimeoutError:
            if limit.expired():
                raise order.overdue("being encoded") from None
            raise
        finally:
            if before is None or before.done():
                self._made(session, made)
            else:
                # It is given up; those that come after it still have to wait for those before it.
                before.add_done_callback(lambda _: self._made(session, made))

    def _made(self, session: str | None, made: asyncio.Future[None]) -> None:
        made.set_result(None)
        if self._unmade.get(session) is made:
            del self._unmade[session]

    async def lost(self, member: Member, order: Order) -> Exception:
        """What to raise for ``order``, which ``member`` took with it."""
        end = await member.wait()
        if member.going == "shutdown" and self.seats.refusal is not None:
            return self.seats.refusal()
        return lost(member, order.function, end)

    def vacate(self, member: Member, session: str | None) -> None:
        """Give back a seat."""
        if member.link.closed:
            # It is dead, though its end may not be known yet; there is no seat to give to another.
            self.seats.forget(session)
        else:
            self.retirements.vacated(member)
            self.seats.release(member, session)
