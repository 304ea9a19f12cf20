"""Plays a random router program in virtual time, and records its outcome.

The outcome contains only what the documentation promises. Lines of independent handlers with the same time are sorted,
because their order is undefined.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import json
import logging
import re
from collections import defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self
from zlib import crc32

from lifecycle import hooks
from lifecycle.backoff import Backoff
from lifecycle.control import (
    CommandEvent,
    Debounce,
    Dropped,
    Event,
    NotHandled,
    Router,
    UsageError,
    delivery,
    log,
    once,
    recover,
    timeout,
)
from lifecycle.errors import Refused
from lifecycle.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from tests.control.programs import Action, Program, Registered

__all__ = ["SECTIONS", "Outcome", "digests", "play"]

#: The parts of an outcome, by name, and the lines of each.
Outcome = dict[str, list[str]]

#: ``calls``: what each handler did, in order. ``emits``: the result of each event. ``state``: the counts. ``lanes`` and
#: ``routes``: their records. ``hooks``: what was announced about each delivery. ``messages``: the text of each error.
#: ``logs``: the lines of the log.
SECTIONS = ("calls", "emits", "state", "lanes", "routes", "hooks", "messages", "logs")

#: Seconds after the last action at which the router is stopped, and seconds until then for what is still running.
_REST, _END = 300.0, 60.0

_HOOKS = (
    hooks.delivery_accepted,
    hooks.event_routed,
    hooks.event_unrouted,
    hooks.event_dropped,
    hooks.event_merged,
    hooks.handler_started,
    hooks.handler_passed,
    hooks.handler_finished,
    hooks.handler_failed,
    hooks.delivery_ended,
    hooks.source_failed,
    hooks.router_started,
    hooks.router_stopped,
)


# -- the adapter: the names that differ between versions of the library -------------------------------------------

#: The name of an observer's route contains its handler, because several observers may share a pattern.
OBSERVER = re.compile(r" \(observed by ([^)]*)\)")


def register(router: Router, pattern: str, handler: Any, *, replace: bool, **settings: Any) -> None:
    """Register ``handler`` for a pattern, or replace the handler that the pattern has."""
    router.handle(pattern, handler, replace=replace, **settings)


def observe(router: Router, pattern: str, handler: Any, **settings: Any) -> Callable[[], None]:
    """Let ``handler`` see each matching event in a lane of its own, and return a function that ends this."""
    return router.observe(pattern, handler, **settings).remove


#: The base class of a source that pushes events.
SourceBase: Any = object


async def call(router: Router, event: Event) -> Any:
    """Emit ``event`` and return the value of its handler, or raise its error."""
    return await (await router.emit(event))


# -- notes ----------------------------------------------------------------------------------------------------------


class Notes:
    """The lines of a program, by section, and in each section by stream. A stream has an order of its own."""

    def __init__(self) -> None:
        self.streams: dict[str, dict[str, list[tuple[float, str]]]] = {name: defaultdict(list) for name in SECTIONS}
        self.unordered: set[str] = set()

    def add(self, section: str, stream: str, text: str) -> None:
        """Add a line to a stream of a section."""
        self.streams[section][stream].append((_now(), text))

    def error(self, error: BaseException) -> str:
        """Note the text of an error, and return its type."""
        self.streams["messages"][type(error).__name__].append((0.0, clean(str(error))))
        return type(error).__name__

    def outcome(self) -> Outcome:
        """Return the lines of each section."""
        found: Outcome = {}
        for section, streams in self.streams.items():
            if section == "messages":
                found[section] = sorted({f"{kind}: {text}" for kind, notes in streams.items() for _, text in notes})
            elif section == "hooks":
                found[section] = _hook_lines(streams)
            else:
                found[section] = [
                    f"{stream} | {at:.6f} {text}"
                    for stream, notes in sorted(streams.items())
                    for at, text in (sorted(notes, key=_rounded) if stream in self.unordered else notes)
                ]
        return found


def _rounded(note: tuple[float, str]) -> tuple[float, str]:
    return round(note[0], 6), note[1]


def _hook_lines(streams: dict[str, list[tuple[float, str]]]) -> list[str]:
    """Return one line for each delivery, without its number, and one for each announcement without a delivery."""
    lines: list[str] = []
    for stream, notes in streams.items():
        if stream.startswith("#"):
            lines.append(" ".join(f"{at:.6f} {text};" for at, text in notes))
        else:
            lines += [f"{at:.6f} {text}" for at, text in notes]
    return sorted(lines)


def _now() -> float:
    return asyncio.get_running_loop().time()


@functools.lru_cache(10_000)
def clean(text: str) -> str:
    """Return ``text`` without what changes from run to run, or depends on the place of a line of the tests."""
    text = OBSERVER.sub(r" (observer \1)", text)
    text = re.sub(r"after \d+\.\d+ s", "after … s", text)
    text = re.sub(r"\d+ running and \d+ waiting", "… running and … waiting", text)
    text = re.sub(r"registered at [^ ]+:\d+", "registered at …", text)
    return re.sub(r"<(Task|coroutine|async_generator|function|Delivery)\b.*>", r"<\1>", text)


def _sorted_topics(found: re.Match[str]) -> str:
    """Sort the topics in the log line of a stop. Only the number is fixed if there are more than it names."""
    topics = found[1].split(", ")
    return "(…)" if "…" in topics else f"({', '.join(sorted(topics))})"


class _Lines(logging.Handler):
    """Notes each log record from level INFO."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(logging.INFO)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        text = clean(record.getMessage().split("\n", 1)[0])
        text = re.sub(r"\(([^()]*, [^()]*)\)", _sorted_topics, text)
        error = record.exc_info[1] if record.exc_info else None
        told = "" if error is None else f" [{type(error).__name__}]"
        self._notes.add("logs", "log", f"{record.name} {record.levelname}: {text}{told}")


