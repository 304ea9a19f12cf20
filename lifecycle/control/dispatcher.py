"""The way of an event: from topic to route, into a window or a lane, and on to the next where a handler passes it on.

What became of it is said in ``outcomes``; sources and the life of a router are in ``running``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from lifecycle import hooks
from lifecycle._async import was_cancelled
from lifecycle._util import error_text, name_of
from lifecycle.control.debouncing import Debounce, Window
from lifecycle.control.deliveries import Delivery, current
from lifecycle.control.lanes import Lane
from lifecycle.control.patterns import Pattern
from lifecycle.control.routing import Relayed, Route, caller
from lifecycle.errors import Dropped, InvalidTopic, LaneFull, LifecycleError, NotHandled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence

    from lifecycle.control.routing import Plan, Table
    from lifecycle.control.types import Handler, Middleware
    from lifecycle.events import Topical

__all__ = ["Outcomes", "Roster", "Traffic"]

# Who wants to be told of every event: each is one dictionary for good, and empty while nobody does.
_ROUTED, _ACCEPTED = hooks.event_routed.receivers, hooks.delivery_accepted.receivers


class Traffic:
    """Moves events through windows and lanes; the owner of all lanes of one router."""

    def __init__(self, table: Table, buffer: int, router: object) -> None:
        self.table = table
        #: In its name hooks announce.
        self.router = router
        self.outcomes: Final = Outcomes(router)
        self._hot = table.hot
        self._buffer = buffer
        # Handlers run only while this is true; until then events wait in their lanes.
        self.working = False
        # While draining, an event that a cancelled source had in its hands is let in over the limit.
        self.draining = False
        # Every task that runs handlers; the router awaits them when it closes.
        self.tasks: set[asyncio.Task[None]] = set()
        self.roster: Final = Roster(table, self.new_lane)

    def new_lane(self, name: str, concurrency: int) -> Lane:
        """A lane that this router works off."""
        return Lane(name, concurrency, self._buffer, self)

    def open_window(self, route: Route, debounce: float | Debounce) -> None:
        """Put a window before the lane of ``route``; a number is its seconds."""

        def release(key: Hashable, call: Delivery) -> bool:
            lane = self.roster.lane_of(route)
            try:
                lane.offer(call, route.busy)
            except LaneFull:
                lane.entrance.when_room(lambda: window.retry(key))
                return False
            return True

        settings = debounce if isinstance(debounce, Debounce) else Debounce(debounce)
        window = route.window = Window(settings, release)

    # -- the way in --------------------------------------------------------------------------------------------

    async def accept(self, event: Topical) -> Delivery:
        """Take an event in, waiting for room; what nobody takes comes back as a delivery that has failed.

        Every event of every source comes through here: the usual case, a topic with a plain route and without
        observers, is written out.
        """
        plan = route = None
        try:
            plan = self._hot[event.topic][1]
            if not (plan.taps or _ROUTED or _ACCEPTED):
                route = plan.first
        except (AttributeError, TypeError, InvalidTopic):  # `_admit` reports it
            pass
        if route is None:
            delivery = self._admit(event)
            route = delivery.route
            if route is None:
                return delivery
        else:
            route.routed += 1
            delivery = Delivery(event, current.get(), route, plan)
        if route.is_plain:
            lane = route.lane or self.roster.lane_of(route)
            if len(lane.queue) >= lane.limit:
                await self._room(lane, delivery, route)
            lane.put(delivery)
        else:
            self._place(delivery, route)
        return delivery

    def accept_nowait(self, event: Topical) -> Delivery:
        """Take an event in at once.

        Raises:
            LaneFull: when there is no room; then nobody has seen the event.
        """
        try:
            route = self.table.plan(event).first or self.roster.fallback
        except InvalidTopic:
            route = None
        if route is not None and route.is_plain and self.roster.lane_of(route).is_full:
            raise LaneFull(f"no room for {event.topic!r}: lane {self.roster.lane_of(route).name!r} is full")
        delivery = self._admit(event)
        if delivery.route is not None:
            self._place(delivery, delivery.route)
        return delivery

    def _admit(self, event: Topical) -> Delivery:
        """Resolve the topic, show the event to taps, count it; what no route has, the fallback has, or nobody."""
        outcomes, parent = self.outcomes, current.get()
        try:
            plan = self.table.plan(event)
        except InvalidTopic as error:
            return outcomes.refused(outcomes.accepted(Delivery(event, parent)), error)
        for tap in plan.taps:
            tap.show(event)
        if plan.first is None:
            return self._unrouted(outcomes.accepted(Delivery(event, parent, self.roster.fallback)))
        plan.first.routed += 1
        delivery = outcomes.accepted(Delivery(event, parent, plan.first, plan))
        outcomes.routed(delivery, plan.first)
        return delivery

    def _unrouted(self, delivery: Delivery) -> Delivery:
        """No route matches: the fallback has it, or it has failed."""
        if delivery.route is None:
            none = NotHandled(f"no route matches {delivery.event.topic!r}, and there is no fallback")
            return self.outcomes.refused(delivery, none)
        self.outcomes.fell_through(delivery)
        return delivery

    def _place(self, delivery: Delivery, route: Route) -> None:
        """Into the window, or into the lane, which has room."""
        if route.window is None:
            self.roster.lane_of(route).offer(delivery, route.busy)
            return
        try:
            delivery.merge_into(route.window.fold(delivery.event, delivery))
        except Exception as error:  # noqa: BLE001  # of `key` or `merge`: reported as a handler's error is
            self.outcomes.failed(delivery, route, error)
        else:
            self.outcomes.merged(delivery, route)

    async def _room(self, lane: Lane, delivery: Delivery, route: Route) -> None:
        try:
            await lane.entrance.wait(delivery)
        except LaneFull as error:
            # The emitter still has it: as far as the counts know, it never came.
            route.routed -= 1
            self.outcomes.ended(delivery, error)
            raise
        except asyncio.CancelledError:
            if self.draining:
                lane.put(delivery)
            else:
                self.outcomes.drop(delivery, "whoever sent it was cancelled while there was no room")
            raise

    # -- at work: the lanes call these ------------------------------------------------------------------------------

    def start(self, work: Coroutine[object, object, None], lane: Lane) -> asyncio.Task[None]:
        """Run handlers in a task that the router awaits."""
        task = asyncio.get_running_loop().create_task(work, name=f"lane {lane.name}")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def failed(self, delivery: Delivery, error: BaseException) -> None:
        """A handler ended with an error: it passed the event on, gave it up, or failed."""
        route = delivery.route
        assert route is not None
        if isinstance(error, Dropped):
            self.outcomes.dropped(delivery, route, error)
        elif isinstance(error, Relayed):
            route.handled += 1
            delivery.plan = delivery.plan and delivery.plan.relayed
            await self._pass_on(delivery, route, error)
        elif isinstance(error, NotHandled):
            await self._pass_on(delivery, route, error)
        elif isinstance(error, asyncio.CancelledError):
            self.outcomes.failed(delivery, route, _unasked(route, error))
        else:
            self.outcomes.failed(delivery, route, error)

    def escaped(self, delivery: Delivery, error: BaseException) -> None:
        """A handler raised SystemExit or the like, which ends its task: the delivery fails, the error goes on."""
        route = delivery.route
        assert route is not None
        if isinstance(error, GeneratorExit):  # the loop was closed under it
            return
        # As it is, it would also end each task that awaits the delivery.
        told = LifecycleError(f"{name_of(route.handler)} raised {error_text(error)}, which is not an Exception")
        told.__cause__ = error
        self.outcomes.failed(delivery, route, told, logging.DEBUG)

    async def dispatch_on(self, event: Topical, plan: Plan, error: NotHandled | asyncio.CancelledError) -> None:
        """Go on with a direct dispatch when the first call of ``plan`` ended with ``error``."""
        route = plan.first
        try:
            while True:
                if not isinstance(error, NotHandled):
                    raise error if route is None or was_cancelled() else _unasked(route, error)
                # Most are no more than this; a look at the subclasses costs as much as a handler.
                if type(error) is not NotHandled:
                    if isinstance(error, Dropped):
                        raise error
                    if isinstance(error, Relayed):
                        plan = plan.relayed
                route = self.roster.fallback if route is None else self._following(plan, route)
                if route is None:
                    break
                try:
                    await route.call(event)
                except (NotHandled, asyncio.CancelledError) as passed:
                    error = passed
                else:
                    return
            if not plan.was_relayed:
                raise error
        finally:
            # Its traceback holds this frame.
            del error

    async def _pass_on(self, delivery: Delivery, route: Route, error: NotHandled) -> None:
        self.outcomes.passed(delivery, route)
        following = self._next(delivery, route, error)
        if following is None:
            return
        lane = self.roster.lane_of(following)
        try:
            if following.is_plain and lane is not route.lane and lane.is_full:
                await lane.entrance.wait(delivery)
        except LaneFull as full:
            self.outcomes.failed(delivery, following, full)
            return
        except asyncio.CancelledError:
            self.outcomes.drop(delivery, "its handler was cancelled while it passed the event on")
            raise
        delivery.route = following
        if following.is_plain:
            lane.put(delivery)
        else:
            self._place(delivery, following)

    def _next(self, delivery: Delivery, route: Route, error: NotHandled) -> Route | None:
        """The route that gets what ``route`` passed on, counted; None if there is none and the delivery has ended."""
        following = self._following(delivery.plan, route)
        if following is None:
            relayed = delivery.plan is not None and delivery.plan.was_relayed
            if relayed or route.is_fallback:
                # A relay has had it; or it was counted as unrouted when it came to the fallback.
                self.outcomes.ended(delivery, None if relayed else error)
            else:
                self.outcomes.refused(delivery, error)
        elif following.is_fallback:
            self.outcomes.fell_through(delivery)
            delivery.plan = None
        else:
            following.routed += 1
        return following

    def _following(self, plan: Plan | None, route: Route) -> Route | None:
        """The route that is next after ``route``, as the routes are now: of ``plan``, or else the fallback."""
        following = None if plan is None else plan.after(route)
        if following is not None or route.is_fallback or (plan is not None and plan.was_relayed):
            return following
        return self.roster.fallback


def _unasked(route: Route, error: asyncio.CancelledError) -> LifecycleError:
    """The error for a handler's stray CancelledError, which would look to its caller like a cancellation of its own."""
    told = LifecycleError(f"{name_of(route.handler)} raised CancelledError, and nobody had cancelled it")
    told.__cause__ = error
    return told


