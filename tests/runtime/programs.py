"""Random programs in virtual time, and the outcome of each: what ran and stopped, when, and what was logged.

`python -m tests.runtime.programs` records the outcomes of the first programs in `RECORDED`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import logging
import random
import re
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifecycle import Router, Spec, Supervisor, TaskWorker, hooks, run
from lifecycle.events import Event
from lifecycle.handlers import SuspendHandler
from lifecycle.interactive import new_interactive_router
from lifecycle.runtime import current, go, lifetime, on_shutdown, shutdown
from lifecycle.testing.signals import FakeSignals
from lifecycle.testing.virtual import VirtualLoop
from lifecycle.workers import Backoff, Intensity

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDED = Path(__file__).parents[1] / "data" / "runtime_programs.json"
PROGRAMS = 200

_SIGNALS = (signal.SIGINT, signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATTERNS = ("signal/interrupt", "signal/*", "lifecycle/interrupt", "lifecycle/*", "signal/hangup", "**")


def outcome(seed: int) -> list[str]:
    """Run program number ``seed``, and return what happened, one line each."""
    return _Program(seed).play()


class _Program:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log: list[str] = []
        self.signals = FakeSignals(terminal=self.random.random() < 0.3)
        self.loop: VirtualLoop | None = None
        self.count = 0

    # -- playing -----------------------------------------------------------------------------------------------------

    def play(self) -> list[str]:
        receivers: dict[hooks.Hook, Any] = {
            hooks.signal_received: lambda _, *, signum, count: self.note(f"signal {signum} is number {count}"),
            hooks.hook_finished: lambda _, *, hook, error, **__: self.note(f"hook {hook} finished: {error!r}"),
            hooks.task_crashed: lambda _, *, name, error: self.note(f"task {name} crashed: {error!r}"),
            hooks.worker_failed: lambda _, *, worker, **__: self.note(f"worker {worker.name} failed"),
            hooks.worker_killed: lambda _, *, worker, **__: self.note(f"worker {worker.name} was killed"),
            hooks.forced_exit: lambda _, *, reason, **__: self.note(f"forced: {reason}"),
        }
        printed = io.StringIO()
        with contextlib.ExitStack() as held:
            held.enter_context(self.signals)
            held.enter_context(contextlib.redirect_stdout(printed))
            held.enter_context(contextlib.redirect_stderr(io.StringIO()))
            held.enter_context(_logging(self.note))
            for hook, receiver in receivers.items():
                hook.connect(receiver)
                held.callback(hook.disconnect, receiver)
            try:
                self.note(f"returned {self.run()!r}")
            except BaseException as error:  # noqa: BLE001  # any outcome is recorded
                self.note(f"raised {error!r}")
        lines = [f"printed {line}" for line in printed.getvalue().splitlines()]
        # Background tasks that are cancelled at the same time end in any order.
        for _, same in itertools.groupby(self.log, lambda line: line.partition(" task")[0]):
            lines += sorted(same)
        return lines

    def run(self) -> Any:
        if self.chance(0.25):
            with asyncio.Runner(loop_factory=self.new_loop) as runner:
                return runner.run(self.block())
        settings: dict[str, Any] = {
            "force_exit": self.random.choice((0, 1, 1, 1, 2, 3)),
            "cancel_on_interrupt": self.random.choice((None, None, True, False)),
            "hook_timeout": self.random.choice((0.5, 5.0)),
            "exit_timeout": self.random.choice((3.0, 25.0)),
            "reset_after": self.random.choice((0.5, 5.0)),
        }
        return run(self.conductor(), *self.mains(), loop_factory=self.new_loop, **settings)

    def new_loop(self) -> VirtualLoop:
        self.loop = VirtualLoop()
        return self.loop

    def note(self, line: str) -> None:
        """Record a line, unless the process would have been forced to exit."""
        if self.signals.exits and not line.startswith("forced"):
            return
        time = 0.0 if self.loop is None else self.loop.time()
        line = re.sub(r"^hook _\S+", "hook of the prompt", line)
        self.log.append(f"{time:.3f} {line}")

    # -- chance ------------------------------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def seconds(self, most: float) -> float:
        return round(self.random.uniform(0.001, most), 3)

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    # -- mains -------------------------------------------------------------------------------------------------------

    def conductor(self) -> Any:
        """Return a main that sends the signals, and shuts down in the end."""
        series: list[tuple[float, int]] = []
        at = self.seconds(3)
        for _ in range(self.random.choice((0, 1, 2, 3, 5))):
            series.append((at, self.random.choice(_SIGNALS)))
            at += self.random.choice((0.02, 0.3, 1.1, self.seconds(6)))
        return _Conductor(self, series, at + 7)

    def mains(self) -> list[Any]:
        kinds = (self.function, self.function, self.router, self.worker, self.supervisor, self.runs, self.interactive)
        return [self.random.choice(kinds)() for _ in range(self.random.randint(1, 3))]

    def function(self) -> Any:
        return _named(partial(self.act, self.actions(), self.end()), self.name("main"))

    def runs(self) -> Any:
        return _Runs(self, self.name("runs"), self.end(), announced=self.chance(0.5), drains=self.chance(0.5))

    def worker(self) -> TaskWorker:
        name = self.name("worker")
        return TaskWorker(name, _named(partial(self.act, [], self.end(), name), name), stop_timeout=self.seconds(3))

    def supervisor(self) -> Supervisor:
        specs = [
            Spec(
                name := self.name("child"),
                _named(partial(self.act, [], self.end(), name), name),
                restart=self.random.choice(("always", "on_failure", "never")),
                backoff=Backoff(initial=self.seconds(1), jitter=0),
            )
            for _ in range(self.random.randint(1, 2))
        ]
        return Supervisor(self.name("app"), *specs, intensity=Intensity(2, within=5))

    def router(self) -> Router:
        router = Router(self.name("router"), drain_timeout=self.seconds(3))
        for pattern in self.random.sample(_PATTERNS, self.random.randint(0, 2)):
            router.on(pattern)(self.handler())
        router.on("a")(self.handler())
        return router

    def handler(self) -> Callable[[Event], Any]:
        takes, starts = self.seconds(2), self.chance(0.2)
        worker = self.worker()

        async def handle(event: Event) -> None:
            self.note(f"{event.topic} begins")
            if starts and worker.status == "created":
                await worker.start()
            await asyncio.sleep(takes)
            self.note(f"{event.topic} ends")

        return handle

    def interactive(self) -> Router:
        suspend: Any = None
        if self.chance(0.6):
            suspend = SuspendHandler()
            suspend.on_suspend(_named(partial(self.steps, self.seconds(1)), "suspending"))
            suspend.on_resume(_named(partial(self.steps, self.seconds(1)), "resuming"))
        handler = _named(partial(self.handle_interrupt, self.chance(0.3)), "interrupt") if self.chance(0.3) else None
        router = new_interactive_router(suspend=suspend, input=False, interrupt=handler)

        async def work(_: Event) -> None:
            try:
                await asyncio.sleep(2)
            finally:
                self.note("work ends")

        router.command("work", work)
        return router

    async def handle_interrupt(self, passes: bool, _: Event) -> None:
        from lifecycle.errors import NotHandled

        self.note("handles the interrupt")
        if passes:
            raise NotHandled

    async def steps(self, seconds: float) -> None:
        self.note("a step begins")
        await asyncio.sleep(seconds)
        self.note("a step ends")

    # -- what functions do -------------------------------------------------------------------------------------------

    def end(self) -> Callable[[str], Any]:
        """Return how a function ends: it returns, raises, or waits for its cancellation, and may then clean up."""
        after = self.seconds(8)
        how = self.random.choice(("returns", "raises", "times out", *["waits"] * 7, "stubborn"))
        cleans = self.seconds(2) if self.chance(0.4) else 0.0

        async def end(name: str) -> str | None:
            try:
                await asyncio.sleep(1000 if how in ("waits", "stubborn") else after)
            except asyncio.CancelledError:
                self.note(f"{name} is cancelled")
                if how == "stubborn":
                    await _sleep_through(cleans + 4)
                    self.note(f"{name} gives in")
                raise
            finally:
                if cleans:
                    await asyncio.sleep(cleans)
                self.note(f"{name} ends")
            if how == "raises":
                raise ValueError(name)
            if how == "times out":
                raise TimeoutError(name)
            return name

        return end

    def actions(self, depth: int = 0) -> list[tuple[float, Callable[[], Any]]]:
        kinds = [self.goes, self.hooks_up, self.starts, self.runs_router, self.shuts_down]
        if depth == 0:
            kinds.append(self.enters)
        return [(self.seconds(1.5), self.random.choice(kinds)()) for _ in range(self.random.randint(0, 5))]

    async def act(self, actions: list[tuple[float, Callable[[], Any]]], end: Any, name: str = "main") -> Any:
        self.note(f"{name} begins")
        for after, action in actions:
            await asyncio.sleep(after)
            await action()
        return await end(name)

    def goes(self) -> Callable[[], Any]:
        name, actions, end = self.name("task"), self.actions(1) if self.chance(0.3) else [], self.end()

        async def action() -> None:
            go(self.act, actions, end, name, name=name)

        return action

    def hooks_up(self) -> Callable[[], Any]:
        name, takes = self.name("hook"), self.random.choice((0.0, 0.3, 6.0))
        fails, flushes, adds = self.chance(0.2), self.chance(0.3), self.chance(0.2)

        async def hook() -> None:
            self.note(f"{name} begins")
            if adds:
                go(_named(partial(self.steps, 0.2), "late"))
                on_shutdown(_named(partial(self.steps, 0.1), f"{name} adds"))
            await asyncio.sleep(takes)
            self.note(f"{name} ends")
            if fails:
                raise ValueError(name)

        async def action() -> None:
            (current().on_flush if flushes else on_shutdown)(_named(hook, name))

        return action

    def starts(self) -> Callable[[], Any]:
        worker: Any = self.supervisor() if self.chance(0.3) else self.worker()

        async def action() -> None:
            await worker.start()
            self.note(f"workers: {', '.join(current().state().workers)}")

        return action

    def runs_router(self) -> Callable[[], Any]:
        router, by_go = self.router(), self.chance(0.6)

        async def action() -> None:
            if by_go:
                go(router.run)
                await asyncio.sleep(0.01)
            for _ in range(2):
                with contextlib.suppress(Exception):
                    await router.emit(Event("a"))
            if not by_go:
                asyncio.get_running_loop().call_later(2, router.stop)
                await router.run()

        return action

    def shuts_down(self) -> Callable[[], Any]:
        shuts = self.chance(0.3)

        async def action() -> None:
            if shuts:
                shutdown()
                self.note(f"reason {current().reason}, ready {current().ready}")

        return action

    def enters(self) -> Callable[[], Any]:
        mains = self.mains() if self.chance(0.4) else []
        actions, name, stays = self.actions(1), self.name("block"), self.seconds(4)

        async def action() -> None:
            async with lifetime(*mains) as life:
                self.note(f"{name} is entered")
                for after, each in actions:
                    await asyncio.sleep(after)
                    await each()
                await asyncio.sleep(stays)
                self.note(f"{name} is left: {life.reason}")

        return action

    async def block(self) -> None:
        mains, actions, stays = self.mains(), self.actions(1), self.seconds(6)
        signals, stops = self.chance(0.5), self.chance(0.5)

        def on_stop() -> None:
            self.note("on_stop")

        try:
            async with lifetime(self.conductor(), *mains, signals=signals, on_stop=on_stop if stops else None) as life:
                self.note(f"the block is entered: {life.ready}")
                for after, each in actions:
                    await asyncio.sleep(after)
                    await each()
                await asyncio.sleep(stays)
        finally:
            self.note(f"the block is left: {life.reason}, {life.signum}")


class _Conductor:
    """Sends signals at given times. A program does not continue for its sake."""

    name = "conductor"
    auxiliary = True

    def __init__(self, program: _Program, series: list[tuple[float, int]], end: float) -> None:
        self._program, self._series, self._end = program, series, end

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        life = current()
        for at, signum in self._series:
            loop.call_at(at, self._send, life, signum)
        loop.call_at(self._end, life.shutdown)
        await asyncio.Event().wait()

    def _send(self, life: Any, signum: int) -> None:
        with contextlib.suppress(LookupError):
            self._program.signals.send(signum)
        state = life.state()
        self._program.note(f"sent {signum}: {state.reason or 'running'}, {state.signals} of {state.force_exit_at}")


class _Runs:
    def __init__(self, program: _Program, name: str, end: Any, *, announced: bool, drains: bool) -> None:
        self._program, self.name, self._end = program, name, end
        self._stopped = asyncio.Event()
        if announced:
            self.wait_running = partial(asyncio.sleep, 0.5)
        if drains:
            self.stop = self._stopped.set

    def __repr__(self) -> str:
        return self.name

    async def run(self) -> None:
        self._program.note(f"{self.name} begins")
        ending = asyncio.ensure_future(self._end(self.name))
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait([ending, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (ending, stopped):
                each.cancel()
            await asyncio.wait([ending, stopped])
        if not ending.cancelled():
            ending.result()


def _named(fn: Any, name: str) -> Any:
    """Return an async function with this name, which messages contain."""

    async def named(*args: Any) -> Any:
        return await fn(*args)

    named.__qualname__ = named.__name__ = name
    return named


async def _sleep_through(seconds: float) -> None:
    """Ignore cancellations for this time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(until - loop.time())


@contextlib.contextmanager
def _logging(note: Callable[[str], None]) -> Any:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(f"{record.levelname} {record.getMessage()}".splitlines()[0])

    logger, handler = logging.getLogger("lifecycle.runtime"), Handler(logging.WARNING)
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.propagate = propagates
        logger.removeHandler(handler)


if __name__ == "__main__":
    found = {str(seed): outcome(seed) for seed in range(int(sys.argv[1]) if sys.argv[1:] else PROGRAMS)}
    target = Path(sys.argv[2]) if sys.argv[2:] else RECORDED
    target.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n")