@contextmanager
def _logged(notes: Notes) -> Iterator[None]:
    """Note what is logged, and hide it from other handlers."""
    notes.unordered.add("log")
    handler = _Lines(notes)
    loggers = [logging.getLogger(name) for name in ("lifecycle", "asyncio")]
    before = [(each.level, each.propagate) for each in loggers]
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(logging.INFO)
        each.propagate = False
    try:
        yield
    finally:
        for each, (level, propagate) in zip(loggers, before, strict=True):
            each.removeHandler(handler)
            each.setLevel(level)
            each.propagate = propagate


# -- playing --------------------------------------------------------------------------------------------------------


def play(program: Program) -> Outcome:
    """Run ``program`` in a virtual loop of its own, and return its outcome."""
    notes = Notes()
    with asyncio.Runner(loop_factory=_new_loop) as runner, _logged(notes):
        runner.run(_Stage(program, notes).play())
    return notes.outcome()


def _new_loop() -> VirtualLoop:
    loop = VirtualLoop()
    # Within one moment, an eager task is ahead of one that asyncio schedules. The outcomes are those of the latter.
    loop.set_task_factory(None)
    return loop


def digests(outcome: Outcome) -> str:
    """Return six digits for each section."""
    return " ".join(hashlib.sha256(json.dumps(outcome[each]).encode()).hexdigest()[:6] for each in SECTIONS)


def _merge(pending: Event, new: Event) -> Event:
    return Event(new.topic, f"{_data(pending)}+{_data(new)}")


def _number(event: Event) -> int:
    return crc32(_data(event).encode())


def _data(event: Any) -> str:
    """Return the data of an event. A command has none."""
    return str(getattr(event, "data", event.topic))


def _broken(event: Event) -> Any:
    if _number(event) % 2:
        raise ValueError(f"{_data(event)} has no key")
    return []


_KEYS: dict[str, Callable[[Event], Any]] = {
    "topic": lambda event: event.topic,
    "parity": lambda event: _number(event) % 2,
    "same": lambda _: "same",
    "broken": _broken,
}

_ERRORS: dict[str, Callable[[str], BaseException]] = {
    "ValueError": ValueError,
    "NotHandled": NotHandled,
    "Dropped": Dropped,
    "Refused": lambda text: Refused(409, text),
    "UsageError": UsageError,
    "CancelledError": asyncio.CancelledError,
}


