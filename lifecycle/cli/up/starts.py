"""The order of `lifecycle up`: starts, restarts and stops by the dependencies of the processes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from lifecycle.backoff import Backoff
from lifecycle.cli.output import shell_status
from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers import ProcessWorker
from lifecycle.workers.model import AT_WORK, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from lifecycle._durations import Duration
    from lifecycle.cli.output import Console
    from lifecycle.cli.up.processes import Need, Process
    from lifecycle.events import StatusEvent
    from lifecycle.workers import Supervisor, WorkerState
    from lifecycle.workers.model import End

__all__ = ["OrderedWorker", "Starts"]


class Starts:
    """Starts and restarts processes, each when its dependencies fulfil its conditions.

    Processes that do not depend on each other start at the same time. If the first start of a process fails, or others
    can never start because of its end, everything is stopped. ``on_settled`` is called at the end of each start.
    """

    def __init__(
        self, processes: Sequence[Process], supervisor: Supervisor, console: Console, on_settled: Callable[[], None]
    ) -> None:
        self._processes = {each.name: each for each in processes}
        self._supervisor = supervisor
        self._console = console
        self._on_settled = on_settled
        self._ancestors = {each.name: self._ancestors_of(each) for each in processes}
        # Names of processes: to be started, being started, started at least once, up (ready, or a job that has
        # succeeded), and healthy.
        self._due: set[str] = set(self._processes)
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._started: set[str] = set()
        self._up: set[str] = set()
        self._healthy: set[str] = set()
        self._open = False

    @property
    def active(self) -> bool:
        """True if a process is being started, or will be."""
        return bool(self._due or self._starting)

    def begin(self) -> None:
        """Start all processes. The supervisor must be running."""
        self._open = True
        self.advance()

    def restart(self, names: Iterable[str]) -> None:
        """Restart these processes. A start in progress is cancelled."""
        for name in names:
            self._due.add(name)
            self._up.discard(name)
            if (start := self._starting.pop(name, None)) is not None:
                start.cancel()
        self.advance()

    def is_alive(self, name: str) -> bool:
        """Return whether the process runs or is being started."""
        return self._state(name).status in (Status.STARTING, *AT_WORK)

    def stops_all(self, process: Process, state: WorkerState) -> bool:
        """Return whether everything stops because ``process`` has ended with ``state``."""
        if process.essential:
            return True
        comes_back = state.circuit != "open" and process.comes_back(failed=state.status is Status.FAILED)
        return not process.watch and not comes_back and bool(self.blocked(state))

    def blocked(self, state: WorkerState) -> list[str]:
        """Return the processes that cannot start if a process stays in the final ``state``."""
        found: list[str] = []
        for each in self._processes.values():
            waits = each.name in self._due - self._started
            if waits and any(
                name in found or (name == state.name and self._is_excluded(need, state))
                for name, need in self._needs(each).items()
            ):
                found.append(each.name)
        return found

    def note(self, event: StatusEvent) -> None:
        """React to a change in a process's state: start others, or stop them all."""
        process, state = self._processes.get(event.component), cast("WorkerState", event.state)
        # `_start` reacts to failed starts, and an end after a requested stop is not a failure.
        ended = state.status in (Status.FINISHED, Status.FAILED) and event.old not in (Status.STARTING, Status.STOPPING)
        if process is not None and ended and self.stops_all(process, state):
            self._supervisor.ask_to_stop()
        self.advance()

    async def close(self) -> None:
        """Cancel all starts."""
        self._open = False
        starts = [*self._starting.values()]
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)

    def advance(self) -> None:
        """Start the processes whose conditions are fulfilled."""
        for name, process in self._processes.items():
            if self._open and name in self._due and self._may_start(process):
                self._due.discard(name)
                self._starting[name] = asyncio.create_task(self._start(process), name=f"start of {name}")

    def _may_start(self, process: Process) -> bool:
        if process.name in self._started:
            return not any(name in self._due or name in self._starting for name in self._ancestors[process.name])
        return all(self._fulfils(name, need) for name, need in self._needs(process).items())

    def _fulfils(self, name: str, need: Need) -> bool:
        """Return whether the process ``name`` fulfils a condition now."""
        match need:
            case "up":
                return name in self._up
            case "healthy":
                return name in self._healthy
            case "started":
                return name not in self._due and self._state(name).pid is not None
            case "completed":
                idle = name not in self._due and name not in self._starting
                return idle and self._state(name).status is Status.FINISHED

    def _is_excluded(self, need: Need, state: WorkerState) -> bool:
        """Return whether a process in the final ``state`` never fulfils a condition."""
        match need:
            case "started":
                return state.pid is None
            case "completed":
                return state.status is not Status.FINISHED
            case "healthy":
                return state.name not in self._healthy
            case "up":
                succeeds = self._processes[state.name].is_job
                return state.status is not Status.FINISHED if succeeds else state.started_at is None

    async def _start(self, process: Process) -> None:
        name = process.name
        self._healthy.discard(name)
        try:
            await self._restart_or_retry(process)
            if not process.is_job or await self._reaches(name, Status.FINISHED):
                self._up.add(name)
        except WorkerFailed:
            if name not in self._started:
                self._supervisor.ask_to_stop()
            elif self._supervisor.status in AT_WORK:
                self._console.info(f"{name}: waiting for the next change")
        except InvalidTransition:
            if name in self._started:
                self._console.info(f"{name} is not restarted because all processes are being stopped")
        self._started.add(name)
        if name in self._up and self._is_awaited(name, "healthy"):
            self.advance()
            await self._wait_healthy(process)
        del self._starting[name]
        if name not in self._up:
            self._drop_restarts(name)
        self.advance()
        self._on_settled()

    async def _reaches(self, name: str, *wanted: Status) -> bool:
        """Wait for one of the states ``wanted``, even across manual restarts. Returns False if the process fails."""
        changes = self._supervisor.watch()
        if (status := self._state(name).status) in (*wanted, Status.FAILED):
            return status is not Status.FAILED
        async for event in changes:
            # An end after a requested stop is not a failure.
            if event.component == name and event.old != Status.STOPPING and event.new in (*wanted, Status.FAILED):
                return event.new != Status.FAILED
        return False

    def _is_awaited(self, name: str, need: Need) -> bool:
        return any(self._needs(each).get(name) == need for each in self._processes.values())

    async def _wait_healthy(self, process: Process) -> None:
        """Wait until the probe of ``process`` succeeds. Without a probe, a process that is ready is healthy."""
        while process.probe is not None and not (await self._supervisor.probe(process.name)).healthy:  # noqa: ASYNC110  # a probe has to be repeated
            await asyncio.sleep(process.probe_interval)
        self._healthy.add(process.name)

    async def _restart(self, name: str) -> None:
        """Restart ``name``. If a manual restart replaces this one, wait for the manual one."""
        try:
            await self._supervisor.restart(name)
        except WorkerFailed:
            if not await self._reaches(name, Status.RUNNING, Status.FINISHED):
                raise

    async def _restart_or_retry(self, process: Process) -> None:
        """Restart ``process``. With ``first_start`` "retry", repeat a first start that fails, after its backoff."""
        delays = map(Backoff(initial=process.backoff).delay, count())
        while process.first_start == "retry" and process.name not in self._started:
            with suppress(WorkerFailed):
                await self._restart(process.name)
                return
            if self._supervisor.status not in AT_WORK:
                break
            delay = next(delays)
            self._console.info(f"{process.name} is started again in {delay:.1f} s")
            await asyncio.sleep(delay)
        await self._restart(process.name)

    def _drop_restarts(self, failed: str) -> None:
        """Cancel the pending restarts of processes that depend on ``failed``."""
        for name in sorted(self._due & self._started):
            if failed in self._ancestors[name]:
                self._due.discard(name)
                self._console.info(f"{name} is not restarted because {failed} failed")

    def _state(self, name: str) -> WorkerState:
        return next(each for each in self._supervisor.workers() if each.name == name)

    def _needs(self, process: Process) -> dict[str, Need]:
        """Return the direct dependencies among the selected processes, and the condition that each has to fulfil."""
        return {name: need for name, need in process.needs.items() if name in self._processes}

    def dependents(self, name: str) -> list[str]:
        """Return the processes that depend directly on ``name``."""
        return [each.name for each in self._processes.values() if name in each.needs]

    def _ancestors_of(self, process: Process) -> set[str]:
        """Return the direct and indirect dependencies."""
        found: set[str] = set()
        left = [*self._needs(process)]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self._needs(self._processes[name])
        return found


class OrderedWorker(ProcessWorker):
    """A process of ``starts`` that stops after its dependents, when ``supervisor`` stops all processes at once.

    The exit codes ``success`` are reported as 0.
    """

    def __init__(
        self, name: str, *argv: str, supervisor: Supervisor, starts: Starts, success: Collection[int], **settings: Any
    ) -> None:
        super().__init__(name, *argv, **settings)
        self._success = success
        self._supervisor = supervisor
        self._starts = starts

    async def _watch(self, pid: int) -> End:
        end = await super()._watch(pid)
        succeeded = end.exit_code is not None and shell_status(end.exit_code) in self._success
        return replace(end, error=None, exit_code=0) if succeeded else end

    async def _until_ready(self) -> None:
        # Processes that only need it started need not wait longer.
        self._starts.advance()
        await super()._until_ready()

    async def stop(self, timeout: Duration | None = None) -> None:
        """Stop the process, and return when it has ended."""
        if timeout is None and self._supervisor.status is Status.STOPPING:
            for name in self._starts.dependents(self.name):
                with suppress(KeyError):  # not started
                    await self._supervisor[name].wait()
        await super().stop(timeout)