_log = logging.getLogger("lifecycle.control")


class Outcomes:
    """Tells everybody, in the name of ``router``; with no receiver a hook costs no more than the check."""

    def __init__(self, router: object) -> None:
        self._router = router
        #: Events that nobody took.
        self.unrouted: int = 0

    # -- on the way ------------------------------------------------------------------------------------------------

    def accepted(self, delivery: Delivery) -> Delivery:
        """It came in: it has a route, or the fallback, or will have failed."""
        if hooks.delivery_accepted.receivers:
            hooks.delivery_accepted.announce(self._router, delivery=delivery)
        return delivery

    def routed(self, delivery: Delivery, route: Route) -> None:
        """It found its route."""
        if hooks.event_routed.receivers:
            hooks.event_routed.announce(self._router, event=delivery.event, pattern=route.text, delivery=delivery)

    def merged(self, delivery: Delivery, route: Route) -> None:
        """It went into an open window."""
        if hooks.event_merged.receivers:
            hooks.event_merged.announce(self._router, event=delivery.event, pattern=route.text, delivery=delivery)

    def started(self, delivery: Delivery, route: Route) -> float:
        """A handler is about to be called; returns when, by the loop's clock."""
        if not route.is_tap:
            hooks.handler_started.announce(self._router, event=delivery.event, pattern=route.text, delivery=delivery)
        return asyncio.get_running_loop().time()

    def passed(self, delivery: Delivery, route: Route) -> None:
        """Its handler wants the next to have it."""
        if hooks.handler_passed.receivers:
            hooks.handler_passed.announce(self._router, event=delivery.event, pattern=route.text, delivery=delivery)

    def fell_through(self, delivery: Delivery) -> None:
        """No route took it; the fallback has it, or nobody."""
        self.unrouted += 1
        hooks.event_unrouted.announce(self._router, event=delivery.event)

    # -- at the end ------------------------------------------------------------------------------------------------

    def finished(self, delivery: Delivery, route: Route, began: float | None) -> None:
        """A handler returned that had begun then; None: nobody wanted to know, and there is no duration."""
        if began is not None and not route.is_tap:
            duration = asyncio.get_running_loop().time() - began
            hooks.handler_finished.announce(self._router, event=delivery.event, pattern=route.text, duration=duration)
        self._tell_end(delivery)

    def failed(self, delivery: Delivery, route: Route, error: BaseException, level: int = logging.ERROR) -> None:
        """An error of a handler ends its delivery and nothing else."""
        route.failed += 1
        topic = delivery.event.topic
        _log.log(level, "%s failed on %s (route %r)", name_of(route.handler), topic, route.text, exc_info=error)
        delivery.end(error)
        if not route.is_tap:
            hooks.handler_failed.announce(self._router, event=delivery.event, pattern=route.text, error=error)
        self._tell_end(delivery)

    def refused(self, delivery: Delivery, error: NotHandled) -> Delivery:
        """Nobody took it, and nobody will."""
        _log.debug("nobody took an event: %s", error)
        delivery.route = None
        delivery.end(error)
        self.fell_through(delivery)
        self._tell_end(delivery)
        return delivery

    def ended(self, delivery: Delivery, error: BaseException | None) -> None:
        """It ended in a way that no count is kept of."""
        delivery.end(error)
        self._tell_end(delivery)

    def drop(self, delivery: Delivery, reason: str, *, superseded: bool = False) -> None:
        """Give an event up, counted; ``superseded`` says that it was for a newer one."""
        assert delivery.route is not None
        error = Dropped(f"{delivery.event.topic!r} was dropped: {reason}")
        error.superseded = superseded
        self.dropped(delivery, delivery.route, error)

    def dropped(self, delivery: Delivery, route: Route, error: Dropped) -> None:
        """A handler, or the way to it, gave it up."""
        route.dropped += 1
        _log.debug("%s (route %r)", error, route.text)
        delivery.end(error)
        if not route.is_tap:
            hooks.event_dropped.announce(self._router, event=delivery.event, pattern=route.text, reason=str(error))
        self._tell_end(delivery)

    def _tell_end(self, delivery: Delivery) -> None:
        # What a tap sees is announced as the delivery to its route alone.
        if hooks.delivery_ended.receivers and not (delivery.route is not None and delivery.route.is_tap):
            hooks.delivery_ended.announce(self._router, delivery=delivery)