class _Stage:
    """The router of a program, and the tasks that use it."""

    def __init__(self, program: Program, notes: Notes) -> None:
        self.program = program
        self.notes = notes
        self.router = Router("r", buffer=program.buffer, drain_timeout=program.drain_timeout)
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.running: asyncio.Task[None] | None = None
        self.deliveries: dict[str, Any] = {}
        self.observers: dict[str, Callable[[], None]] = {}
        self.ids: dict[int, str] = {}
        self.hook_receivers: list[Any] = []

    async def play(self) -> None:
        """Register everything, perform the actions at their times, and wait until everything has ended."""
        if self.program.is_hooked:
            self._connect()
        try:
            self._prepare()
            for action in self.program.actions:
                await asyncio.sleep(max(0.0, action.at - _now()))
                self.tasks[action.label] = asyncio.create_task(self._guard(action), name=action.label)
            await asyncio.sleep(_END)
            self._probe()
            await self._end()
        finally:
            for hook, receiver in zip(_HOOKS, self.hook_receivers, strict=False):
                hook.disconnect(receiver)

    async def _end(self) -> None:
        self.router.stop()
        await asyncio.sleep(_REST)
        for label, task in self.tasks.items():
            if not task.done():
                self.notes.add("emits", label, "is still waiting")
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            self.notes.add("state", "end", f"{len(left)} tasks are left")
        for label, sent in self.deliveries.items():
            state = "pending" if not sent.done else "succeeded"
            if sent.error is not None:
                state = f"ended with {self.notes.error(sent.error)}"
            self.notes.add("emits", label, state)
        self._probe()
        for topic in self.program.topics:
            self._explain(topic)

    # -- registration ----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        program = self.program
        if program.use_first:
            self._use()
        for each in program.routes:
            self._try("register", lambda each=each: self._register(each))  # type: ignore[misc]
        if program.has_commands:
            self._commands()
        for each in program.observers:
            self._try("observe", lambda each=each: self._observe(each))  # type: ignore[misc]
        if program.fallback is not None:
            self._fallback(program.fallback)
        if not program.use_first:
            self._use()
        for name, kind, events in program.sources:
            backoff = Backoff(0.25, jitter=0.0, max_restarts=2)
            self.router.add_source(self._source(name, kind, events), backoff=backoff)

    def _use(self) -> None:
        for name in self.program.use:
            self.router.use(self._middleware(name, "use"))

    def _commands(self) -> None:
        """Register two commands: one whose arguments are parsed, and one that gets its event."""

        def note(text: str) -> None:
            self.notes.add("calls", "commands", text)

        @self.router.command
        async def deploy(target: str, times: int = 1, *, force: bool = False) -> str:
            """Deploy."""
            note(f"deploy {target!r} {times!r} {force!r} begins")
            await asyncio.sleep(self._pause(f"deploy {target}"))
            note(f"deploy {target!r} ends")
            return target

        @self.router.command("say", help="Say it.")
        def _(event: CommandEvent) -> None:
            note(f"say {event.args}")
            if not event.args:
                raise UsageError("say what?")

    def _try(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  # every error is noted
            self.notes.add("emits", what, self.notes.error(error))

    def _settings(self, one: Registered) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        if one.debounce is not None:
            wait, max_wait, merges, key = one.debounce
            settings["debounce"] = Debounce(wait, max_wait, _merge if merges else None, _KEYS.get(str(key)))
        if one.busy != "queue":
            settings["busy"] = one.busy
        if one.concurrency != 1:
            settings["concurrency"] = one.concurrency
        if one.lane is not None:
            kind, _, name = one.lane.partition(" ")
            settings["lane"] = _KEYS[name] if kind == "key" else name
        if one.middleware:
            settings["middleware"] = [self._middleware(name, one.name) for name in one.middleware]
        return settings

    def _register(self, one: Registered, *, replace: bool = False) -> None:
        register(self.router, one.pattern, self._handler(one), replace=replace, **self._settings(one))

    def _observe(self, one: Registered) -> None:
        self.observers[one.name] = observe(self.router, one.pattern, self._handler(one), **self._settings(one))

    def _fallback(self, one: Registered) -> None:
        self.router.fallback(self._handler(one))

    def _middleware(self, name: str, owner: str) -> Any:
        if name == "recover":
            return recover()
        if name == "recover with":
            return recover(
                handler=lambda event, error: self.notes.add("calls", f"recover {owner}", f"{_data(event)} {error!r}")
            )
        if name == "once":
            return once
        if name == "log":
            return log()
        if name.startswith("timeout"):
            return timeout(float(name.split()[1]))
        stream = f"around {owner}"
        self.notes.unordered.add(stream)

        def around(handler: Any) -> Any:
            async def called(event: Event) -> Any:
                self.notes.add("calls", stream, f"{_data(event)} enters")
                try:
                    return await handler(event)
                finally:
                    self.notes.add("calls", stream, f"{_data(event)} leaves")

            called.__qualname__ = getattr(handler, "__qualname__", "?")
            return called

        return around

    # -- handlers --------------------------------------------------------------------------------------------------

    def _handler(self, one: Registered) -> Any:
        if not one.is_ordered:
            self.notes.unordered.add(one.stream)

        if not one.is_async:

            def plain(event: Event) -> Any:
                return self._perform_now(one, event)

            plain.__qualname__ = plain.__name__ = one.name
            return plain

        handlers: dict[tuple[str, ...], Any] = {
            (): lambda: _without(self, one),
            ("id",): lambda: _with_id(self, one),
            ("id", "kind"): lambda: _with_both(self, one),
        }
        made = handlers[one.params]()
        made.__qualname__ = made.__name__ = one.name
        return made

    def _script(self, one: Registered, event: Event) -> tuple[tuple[Any, ...], ...]:
        return one.scripts[_number(event) % len(one.scripts)]

    def _perform_now(self, one: Registered, event: Event) -> Any:
        self.notes.add("calls", one.stream, f"{one.name} gets {event.topic} {_data(event)}")
        for kind, *arguments in self._script(one, event):
            if kind == "raise":
                raise _ERRORS[arguments[0]](f"{one.name} on {_data(event)}")
            if kind == "return":
                return f"{one.name}: {_data(event)}"
        return None

    async def perform(self, one: Registered, event: Event, **params: str) -> Any:
        """Perform the handler's script for this event, and note how it ends."""

        def note(text: str) -> None:
            self.notes.add("calls", one.stream, f"{one.name} {text} {_data(event)}")

        cause = delivery().parent
        values = "".join(f" {name}={value}" for name, value in params.items())
        note(f"gets {event.topic}{values}{'' if cause is None else f' caused by {_data(cause.event)}'} of")
        try:
            for number, step in enumerate(self._script(one, event)):
                if step[0] == "return":
                    note("returns from")
                    return f"{one.name}: {_data(event)}"
                await self._step(one, event, number, step, note)
        except asyncio.CancelledError:
            note("is cancelled at")
            raise
        except Exception as error:
            note(f"raises {self.notes.error(error)} on")
            raise
        note("ends")
        return None

    async def _step(self, one: Registered, event: Event, number: int, step: Any, note: Any) -> None:
        kind, argument = step
        # No two waits of a program end at the same time, because the order of what follows would be undefined.
        pause = self._pause(f"{one.name} {number} {_data(event)}")
        if kind == "sleep":
            await asyncio.sleep(argument + pause)
        elif kind == "resist":
            try:
                await asyncio.sleep(argument + pause)
            except asyncio.CancelledError:
                note("swallows a cancellation for")
                await asyncio.sleep(pause)
        elif kind == "raise":
            raise _ERRORS[argument](f"{one.name} on {_data(event)}")
        elif _data(event).count(".") < 2:
            await asyncio.sleep(pause)
            await self.emit(f"{_data(event)}.{one.name}{number}", argument, kind)
            # Otherwise, the next step would happen together with whatever follows the delivery.
            await asyncio.sleep(pause)

    # -- events ----------------------------------------------------------------------------------------------------

    async def emit(self, label: str, topic: str, how: str) -> None:
        """Emit an event in the way that ``how`` names, and note everything that the caller sees."""
        note, event = self.notes.add, Event(topic, label)
        try:
            if how == "call":
                note("emits", label, f"{topic} is called")
                note("emits", label, f"returned {await call(self.router, event)!r}")
                return
            delivery = self.router.emit_nowait(event) if how == "emit_nowait" else await self.router.emit(event)
            self.deliveries[label] = delivery
            note("emits", label, f"{topic} is accepted by {how}")
            if how == "emit and wait":
                note("emits", label, f"delivered {await delivery!r}")
        except asyncio.CancelledError:
            note("emits", label, f"{how} is cancelled")
            raise
        except Exception as error:  # noqa: BLE001  # every error is noted
            note("emits", label, f"{topic} {how} raises {self.notes.error(error)}")

    def _pause(self, what: str) -> float:
        """Return a number of seconds that hardly anything else in the program waits."""
        return (crc32(f"{self.program.seed} {what}".encode()) % 900_000 + 1) / 1e6

    def _source(self, name: str, kind: str, events: Any) -> Any:
        if kind == "push":
            return _Pushing(name, events, self)
        if kind == "refusing":
            return _Refusing(name, events, self)

        async def iterate() -> AsyncIterator[Event]:
            for number, (pause, topic) in enumerate(events):
                await asyncio.sleep(pause)
                self.notes.add("emits", f"source {name}", f"yields {name}-{number}")
                yield Event(topic, f"{name}-{number}")
            if kind == "failing":
                raise OSError(f"{name} is broken")

        iterate.__qualname__ = name
        return iterate

    # -- actions ---------------------------------------------------------------------------------------------------

    async def _guard(self, action: Action) -> None:
        try:
            await getattr(self, f"_do_{action.kind}")(action, *action.arguments)
        except asyncio.CancelledError:
            self.notes.add("emits", action.label, f"{action.kind} is cancelled")
        except Exception as error:  # noqa: BLE001  # every error is noted
            self.notes.add("emits", action.label, f"{action.kind} raises {self.notes.error(error)}")

    async def _do_emit(self, action: Action, topic: str, how: str) -> None:
        await self.emit(action.label, topic, how)

    async def _do_command(self, action: Action, command: str, *words: str) -> None:
        delivery = await self.router.emit(CommandEvent(command, words))
        self.deliveries[action.label] = delivery
        self.notes.add("emits", action.label, f"delivered {await delivery!r}")

    async def _do_burst(self, action: Action, topic: str, how: str, number: int) -> None:
        for each in range(number):
            began = _now()
            await self.emit(f"{action.label}-{each}", topic, how)
            if _now() > began:
                await asyncio.sleep(self._pause(f"{action.label}-{each}"))

    async def _do_crowd(self, action: Action, topic: str, how: str, number: int) -> None:
        async with asyncio.TaskGroup() as group:
            for each in range(number):
                group.create_task(self.emit(f"{action.label}-{each}", topic, how))

    async def _do_await(self, _: Action, label: str) -> None:
        if label in self.deliveries:
            self.notes.add("emits", label, f"awaited later: {await self.deliveries[label]!r}")

    async def _do_cancel(self, _: Action, label: str) -> None:
        self.tasks[label].cancel()

    async def _do_subscribe(self, action: Action, pattern: str, maxsize: int, pause: float, number: int) -> None:
        async with self.router.subscribe(pattern, maxsize=maxsize) as events:
            for _ in range(number):
                await asyncio.sleep(pause)
                event = await anext(events)
                self.notes.add("calls", f"subscription {action.label}", f"{event.topic} {_data(event)}")
            self.notes.add("calls", f"subscription {action.label}", f"ends, {events.dropped} dropped")

    async def _do_register(self, _: Action, one: Registered) -> None:
        self._register(one)

    async def _do_replace(self, _: Action, one: Registered) -> None:
        self._register(one, replace=True)

    async def _do_remove(self, _: Action, pattern: str) -> None:
        self.router.remove(pattern)

    async def _do_observe(self, _: Action, one: Registered) -> None:
        self._observe(one)

    async def _do_unobserve(self, _: Action, name: str) -> None:
        self.observers[name]()

    async def _do_fallback(self, _: Action, one: Registered) -> None:
        self._fallback(one)

    async def _do_hold(self, _: Action, name: str) -> None:
        self.router.hold_source(name)

    async def _do_release(self, _: Action, name: str) -> None:
        self.router.release_source(name)

    async def _do_probe(self, _: Action) -> None:
        self._probe()

    async def _do_explain(self, _: Action, topic: str) -> None:
        self._explain(topic)

    async def _do_run(self, action: Action) -> None:
        if self.running is None or self.running.done():
            self.running = asyncio.current_task()
        self.notes.add("emits", action.label, "runs")
        await self.router.run()
        self.notes.add("emits", action.label, "has run")

    async def _do_up(self, action: Action) -> None:
        await self.router.wait_running()
        self.notes.add("emits", action.label, "is running")

    async def _do_stop(self, _: Action) -> None:
        self.router.stop()

    async def _do_kill(self, _: Action) -> None:
        if self.running is not None:
            self.running.cancel()

    # -- what is visible -------------------------------------------------------------------------------------------

    def _probe(self) -> None:
        state = dataclasses.asdict(self.router.state())
        self.notes.add("state", "router", " ".join(f"{name}={value}" for name, value in state.items()))
        for source in self.router.sources():
            self.notes.add("state", f"source {source.name}", clean(str(source)))
        for text in sorted(clean(str(each)) for each in self.router.lanes()):
            self.notes.add("lanes", "lanes", text)

    def _explain(self, topic: str) -> None:
        self._note_routes(topic, self.router.explain(topic))

    def _note_routes(self, topic: str, routes: Iterable[Any]) -> None:
        for each in routes:
            text = (
                f"{each.pattern} to {each.handler} lane={each.lane} busy={each.busy} debounce={each.debounce} "
                f"held={each.held} {each.routed}/{each.handled}/{each.failed}/{each.dropped}"
            )
            self.notes.add("routes", topic, clean(text))

    # -- hooks -----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        for hook in _HOOKS:
            self.hook_receivers.append(hook.connect(self._receiver(hook.name)))

    def _receiver(self, name: str) -> Callable[..., None]:
        def receive(sender: object, **fields: Any) -> None:
            if sender is not self.router:
                return
            about = fields.get("delivery")
            event = fields.get("event") if about is None else about.event
            text = [name]
            if event is not None:
                text.append(_data(event))
            if "pattern" in fields:
                text.append(clean(fields["pattern"]))
            error = fields.get("error", about.error if name == "delivery_ended" and about is not None else None)
            if error is not None:
                text.append(self.notes.error(error))
            if "duration" in fields:
                text.append(f"took {fields['duration']:.6f}")
            if name == "event_dropped":
                self.notes.streams["messages"]["dropped"].append((0.0, clean(fields["reason"])))
            if name == "delivery_accepted" and about is not None and about.parent is not None:
                text.append(f"caused by {_data(about.parent.event)}")
            self.notes.add("hooks", "other" if about is None else f"#{about.id}", " ".join(text))

        return receive


class _Pushing(SourceBase):  # type: ignore[misc]  # see `SourceBase`
    """A source that waits for every second delivery."""

    def __init__(self, name: str, events: Any, stage: _Stage) -> None:
        self.name = name
        self._events, self._stage = events, stage

    async def run(self, emit: Any) -> None:
        for number, (pause, topic) in enumerate(self._events):
            await asyncio.sleep(pause)
            label = f"{self.name}-{number}"
            delivery = await emit(Event(topic, label))
            self._stage.notes.add("emits", f"source {self.name}", f"has emitted {label}")
            if number % 2:
                try:
                    self._stage.notes.add("emits", f"source {self.name}", f"delivered {await delivery!r}")
                except Exception as error:  # noqa: BLE001  # every error is noted
                    self._stage.notes.add("emits", f"source {self.name}", self._stage.notes.error(error))


class _Refusing(_Pushing):
    """A source that cannot start."""

    async def __aenter__(self) -> Self:
        self._stage.notes.add("emits", f"source {self.name}", "refuses to start")
        raise OSError(f"{self.name} cannot start")

    async def __aexit__(self, *_: object) -> None: ...


def _without(stage: _Stage, one: Registered) -> Any:
    async def handler(event: Event) -> Any:
        return await stage.perform(one, event)

    return handler


def _with_id(stage: _Stage, one: Registered) -> Any:
    async def handler(event: Event, id: str) -> Any:  # noqa: A002  # a name in patterns
        return await stage.perform(one, event, id=id)

    return handler


def _with_both(stage: _Stage, one: Registered) -> Any:
    async def handler(event: Event, kind: str, *, id: str = "none") -> Any:  # noqa: A002  # see above
        return await stage.perform(one, event, id=id, kind=kind)

    return handler
