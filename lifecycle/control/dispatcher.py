"""`Dispatcher`: moves each event to its route's lane, passes it on if necessary, and reports the result.

The lanes' tasks (``lanes``) call the handlers and report the results to the dispatcher. ``source_runner`` runs
the sources, and ``running`` starts and stops the router.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextvars import copy_context
from threading import get_ident
from typing import TYPE_CHECKING, Final, Protocol

from lifecycle import hooks
from lifecycle._async import start_task, was_cancelled
from lifecycle._util import error_text, name_of, was_logged
from lifecycle.control.debouncing import Debounce, Debouncer
from lifecycle.control.deliveries import Begun, Delivery, current, emits_stored
from lifecycle.control.keyed_lanes import KeyedLane, check_key
from lifecycle.control.lanes import Lane
from lifecycle.control.patterns import Pattern
from lifecycle.control.routing import Busy, Route
from lifecycle.errors import Dropped, InvalidTopic, LaneFull, LifecycleError, NotHandled, Refused, UsageError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Hashable, Iterator, Sequence
    from contextvars import Context

    from lifecycle._durations import Duration
    from lifecycle.control.commands import Commands
    from lifecycle.control.routing import Match, RouteTable
    from lifecycle.control.types import Handler, LaneKey, Middleware
    from lifecycle.events import Topical

__all__ = ["Dispatcher", "Relayed", "Reporter"]

_log = logging.getLogger("lifecycle.control")

# A hook keeps the same dictionary of receivers for as long as it exists, so we can keep a reference to it. The
# dictionary is empty if the hook has no receivers.
_ROUTED, _ACCEPTED = hooks.event_routed.receivers, hooks.delivery_accepted.receivers


class _HasCommands(Protocol):
    """The part of a router that the reporter needs."""

    @property
    def commands(self) -> Commands:
        """The registered commands."""
        ...


class Relayed(NotHandled):
    """Raised when a relay passes an event to its routes. It never leaves this package."""


class Dispatcher:
    """Moves events through the debouncers and lanes of one router. It owns the lanes."""

    def __init__(self, table: RouteTable, buffer: int, router: _HasCommands) -> None:
        self.table = table
        #: The router, which hooks receive as their sender.
        self.router = router
        self.report: Final = Reporter(router)
        self._matches = table.matches
        self._buffer = buffer
        # If false, no handlers run, and events wait in their lanes.
        self.working = False
        #: The context in which the lanes call handlers: a copy of the context of the task that runs the router.
        self.context: Context = copy_context()
        #: The event loop that runs the router, or None while the router is not running.
        self.loop: asyncio.AbstractEventLoop | None = None
        #: The thread of that loop. Comparing threads is five times as fast as comparing loops.
        self.thread: int | None = None
        # True while the router is stopping. An event that a cancelled source was emitting is then accepted even if its
        # lane is full.
        self.draining = False
        # The tasks of all lanes. The router awaits them when it closes.
        self.tasks: set[asyncio.Task[None]] = set()
        #: The lane of each route. A lane is created when the route's first event arrives, because many routes never
        #: receive one.
        self.lanes: dict[Route, Lane] = {}
        # Shared lanes by name, and keyed lanes by their key function.
        self._shared: dict[str | LaneKey | None, Lane] = {}
        #: The route for events that no other route takes.
        self.fallback: Route | None = None
        # Removed routes that still have events.
        self._removed: list[Route] = []
        # The total counts of routed, handled, failed and dropped events for removed routes that have finished.
        self._past_counts = [0, 0, 0, 0]

    # -- routes and their lanes ------------------------------------------------------------------------------------

    def add(
        self, route: Route, debounce: Duration | Debounce | None, lane: str | LaneKey | None, *, replace: bool
    ) -> None:
        """Register ``route`` together with its debounce and its shared or keyed lane, if any.

        Raises:
            RouteConflict: if its pattern is taken and ``replace`` is false.
            ValueError: if another route of that lane has a different concurrency.
        """
        self._prepare(route, debounce, lane)
        old = self.table.add(route, replace=replace)
        if old is not None:
            self.remove(old)

    def add_also(self, route: Route, debounce: Duration | Debounce | None, lane: str | LaneKey | None) -> None:
        """Register ``route`` to receive events in addition to the route that handles them."""
        self._prepare(route, debounce, lane)
        self.table.add_tap(route)

    def _prepare(self, route: Route, debounce: Duration | Debounce | None, lane: str | LaneKey | None) -> None:
        route.is_plain = debounce is None and route.busy is Busy.QUEUE
        if debounce is not None:
            self._add_debouncer(route, debounce if isinstance(debounce, Debounce) else Debounce(debounce))
        if lane is not None:
            if not isinstance(lane, str):
                check_key(lane)
            self._share_lane(route, lane)

    def _add_debouncer(self, route: Route, settings: Debounce) -> None:
        def deliver(key: Hashable, call: Delivery) -> bool:
            lane = self.lane_of(route)
            try:
                lane.offer(call, route.busy)
            except LaneFull:
                lane.when_free(lambda: debouncer.retry(key))
                return False
            return True

        debouncer = route.debouncer = Debouncer(settings, deliver)

    def _share_lane(self, route: Route, shared: str | LaneKey) -> None:
        route.shared_lane = shared
        if isinstance(shared, str):
            route.lane = shared
        lane = self._shared.get(shared)
        if lane is None:
            lane = self._shared[shared] = self._new_lane(route)
        if lane.concurrency != route.concurrency:
            raise ValueError(
                f"lane {lane.name!r} has a concurrency of {lane.concurrency}, but {route.text!r} uses "
                f"{route.concurrency}; use the same concurrency for all its routes"
            )
        self.lanes[route] = lane
        route.lane = lane.name

    def _new_lane(self, route: Route) -> Lane:
        if callable(key := route.shared_lane):
            return KeyedLane(route.lane, route.concurrency, self._buffer, self, key)
        return Lane(route.lane, route.concurrency, self._buffer, self)

    def lane_of(self, route: Route) -> Lane:
        """Return the lane of ``route``, creating it if necessary."""
        lane = self.lanes.get(route)
        if lane is not None:
            return lane
        # A route that was removed and forgotten while an event was being passed to it has no entry, but may still have
        # a lane.
        shared = self._shared.get(route.shared_lane) if route.is_removed else None
        if shared is not None and shared.concurrency == route.concurrency:
            lane = self.lanes[route] = shared
        else:
            lane = self.lanes[route] = self._new_lane(route)
        if route.is_removed:
            self._keep_removed(route, lane)
        return lane

    def set_fallback(self, handler: Handler, middleware: Sequence[Middleware]) -> None:
        """Replace the fallback with ``handler``, wrapped in ``middleware``."""
        route = Route(Pattern("**"), handler)
        if middleware:
            route.add_middleware(middleware)
        route.text = route.lane = "(fallback)"
        route.is_fallback = True
        old, self.fallback = self.fallback, route
        if old is not None:
            self.remove(old)

    def remove(self, route: Route) -> None:
        """Keep a route that was removed from the table until it has finished the events that it has accepted."""
        route.is_removed = True
        if route.debouncer is not None:
            route.debouncer.closed = True
            route.debouncer.flush()
        self._removed.append(route)
        self._forget_finished()

    def _keep_removed(self, route: Route, lane: Lane) -> None:
        """Keep a route that was removed, and possibly forgotten, while an event was being passed to ``lane``."""
        self.lanes.setdefault(route, lane)
        if route not in self._removed:
            self._removed.append(route)

    def _forget_finished(self) -> None:
        """Forget removed routes that have finished, but keep their counts."""
        unfinished: list[Route] = []
        for route in self._removed:
            lane = self.lanes.get(route)
            if route.debouncer or (lane is not None and not lane.is_idle):
                unfinished.append(route)
                continue
            self.lanes.pop(route, None)
            # A shared lane is forgotten together with the last of its routes.
            if lane is not None and self._shared.get(route.shared_lane) is lane and lane not in self.lanes.values():
                del self._shared[route.shared_lane]
            counts = (route.routed, route.handled, route.failed, route.dropped)
            self._past_counts = [old + new for old, new in zip(self._past_counts, counts, strict=True)]
            # Reset the counts. If another event still reaches the route, it is counted when the route is forgotten
            # again.
            route.routed = route.handled = route.failed = route.dropped = 0
        self._removed = unfinished

    def routes(self) -> Iterator[Route]:
        """Iterate over every route that may have events."""
        yield from self.table.routes.values()
        yield from self.table.relays
        yield from self.table.also
        yield from self._removed
        if self.fallback is not None:
            yield self.fallback

    def counts(self) -> list[int]:
        """Return the counts of routed, handled, failed and dropped events of all routes, including removed ones."""
        self._forget_finished()
        counted = ((each.routed, each.handled, each.failed, each.dropped) for each in self.routes())
        return [sum(column) for column in zip(self._past_counts, *counted, strict=True)]

    # -- accepting events ------------------------------------------------------------------------------------------

    async def accept(self, event: Topical) -> Delivery:
        """Accept an event, and wait until its lane has capacity.

        If no route takes the event, the returned delivery has no route and has ended with `NotHandled`.

        Every event from every source passes through this method, so it handles the usual case inline: a plain route,
        and no observers.
        """
        if self.thread is not None and self.thread != get_ident():
            raise _wrong_thread("emit")
        match = route = None
        try:
            match = self._matches[event.topic]
            if not (match.taps or _ROUTED or _ACCEPTED):
                route = match.first
        except (AttributeError, TypeError, InvalidTopic):  # `_admit` handles these errors
            pass
        if route is None:
            delivery = self._admit(event)
            route = delivery.route
            if route is None:
                return delivery
        else:
            route.routed += 1
            delivery = Delivery(event, current.get(), route, match)
        if route.is_plain:
            try:
                lane = self.lanes[route]
            except KeyError:
                lane = self.lane_of(route)
            if len(lane.queue) >= lane.limit:
                await self._wait_for_capacity(lane, delivery, route)
            lane.put(delivery)
        else:
            self._place(delivery, route)
        return delivery

    def accept_nowait(self, event: Topical) -> Delivery:
        """Accept an event without waiting.

        Raises:
            LaneFull: if the lane is full. In that case, neither taps nor hooks have seen the event.
            RuntimeError: if the router runs in another thread.
        """
        if self.loop is not None and self.loop is not _running_loop():
            raise _wrong_thread("emit_nowait")
        try:
            route = self.table.match(event).first or self.fallback
        except InvalidTopic:
            route = None
        if route is not None and route.is_plain and self.lane_of(route).is_full:
            raise LaneFull(f"no space for {event.topic!r}: lane {route.lane!r} is full")
        delivery = self._admit(event)
        if delivery.route is not None:
            self._place(delivery, delivery.route)
        return delivery

    def _admit(self, event: Topical) -> Delivery:
        """Resolve the topic, pass the event to the taps, and count it.

        If no route matches, the fallback gets the event.
        """
        report, parent = self.report, current.get()
        try:
            match = self.table.match(event)
        except InvalidTopic as error:
            delivery = Delivery(event, parent)
            report.announce_accepted(delivery)
            report.end_refused(delivery, error)
            return delivery
        for tap in match.taps:
            self._show(tap, event)
        route = match.first
        if route is not None:
            route.routed += 1
        delivery = Delivery(event, parent, route or self.fallback, None if route is None else match)
        report.announce_accepted(delivery)
        if route is not None:
            report.announce_routed(delivery, route)
        elif delivery.route is None:
            report.end_refused(delivery, _no_route(event))
        else:
            report.count_unrouted(delivery)
        return delivery

    def _show(self, tap: Route, event: Topical) -> None:
        """Pass the event to a tap.

        A plain tap is called immediately. For an async tap, the event goes into the tap's lane if it has capacity. The
        lane also awaits an awaitable that a plain tap returns.
        """
        if not tap.is_direct:
            # Another tap may have removed this one.
            if tap.is_removed:
                return
            if tap.is_also:
                self._admit_also(tap, event)
            else:
                self._queue_for_tap(Delivery(event, None, tap), tap)
            return
        try:
            result = tap.bound(event)
        except Dropped:
            tap.dropped += 1
        except (Exception, asyncio.CancelledError):  # noqa: BLE001  # errors from taps are only logged
            self.report.log_tap_failed(tap, event)
        else:
            if result is not None and inspect.isawaitable(result):
                self._queue_for_tap(Begun(event, tap, result), tap)

    def _queue_for_tap(self, delivery: Delivery, tap: Route) -> None:
        lane = self.lane_of(tap)
        if lane.is_full:
            tap.dropped += 1
            delivery.end()
        else:
            lane.put(delivery)

    def _admit_also(self, route: Route, event: Topical) -> None:
        """Pass an event to a route registered with `Router.also`.

        This creates a separate delivery, and never makes `emit` wait.
        """
        route.routed += 1
        delivery = Delivery(event, current.get(), route)
        self.report.announce_accepted(delivery)
        self.report.announce_routed(delivery, route)
        if route.is_plain and self.lane_of(route).is_full:
            self.report.drop(delivery, f"lane {route.lane!r} is full")
        else:
            self._place(delivery, route)

    def _place(self, delivery: Delivery, route: Route) -> None:
        """Put the event into the debouncer or the lane of ``route``.

        A plain route accepts the event even if its lane is full. The caller has checked the capacity, but taps and hook
        receivers may have emitted events since then.
        """
        if route.is_plain:
            self.lane_of(route).put(delivery)
            return
        if route.debouncer is None:
            try:
                self.lane_of(route).offer(delivery, route.busy)
            except LaneFull as error:  # raised only by a keyed lane, for an event whose key is idle
                self.report.drop(delivery, str(error))
            return
        try:
            delivery.merge_into(route.debouncer.add(delivery.event, delivery))
        except Exception as error:  # noqa: BLE001  # raised by `key` or `merge`; reported like a handler's error
            self.report.end_failed(delivery, route, error)
        else:
            self.report.announce_merged(delivery, route)

    async def _wait_for_capacity(self, lane: Lane, delivery: Delivery, route: Route) -> None:
        try:
            await lane.wait(delivery)
        except LaneFull as error:
            # The event stays with its emitter, so it is not counted.
            route.routed -= 1
            self.report.end(delivery, error)
            raise
        except asyncio.CancelledError:
            if self.draining:
                delivery.is_stored = emits_stored.get()
                lane.put(delivery)
            else:
                self.report.drop(delivery, "its emitter was cancelled while the lane was full")
            raise
        finally:
            if route.is_removed:
                self._keep_removed(route, lane)

    # -- results of handlers ---------------------------------------------------------------------------------------

    def start(self, work: Coroutine[object, object, None], lane: Lane) -> asyncio.Task[None]:
        """Start a task for ``lane`` in the context of the router. The router awaits the task when it closes.

        In the emitter's context, a handler would see the context variables of an unrelated caller, and a worker that it
        starts would not belong to the router's program.
        """
        task = start_task(work, name=f"lane {lane.name}", context=self.context.copy())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def failed(self, delivery: Delivery, error: BaseException) -> None:
        """Process an error raised by a handler: pass the event on, drop it, or report a failure."""
        route = delivery.route
        assert route is not None
        if isinstance(error, Dropped):
            self.report.end_dropped(delivery, route, error)
        elif isinstance(error, NotHandled):
            if isinstance(error, Relayed):
                route.handled += 1
                delivery.match = delivery.match and delivery.match.relayed
            await self._pass_on(delivery, route, error)
        elif isinstance(error, asyncio.CancelledError):
            self.report.end_failed(delivery, route, _stray(route, error))
        elif isinstance(error, UsageError) and not route.is_tap:
            self.report.end_misused(delivery, route, error)
        elif isinstance(error, Refused):
            self.report.end_declined(delivery, route, error)
        else:
            self.report.end_failed(delivery, route, error)

    def escaped(self, delivery: Delivery, error: BaseException) -> None:
        """End the delivery after its handler raised an exception, such as SystemExit, that also stops the lane task."""
        route = delivery.route
        assert route is not None
        if isinstance(error, GeneratorExit):  # the loop was closed
            return
        # Wrap the error. Otherwise, it would also end every task that awaits the delivery.
        failure = LifecycleError(f"{name_of(route.handler)} raised {error_text(error)}, which is not an Exception")
        failure.__cause__ = error
        self.report.end_failed(delivery, route, failure, logging.DEBUG)

    async def _pass_on(self, delivery: Delivery, route: Route, error: NotHandled) -> None:
        """Pass the event to the next route, or end its delivery if there is none."""
        self.report.announce_passed(delivery, route)
        if route.is_also:
            self.report.end(delivery, error)
            return
        following = self._following(delivery.match, route)
        if following is None:
            if delivery.match is not None and delivery.match.was_relayed:
                self.report.end(delivery, None)
            elif route.is_fallback:
                # The event was already counted as unrouted when the fallback received it.
                self.report.end(delivery, error)
            else:
                self.report.end_refused(delivery, error)
            return
        if following.is_fallback:
            self.report.count_unrouted(delivery)
            delivery.match = None
        else:
            following.routed += 1
        lane = self.lane_of(following)
        try:
            if following.is_plain and lane is not self.lanes.get(route) and lane.is_full:
                await lane.wait(delivery)
        except LaneFull as full:
            self.report.end_failed(delivery, following, full)
            return
        except asyncio.CancelledError:
            self.report.drop(delivery, "its handler was cancelled while it passed the event on")
            raise
        delivery.route = following
        if following.is_removed:
            self._keep_removed(following, lane)
        self._place(delivery, following)

    def _following(self, match: Match | None, route: Route) -> Route | None:
        """Return the route that currently follows ``route`` in ``match``, or the fallback if there is none."""
        following = None if match is None else match.after(route)
        if following is not None or route.is_fallback or (match is not None and match.was_relayed):
            return following
        return self.fallback

    # -- direct dispatch -------------------------------------------------------------------------------------------

    async def call_directly(
        self, event: Topical, match: Match, error: NotHandled | asyncio.CancelledError | None = None
    ) -> None:
        """Call the taps and routes of ``match`` directly, bypassing debouncers and lanes.

        ``error`` is the error of the first route if the caller has already called that route.
        """
        route = match.first
        try:
            if error is None:
                for tap in match.taps:
                    await (self._call_also(tap, event) if tap.is_also else tap.call(event))
                route = route or self.fallback
                if route is None:
                    raise _no_route(event)
                error = await _attempt(route, event)
            elif isinstance(error, asyncio.CancelledError):
                raise error if route is None or was_cancelled() else _stray(route, error)
            while error is not None:
                if isinstance(error, Dropped):
                    raise error
                if isinstance(error, Relayed):
                    match = match.relayed
                assert route is not None
                route = self._following(match, route)
                if route is None:
                    if match.was_relayed:
                        return
                    raise error
                error = await _attempt(route, event)
        finally:
            # The error's traceback refers to this frame, so keeping it would create a reference cycle.
            del error

    async def _call_also(self, route: Route, event: Topical) -> None:
        """Call a route registered with `Router.also`. If it fails, only log the error."""
        try:
            await route.call(event)
        except NotHandled:
            return
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and was_cancelled():
                raise
            _log.exception("%s failed on %s (route %r)", name_of(route.handler), event.topic, route.text)


async def _attempt(route: Route, event: Topical) -> NotHandled | None:
    """Call a route. If it passes the event on or drops it, return the `NotHandled` error that it raised."""
    try:
        await route.call(event)
    except NotHandled as passed:
        return passed
    except asyncio.CancelledError as error:
        if was_cancelled():
            raise
        stray = _stray(route, error)
    else:
        return None
    raise stray


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _wrong_thread(method: str) -> RuntimeError:
    return RuntimeError(
        f"{method}() was called outside the thread of the router's event loop, so the event was not accepted; in other "
        "threads, call emit_threadsafe() of a BaseSource that you have added to the router"
    )


def _no_route(event: Topical) -> NotHandled:
    return NotHandled(f"no route matches {event.topic!r}, and there is no fallback")


def _stray(route: Route, error: asyncio.CancelledError) -> LifecycleError:
    """Return an error to replace a handler's stray CancelledError.

    A caller would mistake the original for its own cancellation.
    """
    failure = LifecycleError(f"{name_of(route.handler)} raised CancelledError, although it was not cancelled")
    failure.__cause__ = error
    return failure


class Reporter:
    """Counts, logs and announces what happened to each event.

    A hook without receivers costs only the check for receivers.
    """

    def __init__(self, router: _HasCommands) -> None:
        self._router = router
        #: The number of events that no route took.
        self.unrouted_count: int = 0

    # -- progress --------------------------------------------------------------------------------------------------

    def announce_accepted(self, delivery: Delivery) -> None:
        """Announce that an event was accepted.

        The event is about to go to a route or the fallback, or its delivery is about to fail.
        """
        hooks.delivery_accepted.announce(self._router, delivery=delivery)

    def announce_routed(self, delivery: Delivery, route: Route) -> None:
        """Announce that an event has a route."""
        hooks.event_routed.announce(self._router, event=delivery.event, pattern=route.text, delivery=delivery)

    def announce_merged(self, delivery: Delivery, route: Route) -> None:
        """Announce that an event was merged into a burst."""
        hooks.event_merged.announce(self._router, event=delivery.event, pattern=route.text, delivery=delivery)

    def announce_started(self, delivery: Delivery, route: Route) -> float:
        """Announce that a handler is about to be called, and return its start time."""
        if not route.is_tap:
            hooks.handler_started.announce(self._router, event=delivery.event, pattern=route.text, delivery=delivery)
        return asyncio.get_running_loop().time()

    def announce_passed(self, delivery: Delivery, route: Route) -> None:
        """Announce that a handler passed its event on."""
        hooks.handler_passed.announce(self._router, event=delivery.event, pattern=route.text, delivery=delivery)

    def count_unrouted(self, delivery: Delivery) -> None:
        """Count an event that no route took. The fallback may still get it."""
        self.unrouted_count += 1
        hooks.event_unrouted.announce(self._router, event=delivery.event)

    # -- finished deliveries ---------------------------------------------------------------------------------------

    def announce_finished(self, delivery: Delivery, route: Route, began: float | None) -> None:
        """Announce that a handler returned and its delivery has ended.

        If the handler's start time is known, announce how long it ran.
        """
        if began is not None and not route.is_tap:
            duration = asyncio.get_running_loop().time() - began
            hooks.handler_finished.announce(self._router, event=delivery.event, pattern=route.text, duration=duration)
        self._announce_end(delivery)

    def end_failed(self, delivery: Delivery, route: Route, error: BaseException, level: int = logging.ERROR) -> None:
        """End a delivery with its handler's error."""
        route.failed += 1
        topic = delivery.event.topic
        level = logging.DEBUG if was_logged(error) else level
        _log.log(level, "%s failed on %s (route %r)", name_of(route.handler), topic, route.text, exc_info=error)
        delivery.end(error)
        if not route.is_tap:
            hooks.handler_failed.announce(self._router, event=delivery.event, pattern=route.text, error=error)
        self._announce_end(delivery)

    def end_misused(self, delivery: Delivery, route: Route, error: UsageError) -> None:
        """End the delivery of a command with invalid arguments. This is not treated as a failure of its handler."""
        route.handled += 1
        command = self._router.commands.get(delivery.event.topic.rpartition("/")[2])
        text = str(error)
        if command is not None and "usage:" not in text:
            text += f"; usage: {command.usage}" if command.usage else f"; {command.name}: {command.help}".rstrip(": ")
        _log.warning("%s", text)
        delivery.end(error)
        self.announce_finished(delivery, route, asyncio.get_running_loop().time())

    def end_declined(self, delivery: Delivery, route: Route, error: Refused) -> None:
        """End the delivery of a request that its handler refused. This is not a failure of the handler."""
        route.handled += 1
        _log.warning("%s refused %s: %s (route %r)", name_of(route.handler), delivery.event.topic, error, route.text)
        delivery.end(error)
        self.announce_finished(delivery, route, asyncio.get_running_loop().time())

    def log_tap_failed(self, tap: Route, event: Topical) -> None:
        """Log an error raised by a tap. Call this inside the except clause."""
        _log.exception("the tap %s on %r failed on %s", name_of(tap.handler), tap.text, event.topic)

    def end_refused(self, delivery: Delivery, error: NotHandled) -> None:
        """End the delivery of an event that no route took."""
        _log.debug("no handler took an event: %s", error)
        delivery.end(error)
        self.count_unrouted(delivery)
        self._announce_end(delivery)

    def end(self, delivery: Delivery, error: BaseException | None) -> None:
        """End a delivery without counting it."""
        delivery.end(error)
        self._announce_end(delivery)

    def drop(self, delivery: Delivery, reason: str, *, superseded: bool = False, queued: bool = False) -> None:
        """Drop an event. ``superseded`` and ``queued`` are described in `Dropped`."""
        assert delivery.route is not None
        error = Dropped(f"{delivery.event.topic!r} was dropped: {reason}")
        error.superseded, error.queued = superseded, queued
        self.end_dropped(delivery, delivery.route, error)

    def end_dropped(self, delivery: Delivery, route: Route, error: Dropped) -> None:
        """End the delivery of a dropped event."""
        # A tap counts an event as missed only if its lane was full or its handler dropped the event.
        if not route.is_tap:
            route.dropped += 1
        _log.debug("%s (route %r)", error, route.text)
        delivery.end(error)
        if not route.is_tap:
            hooks.event_dropped.announce(self._router, event=delivery.event, pattern=route.text, reason=str(error))
        self._announce_end(delivery)

    def _announce_end(self, delivery: Delivery) -> None:
        # Only the delivery to an event's route is announced. Deliveries to taps are not.
        if hooks.delivery_ended.receivers and not (delivery.route is not None and delivery.route.is_tap):
            hooks.delivery_ended.announce(self._router, delivery=delivery)