class Roster:
    """Every route and lane of one router that may have something under way, and the counts of all that ever were."""

    def __init__(self, table: Table, new_lane: Callable[[str, int], Lane]) -> None:
        self._table = table
        self._new_lane = new_lane
        #: Has what nobody takes.
        self.fallback: Route | None = None
        #: Lanes that routes share, by name.
        self.named: dict[str, Lane] = {}
        self.tap_lanes: set[Lane] = set()
        #: Has what goes elsewhere before it goes to its route.
        self.relays: list[Route] = []
        # Routes that were removed while something of theirs was under way.
        self._retired: list[Route] = []
        # What those that were forgotten since had counted.
        self._gone = [0, 0, 0, 0]

    def lanes(self) -> Iterator[Lane]:
        """Every lane that has been made and may have something to do."""
        yield from self.named.values()
        yield from self.tap_lanes
        for route in self.routes():
            if route.lane is not None:
                yield route.lane

    def routes(self) -> Iterator[Route]:
        """Every route that may have something under way."""
        yield from self._table.routes.values()
        yield from self.relays
        yield from self._retired
        if self.fallback is not None:
            yield self.fallback

    def counts(self) -> list[int]:
        """Routed, handled, failed and dropped, over all routes that are and were, and the fallback."""
        self._bury()
        counted = ((each.routed, each.handled, each.failed, each.dropped) for each in self.routes())
        return [sum(column) for column in zip(self._gone, *counted, strict=True)]

    def lane_of(self, route: Route) -> Lane:
        """The lane of ``route``, made if it has none yet."""
        if route.lane is None:
            route.lane = self._new_lane(route.text, route.concurrency)
        return route.lane

    def share(self, route: Route, name: str) -> None:
        """Give ``route`` the lane called ``name``.

        Raises:
            ValueError: when another route of that lane asked for another concurrency.
        """
        lane = self.named.get(name)
        if lane is None:
            lane = self.named[name] = self._new_lane(name, route.concurrency)
        if lane.concurrency != route.concurrency:
            raise ValueError(
                f"lane {name!r} runs {lane.concurrency} at once, and {route.text!r} asks for {route.concurrency}; "
                "give all its routes the same concurrency"
            )
        lane.users += 1
        route.lane = lane

    def fall_back_to(self, handler: Handler, middleware: Sequence[Middleware]) -> None:
        """Make ``handler`` inside ``middleware`` the fallback, in place of the one before."""
        route = Route(Pattern("**"), handler, (), caller())
        if middleware:
            route.add_middleware(middleware)
        route.text, route.is_fallback = "(fallback)", True
        old, self.fallback = self.fallback, route
        if old is not None:
            self.retire(old)

    def retire(self, route: Route) -> None:
        """A route was removed: what it has accepted is still delivered to it."""
        route.is_retired = True
        if route.window is not None:
            route.window.closed = True
            route.window.flush()
        self._retired.append(route)
        self._bury()

    def _bury(self) -> None:
        """Forget the removed routes that have nothing under way, but not their counts."""
        left: list[Route] = []
        for route in self._retired:
            if route.window or (route.lane is not None and not route.lane.is_idle):
                left.append(route)
            else:
                self._leave(route)
                counts = (route.routed, route.handled, route.failed, route.dropped)
                self._gone = [old + new for old, new in zip(self._gone, counts, strict=True)]
        self._retired = left

    def _leave(self, route: Route) -> None:
        """A shared lane goes with the last of its routes."""
        lane = route.lane
        if lane is not None and self.named.get(lane.name) is lane:
            lane.users -= 1
            if not lane.users:
                del self.named[lane.name]
