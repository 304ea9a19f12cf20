"""A program run as a worker: the leader of a process group that lives and ends as one.

`stdio` sets up and reads its streams, `_posix` notices its end, and `containment` ends what has left the group.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from lifecycle._util import current_span
from lifecycle.errors import WorkerFailed
from lifecycle.workers import _posix
from lifecycle.workers.base import BaseWorker, check_env, check_number
from lifecycle.workers.containment.containment import Containment, Level
from lifecycle.workers.model import End, Status
from lifecycle.workers.readiness import Line, not_ready, parse_ready
from lifecycle.workers.stdio import Command, LineSource, Pipes, check_argv, fault_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from lifecycle.workers.model import WorkerState
    from lifecycle.workers.stdio import Output, Stdio

__all__ = ["ProcessWorker"]


class ProcessWorker(BaseWorker):
    """A program, with all its descendants.

    It runs in a session of its own, without input, and inherits no descriptor but those of ``inherit``. However it
    ends, nothing of it is left: a stop sends ``stop_signal`` to the whole process group, waits up to ``stop_timeout``
    seconds for all of it, and then kills what is left; when the leader ends by itself, the rest is killed at once. A
    process that has left the group (a daemon) is killed with the rest, and all of it when this program ends for any
    reason, as far as ``contain`` reaches.

    Args:
        name: its name in messages and states.
        argv: the command and its arguments; no shell reads them.
        env: variables over our environment, and over ``TRACEPARENT``, the span in which it is started.
        cwd: the directory that it runs in; by default ours.
        stop_signal: the signal that asks it to stop.
        stop_timeout: seconds that it then has, before it is killed.
        output: called with each line, without its end, and "stdout" or "stderr". By default lines go to the log
            ``lifecycle.workers.<name>`` at level INFO. It is called in the loop; if it raises, that is logged.
        ready: when it counts as started: ``"port:N"``, it accepts connections on that port of this machine;
            ``"http://…"`` or ``"https://…"``, that is answered with a status below 400; ``"line:REGEX"``, it writes a
            line with a match, to either stream; ``"notify"``, it sends READY=1 to systemd's NOTIFY_SOCKET. By default
            at once.
        start_timeout: seconds that it has for that.
        stdio: another way to set up its streams, in place of ``output``; see `lifecycle.workers.stdio`.
        contain: how its processes are held together: ``"group"``, its process group alone; ``"guard"``, also a guard,
            one small process for all workers, that finds the others by descent and by a cookie in the environment,
            and ends all when this program is gone; ``"cgroup"``, which holds all that does not move itself out of it,
            and ``"pidns"`` (a pid namespace), which no process leaves. If a level cannot be had, the start fails.
            ``"auto"`` is a cgroup if one can be made, else a guard, else, outside Linux, the group. `state` shows the
            level.
        detached: whether it, and any process that it leaves behind, may outlive us, unless it is stopped.
        inherit: open descriptors, from 3 on, that it has under the same numbers, such as a listening socket; they
            have to stay open here until it has been started.

    Raises:
        ValueError: for settings that cannot work; the message names them.
        TypeError: for an argument that is not a string or a path, or an ``output`` that is not a plain function.
    """

    kind: ClassVar[str] = "process"

    def __init__(  # noqa: PLR0913  # the names are promised; each has a default
        self,
        name: str,
        *argv: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stop_signal: int = signal.SIGTERM,
        stop_timeout: float = 10.0,
        output: Output | None = None,
        ready: str | None = None,
        start_timeout: float = 30.0,
        stdio: Stdio | None = None,
        contain: str = "auto",
        detached: bool = False,
        inherit: Sequence[int] = (),
    ) -> None:
        super().__init__(name, stop_timeout=stop_timeout)
        if stop_signal not in signal.valid_signals():
            raise ValueError(
                f"stop_signal={stop_signal!r} is not a signal of this system; give one of `signal.Signals`"
            )
        check_number("start_timeout", start_timeout)
        if not start_timeout > 0:
            raise ValueError(f"start_timeout={start_timeout!r} leaves no time to start; give more than 0 seconds")
        if stdio is not None and output is not None:
            raise ValueError(f"{name!r} was given both output and stdio; give one, since a stdio has its own output")
        self._argv = check_argv(name, argv)
        self._cwd = None if cwd is None else os.fspath(cwd)
        self._inherit = tuple(inherit)
        self._stop_signal = int(stop_signal)
        self._start_timeout = start_timeout
        self._ready = None if ready is None else parse_ready(ready)
        self._stdio = stdio or Pipes(output, logging.getLogger(f"lifecycle.workers.{name}"))
        if isinstance(self._ready, Line):
            if not isinstance(self._stdio, LineSource):
                raise ValueError(  # noqa: TRY004  # each is valid, but not the two together
                    f"ready={ready!r} of {name!r} needs to read lines, which {stdio!r} does not"
                )
            self._stdio.listen(self._ready.search)
        self._containment = Containment(name, Level.wanted(contain, detached=detached))
        # The number of the group, until the leader is reaped: then it may pass to another group.
        self._group: int | None = None
        for key, value in (env or {}).items():
            check_env(key, value)
            self._env[key] = value

    def _state_as(self, name: str, **known: Any) -> WorkerState:
        """Return its state with the facts of its supervisor."""
        return replace(super()._state_as(name, **known), contain=self._containment.level)

    async def suspend(self) -> None:
        """Stop the whole group by SIGSTOP, wherever it is: nothing is drained. Nothing happens if it is suspended.

        It returns when the leader has stopped. Cancelling the call leaves it running.

        Raises:
            InvalidTransition: if it does not run.
        """
        if self.status is Status.SUSPENDED:
            return
        self._machine.to(Status.SUSPENDED)
        self._signal(signal.SIGSTOP)
        try:
            await _posix.stopped(self._group, lambda: self.status is Status.SUSPENDED)
        except asyncio.CancelledError:
            # Meanwhile it may have been asked to stop, or have ended.
            if self._machine.state is Status.SUSPENDED:
                await self.resume()
            raise

    async def resume(self) -> None:
        """Continue the group. Nothing happens if it runs.

        Raises:
            InvalidTransition: if it is neither suspended nor running.
        """
        if self._machine.resume():
            self._signal(signal.SIGCONT)

    def send_signal(self, signum: int, *, group: bool = False) -> None:
        """Send ``signum`` to the leader, or to all of its ``group``; never to another process that has its number now.

        Nothing happens before it is started and after its end.
        """
        if group:
            self._signal(signum)
        elif self._containment.level is Level.PIDNS:
            # Between us and the command are the processes that hold it, which ignore signals.
            self._signal(signum)
        elif self._group is not None:
            with suppress(ProcessLookupError):
                os.kill(self._group, signum)

    # -- the life -----------------------------------------------------------------------------------------------

    async def _launch(self) -> Awaitable[End]:
        command = Command(self._argv, {**os.environ, **_span(), **self._env}, self._cwd, self._inherit)
        try:
            _posix.require_groups()
            if self._ready is not None:
                command = self._ready.prepare(command)
            self._pid = self._group = self._stdio.spawn(await self._containment.prepare(command))
        except BaseException as error:
            self._close()
            await self._containment.clear(started=False)
            if isinstance(error, OSError):
                raise WorkerFailed(f"{self.name!r} cannot start: {fault_of(command, error)}") from error
            raise
        try:
            await self._containment.attach(self._pid)
        except BaseException:
            await self._undo(self._pid)
            raise
        return self._watch(self._pid)

    async def _undo(self, pid: int) -> None:
        """Kill a process that was started, but cannot be held."""
        self._close()
        self._signal(signal.SIGKILL)
        await self._group_life(pid)

    async def _until_ready(self) -> None:
        if self._ready is None:
            return
        assert self._life is not None, "what was launched has a life"
        ready = asyncio.ensure_future(self._ready.reached(self._is_ours))
        either: set[asyncio.Future[Any]] = {ready, self._life}
        try:
            await asyncio.wait(either, timeout=self._start_timeout, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise not_ready(self.name, self._ready, self._life, self._start_timeout)
            await ready
        finally:
            ready.cancel()
            await asyncio.wait({ready})

    def _is_ours(self, pid: int) -> bool:
        return self._group is not None and self._containment.owns(pid, self._group)

    def _terminate(self, *, force: bool) -> None:
        if self._group is not None:
            self._containment.remember_descendants(self._group)
        if force:
            self._containment.kill()
        # A stopped group would not get the signal.
        self._signal(signal.SIGKILL if force else signal.SIGCONT)
        if not force and self._stop_signal is not None:
            self._signal(self._stop_signal)

    async def _watch(self, pid: int) -> End:
        """The life of the process, to the end of its group and of its output."""
        try:
            code = await self._group_life(pid)
            await self._stdio.drain()
        finally:
            self._close()
        return End(_fault_of_exit(self.name, code), code, self._stdio.tail())

    def _close(self) -> None:
        self._stdio.close()
        if self._ready is not None:
            self._ready.close()

    async def _group_life(self, pid: int) -> int | None:
        """Wait for the end of the leader, and kill what is left of all of it; return the exit code."""
        try:
            return await self._reaped(pid)
        finally:
            await self._containment.clear()

    async def _reaped(self, pid: int) -> int | None:
        """Wait for the end of the leader, kill what is left of its group, and reap it; return its exit code.

        Until it is reaped, which comes last for this reason, no other group can have its number.
        """
        kill, empty = True, False
        try:
            await _posix.process_end(pid)
            # At once: while its group ends, other code of this program that reaps orphans may reap the leader.
            code = _posix.exit_code(pid)
            if self.status is Status.STOPPING:
                empty = self._containment.is_empty()
                if not empty:
                    # Each member had the signal; it has until the grace period ends, when `_terminate` kills it.
                    await _posix.group_end(pid)
            # A detached one may leave processes behind, unless it is asked to end.
            kill = self.status is Status.STOPPING or self._containment.level is not Level.DETACHED
            if kill:
                self._signal(signal.SIGKILL)
        except asyncio.CancelledError:
            # The loop is being closed over a worker that was not stopped.
            if self._containment.level is not Level.DETACHED:
                self._signal(signal.SIGKILL)
                await _posix.process_end(pid)
            raise
        finally:
            self._group = None
            await self._containment.reap(pid)
        if kill and not empty:
            # When a worker has ended, its processes are gone.
            await _posix.group_gone(pid)
        return code

    def _signal(self, signum: int) -> None:
        if self._group is not None:
            _posix.signal_group(self._group, signum)


def _span() -> dict[str, str]:
    """Return the variable for the current span, as W3C defines it; OpenTelemetry reads it in many languages."""
    traceparent = current_span.get()
    return {"TRACEPARENT": traceparent} if traceparent else {}


def _fault_of_exit(name: str, code: int | None) -> WorkerFailed | None:
    """Return what is wrong with an exit code, unless a stop was asked for."""
    if code == 0:
        return None
    if code is None:
        return WorkerFailed(
            f"{name!r} ended, and its exit status is lost because other code reaped it; don't ignore SIGCHLD, "
            "and don't wait for children that are not yours"
        )
    if code > 0:
        return WorkerFailed(f"{name!r} exited with status {code}")
    if code == -signal.SIGKILL:
        return WorkerFailed(f"{name!r} was killed by signal 9, perhaps out of memory")
    return WorkerFailed(f"{name!r} was killed by signal {-code} ({_posix.signal_name(-code)})")
