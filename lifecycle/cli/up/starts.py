"""Starts, restarts and stops of `lifecycle up`, ordered by the dependencies between processes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final, cast

from lifecycle._async import start_task
from lifecycle.cli.output import shell_status
from lifecycle.cli.up.screen import was_started
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

#: The shortest and the longest time, in seconds, between two probes until the first one succeeds.
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.2


class Starts:
    """Starts and restarts each process when its dependencies meet its conditions.

    Independent processes start at the same time. If a process's first start fails, or its exit means that other
    processes can never start, everything is stopped. ``on_settled`` is called after each attempt to start a process.
    """

    def __init__(
        self, processes: Sequence[Process], supervisor: Supervisor, console: Console, on_settled: Callable[[], None]
    ) -> None:
        self._processes = {each.name: each for each in processes}
        self._supervisor = supervisor
        self._console = console
        self._on_settled = on_settled
        # Names of processes that were added later.
        self._added: set[str] = set()
        self._ancestors = {each.name: self._ancestors_of(each) for each in processes}
        # Names of processes at each stage: due to start, starting, started at least once, up (ready, or a job that has
        # succeeded), and healthy.
        self._due: set[str] = set(self._processes)
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._started: set[str] = set()
        self._up: set[str] = set()
        self._healthy: set[str] = set()
        self._open = False

    @property
    def active(self) -> bool:
        """True if any process is starting or due to start."""
        return bool(self._due or self._starting)

    def begin(self) -> None:
        """Start all processes. The supervisor must be running."""
        self._open = True
        self.advance()

    def restart(self, names: Iterable[str]) -> None:
        """Restart all copies of these processes, cancelling any start in progress."""
        for name in [copy for each in names for copy in self._copies(each)]:
            self._due.add(name)
            self._up.discard(name)
            if (start := self._starting.pop(name, None)) is not None:
                start.cancel()
        self.advance()

    def is_alive(self, name: str) -> bool:
        """Return whether a copy of the process is running or starting."""
        copies = [each for each in self._copies(name) if each in self._supervisor]
        return any(self._state(each).status in (Status.STARTING, *AT_WORK) for each in copies)

    def _copies(self, name: str) -> list[str]:
        return [each for each in self._processes if each.partition(".")[0] == name]

    def use(self, processes: Sequence[Process]) -> None:
        """Replace the processes. The caller must start the new ones, and stop those that were removed."""
        now = {each.name: each for each in processes}
        added = now.keys() - self._processes.keys()
        self._added |= added
        self._started |= added
        for name in self._processes.keys() - now.keys():
            for names in (self._added, self._due, self._started, self._up, self._healthy):
                names.discard(name)
            if (start := self._starting.pop(name, None)) is not None:
                start.cancel()
        self._processes = now
        self._ancestors = {each.name: self._ancestors_of(each) for each in processes}

    def awaited(self, process: Process) -> list[str]:
        """Return the processes that a new copy of ``process`` has to wait for."""
        return [name for name, need in self._needs(process).items() if not self._fulfils(name, need)]

    def was_added(self, name: str) -> bool:
        """Return whether the process was added after the start. If it fails to start, the others keep running."""
        return name in self._added

    def stops_all(self, process: Process, state: WorkerState) -> bool:
        """Return whether everything stops because ``process`` has exited with ``state``."""
        failed = state.status is Status.FAILED
        comes_back = state.circuit != "open" and process.comes_back(failed=failed)
        if not comes_back and process.stops_others(failed=failed):
            return True
        return not process.watch and not comes_back and bool(self.blocked(state))

    def blocked(self, state: WorkerState) -> list[str]:
        """Return the processes that can never start if a process remains in the final ``state``."""
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
        """React to a change in a process's state by starting other processes or stopping all of them."""
        process, state = self._processes.get(event.component), cast("WorkerState", event.state)
        # `_start` handles failed starts. An exit after a requested stop is not a failure.
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
        """Start the processes whose conditions are met."""
        for name, process in self._processes.items():
            if self._open and name in self._due and self._may_start(process):
                self._due.discard(name)
                self._starting[name] = start_task(self._start(process), name=f"start of {name}")

    def _may_start(self, process: Process) -> bool:
        if process.name in self._started:
            return not any(name in self._due or name in self._starting for name in self._ancestors[process.name])
        return all(self._fulfils(name, need) for name, need in self._needs(process).items())

    def _fulfils(self, name: str, need: Need) -> bool:
        """Return whether the process ``name`` currently meets a condition."""
        if name not in self._supervisor:  # about to be added
            return False
        match need:
            case "up":
                return name in self._up
            case "healthy":
                return name in self._healthy
            case "started":
                return name not in self._due and was_started(self._state(name))
            case "completed":
                return self._is_idle(name) and self._state(name).status is Status.FINISHED
            case "ended":
                return self._is_idle(name) and self._state(name).status in (Status.FINISHED, Status.FAILED)

    def _is_idle(self, name: str) -> bool:
        return name not in self._due and name not in self._starting

    def _is_excluded(self, need: Need, state: WorkerState) -> bool:
        """Return whether a process in the final ``state`` can never meet a condition."""
        match need:
            case "started":
                return not was_started(state)
            case "completed":
                return state.status is not Status.FINISHED
            case "ended":
                return False
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
            # An exit after a requested stop is not a failure.
            if event.component == name and event.old != Status.STOPPING and event.new in (*wanted, Status.FAILED):
                return event.new != Status.FAILED
        return False

    def _is_awaited(self, name: str, need: Need) -> bool:
        return any(self._needs(each).get(name) == need for each in self._processes.values())

    async def _wait_healthy(self, process: Process) -> None:
        """Wait until the probe of ``process`` succeeds. Without a probe, a ready process is considered healthy."""
        pause = _FIRST_PAUSE
        while process.probe is not None and not (await self._supervisor.probe(process.name)).healthy:
            await asyncio.sleep(min(pause, process.probe_interval))
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._healthy.add(process.name)

    async def _restart(self, name: str) -> None:
        """Restart ``name``. If a manual restart supersedes this restart, wait for the manual restart."""
        try:
            await self._supervisor.restart(name)
        except WorkerFailed:
            if not await self._reaches(name, Status.RUNNING, Status.FINISHED):
                raise

    async def _restart_or_retry(self, process: Process) -> None:
        """Restart ``process``. If its ``first_start`` is "retry", retry a failed first start with backoff."""
        delays = map(process.delays.delay, count())
        while process.first_start == "retry" and process.name not in self._started:
            with suppress(WorkerFailed):
                await self._restart(process.name)
                return
            if self._supervisor.status not in AT_WORK:
                break
            delay = next(delays)
            self._console.info(f"{process.name} will be restarted in {delay:.1f} s")
            await asyncio.sleep(delay)
        await self._restart(process.name)

    def _drop_restarts(self, failed: str) -> None:
        """Cancel pending restarts of processes that depend on ``failed``."""
        for name in sorted(self._due & self._started):
            if failed in self._ancestors[name]:
                self._due.discard(name)
                self._console.info(f"{name} is not restarted because {failed} failed")

    def _state(self, name: str) -> WorkerState:
        return next(each for each in self._supervisor.workers() if each.name == name)

    def _needs(self, process: Process) -> dict[str, Need]:
        """Return the direct dependencies among the selected processes, each with the condition it must meet.

        Nothing waits for a process that was added later.
        """
        known = self._processes.keys() - self._added
        return {name: need for name, need in process.needs.items() if name in known}

    def dependents(self, name: str) -> list[str]:
        """Return the processes that depend directly on ``name``."""
        return [each.name for each in self._processes.values() if name in each.needs]

    def _ancestors_of(self, process: Process) -> set[str]:
        """Return all direct and indirect dependencies."""
        found: set[str] = set()
        left = [*self._needs(process)]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self._needs(self._processes[name])
        return found


class OrderedWorker(ProcessWorker):
    """A process in ``starts``. When ``supervisor`` stops, this process waits for its dependents to exit first.

    Exit codes in ``success`` are reported as 0.
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
        # Dependents that only need this process to have started can start now.
        self._starts.advance()
        await super()._until_ready()

    async def stop(self, timeout: Duration | None = None) -> None:
        """Stop the process and wait until it has exited."""
        if timeout is None and self._supervisor.status is Status.STOPPING:
            for name in self._starts.dependents(self.name):
                with suppress(KeyError):  # not started
                    await self._supervisor[name].wait()
        await super().stop(timeout)
