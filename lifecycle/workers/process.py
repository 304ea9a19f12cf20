"""A worker that runs a program in a process group, and stops the group as a whole.

The `stdio` module sets up and reads the program's streams, `_posix` detects when it exits, and `containment` kills
processes that have left the group.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lifecycle._durations import in_seconds
from lifecycle._util import current_span
from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers import _posix
from lifecycle.workers.base import BaseWorker, check_env
from lifecycle.workers.containment.containment import Containment, Level
from lifecycle.workers.model import AT_WORK, End, Status
from lifecycle.workers.readiness import Line, not_ready, parse_ready
from lifecycle.workers.stdio import Command, File, LineSource, Pipes, RecentLines, check_argv, fault_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from lifecycle._durations import Duration
    from lifecycle.workers.model import WorkerState
    from lifecycle.workers.stdio import Output, Stdio

__all__ = ["ProcessWorker"]


class ProcessWorker(BaseWorker):
    """A worker that runs a program and cleans up all of its descendant processes.

    The process leads its own session, has no standard input, and inherits no file descriptors except those in
    ``inherit``. Once the worker has ended, none of its processes remain.

    Stopping the worker first sends ``stop_signal`` to the leader, so that a program such as Celery or gunicorn can let
    its own workers finish. If the leader is a shell, the commands that it is running also receive the signal. Once
    these processes have exited, the rest of the group receives the signal. Any process still running ``stop_timeout``
    seconds after the first signal is killed. If the leader exits without being asked to stop, the rest of the group is
    killed immediately. ``contain`` determines whether processes that have left the group are also killed, and whether
    all of the processes are killed when this program ends for any reason.

    Args:
        name: The worker's name, used in messages and states.
        argv: The command and its arguments. They are not passed through a shell.
        env: Additional environment variables. The process also inherits this program's environment, and ``TRACEPARENT``
            is set to the current trace span.
        cwd: The working directory. The default is this program's working directory.
        user: The user to run the process as, by name or number. The process belongs to all of that user's groups, and
            ``HOME``, ``SHELL``, ``USER`` and ``LOGNAME`` are set accordingly. Only root can run processes as a
            different user. This setting cannot be combined with ``contain="cgroup"``, ``contain="pidns"``, or a
            ``stdio`` other than a `lifecycle.workers.stdio.File`.
        stop_signal: The signal that asks the process to stop. With ``contain="pidns"``, it is sent to the whole group
            immediately.
        stop_timeout: Seconds to wait after ``stop_signal`` before killing the process.
        output: A plain function to call in the event loop with each line of output, without its line ending, and the
            name of the stream, "stdout" or "stderr". If the function raises, the exception is logged. ``"inherit"``
            prints the lines to this program's own streams. By default, lines are logged to
            ``lifecycle.workers.<name>`` at level INFO, or printed if no handler of the log shows that level.
        ready: When the process is considered ready. ``"port:N"``: when it accepts connections on this local port.
            ``"http://…"`` or ``"https://…"``: when a request to this URL returns a status below 400. ``"line:REGEX"``:
            when it writes a matching line to stdout or stderr. ``"notify"``: when it sends READY=1 to the socket in
            ``NOTIFY_SOCKET``, like a systemd service. By default, it is ready immediately.
        start_timeout: How many seconds the process may take to become ready.
        stdio: An alternative to ``output`` that sets up the process's streams itself; see `lifecycle.workers.stdio`.
        contain: How to find the worker's processes when they must be killed. ``"group"`` only finds those in the
            process group. ``"guard"`` also finds processes outside the group, by their ancestry and by a cookie in
            their environment. The guard is a single small process, shared by all workers, that kills them if this
            program dies. ``"cgroup"`` finds all processes except those that move themselves to a different cgroup.
            ``"pidns"`` finds all processes, because none can leave its pid namespace. If the level is not available,
            the worker cannot start. ``"auto"`` uses a cgroup if possible and a guard otherwise. On systems other than
            Linux, it only uses the group. `state` shows the level in use.
        detached: Whether the process and any processes that it leaves behind may outlive this program. Stopping the
            worker still ends the whole process group. Set ``stdio`` too, for example to `lifecycle.workers.stdio.File`:
            a process whose output this program reads dies at its first line after this program has ended.
        inherit: Open file descriptors for the process to inherit under the same numbers, such as a listening socket.
            They must be 3 or higher. Keep them open until the process has started.

    Raises:
        ValueError: if a setting is invalid. The message names the setting.
        TypeError: if an argument is not a string or a path, or ``output`` is invalid.
    """

    kind: ClassVar[str] = "process"

    def __init__(  # noqa: PLR0913  # public API; each option has a default
        self,
        name: str,
        *argv: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        user: str | int | None = None,
        stop_signal: int = signal.SIGTERM,
        stop_timeout: Duration = 10.0,
        output: Output | Literal["inherit"] | None = None,
        ready: str | None = None,
        start_timeout: Duration = 30.0,
        stdio: Stdio | None = None,
        contain: str = "auto",
        detached: bool = False,
        inherit: Sequence[int] = (),
    ) -> None:
        super().__init__(name, stop_timeout=stop_timeout)
        if stop_signal not in signal.valid_signals():
            raise ValueError(
                f"stop_signal must be a valid signal on this system, such as signal.SIGTERM, got {stop_signal!r}"
            )
        if stdio is not None and output is not None:
            raise ValueError(f"{name!r} has both output and stdio, but stdio handles the output; use only one of them")
        self._argv = check_argv(name, argv)
        self._cwd = None if cwd is None else os.fspath(cwd)
        # A terminal and inherited streams belong to this program's user.
        has_streams = not (stdio is None or isinstance(stdio, File))
        self._account = None if user is None else _account_of(name, user, contain, has_stdio=has_streams)
        self._inherit = tuple(inherit)
        self._stop_signal = int(stop_signal)
        self._start_timeout = in_seconds("start_timeout", start_timeout)
        self._ready = None if ready is None else parse_ready(ready)
        self._stdio = stdio or Pipes(output, name)
        #: The most recent lines of output, or None if ``stdio`` does not read lines.
        self.recent: RecentLines | None = None
        if isinstance(self._stdio, LineSource):
            self.recent = RecentLines()
            self._stdio.listen(self._take_line)
        elif isinstance(self._ready, Line):
            raise ValueError(  # noqa: TRY004  # the types are right, but the combination is not
                f"{name!r} has ready={ready!r}, which requires lines, but {stdio!r} does not read lines"
            )
        self._containment = Containment(name, Level.wanted(contain, detached=detached))
        if detached and self.recent is not None:
            raise ValueError(
                f"{name!r} has detached=True, but this program reads its output, so it would die at its first line "
                f"after this program has ended; pass stdio=File({f'{name}.log'!r}), from lifecycle.workers.stdio"
            )
        # The process group's id until its leader is reaped, after which a different group may get the same id.
        self._group: int | None = None
        # The processes that received the stop signal before the rest of the group.
        self._mains: list[int] = []
        for key, value in (env or {}).items():
            check_env(key, value)
            self._env[key] = value

    def _take_line(self, line: str) -> None:
        if self.recent is not None:
            self.recent.add(line)
        if isinstance(self._ready, Line):
            self._ready.search(line)

    def _state_as(self, name: str, **known: Any) -> WorkerState:
        """Return the worker's state, including what its supervisor adds and its containment level."""
        return replace(super()._state_as(name, **known), contain=self._containment.level)

    async def suspend(self) -> None:
        """Suspend the whole process group with SIGSTOP, regardless of what its processes are doing. Idempotent.

        The call returns once the leader has stopped, or after 5 seconds if it is busy with disk I/O and stops later. If
        the call is cancelled, the process keeps running.

        Raises:
            InvalidTransition: if the process is not running, or is resumed or stopped during the call.
        """
        if self.status is Status.SUSPENDED:
            return
        self._machine.to(Status.SUSPENDED)
        self._signal(signal.SIGSTOP)
        try:
            await _posix.stopped(self._group, lambda: self.status is Status.SUSPENDED)
        except asyncio.CancelledError:
            # In the meantime, the worker may have been stopped or may have ended on its own.
            if self._machine.state is Status.SUSPENDED:
                await self.resume()
            raise
        if self._machine.state is not Status.SUSPENDED:
            raise InvalidTransition(
                f"{self.name!r} is {self._machine.state}, because it was resumed or ended during suspend(); "
                "call suspend() again if it is still running"
            )

    async def resume(self) -> None:
        """Resume the process group with SIGCONT. Idempotent.

        Raises:
            InvalidTransition: if the process is neither suspended nor running.
        """
        if self._machine.resume():
            self._signal(signal.SIGCONT)

    def send_signal(self, signum: int, *, group: bool = False) -> None:
        """Send a signal to the leader, but never to an unrelated process that has reused its pid.

        The call has no effect if the process has not started yet or has exited.

        Args:
            signum: The signal to send.
            group: Whether to signal the whole process group.
        """
        if group:
            self._signal(signum)
        elif self._containment.level is Level.PIDNS:
            # The leader and its child only keep the pid namespace alive and ignore signals, so we signal the whole
            # group.
            self._signal(signum)
        elif self._group is not None:
            with suppress(ProcessLookupError):
                os.kill(self._group, signum)

    def _command(self) -> Command:
        """Return the worker's command, including its environment, working directory and user."""
        account = self._account
        env = {**os.environ, **(account.variables if account else {}), **_span(), **self._env}
        return Command(self._argv, env, self._cwd, self._inherit, account)

    # -- start and end -----------------------------------------------------------------------------------------------

    async def _launch(self) -> Awaitable[End]:
        command = self._command()
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
        """Kill a process that was started but cannot be contained."""
        self._close()
        self._signal(signal.SIGKILL)
        await self._group_life(pid)

    async def _until_ready(self) -> None:
        if self._ready is None:
            return
        assert self._life is not None, "the launch sets it"
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
            if not self._leaves_daemons(None):
                self._containment.kill()
            self._signal(signal.SIGKILL)
            return
        if self._group is not None and self._stop_signal is not None:
            self._mains = self._signal_mains(self._group, self._stop_signal)
        # When a suspended group is resumed, it handles the stop signal before it does anything else.
        self._signal(signal.SIGCONT)

    def _signal_mains(self, group: int, signum: int) -> list[int]:
        """Send the stop signal to the processes that are expected to shut down the others, and return their pids."""
        if self._containment.level is Level.PIDNS:
            # The leader and its child only keep the pid namespace alive and ignore signals, so we signal the whole
            # group.
            self._signal(signum)
            return []
        return _posix.signal_mains(group, signum)

    async def _watch(self, pid: int) -> End:
        """Wait until the process and its group are gone and their output has been read."""
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
        """Wait until the leader has exited, kill all remaining processes, and return the leader's exit code."""
        leave = False
        try:
            code = await self._reaped(pid)
            leave = self._leaves_daemons(code)
        finally:
            await self._containment.clear(leave=leave)
        return code

    def _leaves_daemons(self, exit_code: int | None) -> bool:  # noqa: ARG002  # for subclasses
        """Return whether processes that have left the group continue after the leader has exited with ``exit_code``."""
        return False

    async def _reaped(self, pid: int) -> int | None:
        """Wait until the leader has exited, kill the rest of its group, reap the leader, and return its exit code.

        The leader is reaped last, because the group id can be reused after that.
        """
        kill, empty = True, False
        try:
            await _posix.process_end(pid)
            # Read the exit code now, because other code in this program might reap the leader while we wait for the
            # group.
            code = _posix.exit_code(pid)
            if self._was_asked or self.status is Status.STOPPING:
                empty = self._containment.is_empty()
                if not empty:
                    # The members get the rest of the grace period to exit. After that, `_terminate` kills them.
                    await self._stop_members(pid)
            # A detached worker may leave processes behind, unless it was asked to stop or its start has failed.
            may_leave = self._containment.level is Level.DETACHED and self.status in AT_WORK
            kill = self._was_asked or not may_leave
            if kill:
                self._signal(signal.SIGKILL)
        except asyncio.CancelledError:
            # The loop is closing, even though the worker has not been stopped.
            if self._containment.level is not Level.DETACHED:
                self._signal(signal.SIGKILL)
                await _posix.process_end(pid)
            raise
        finally:
            self._group = None
            await self._containment.reap(pid)
        if kill and not empty:
            # The worker does not end until all of its processes are gone.
            await _posix.group_gone(pid)
        return code

    async def _stop_members(self, pid: int) -> None:
        """Stop the rest of the group once its leader ``pid`` has exited."""
        if self._mains and self._stop_signal is not None:
            await _posix.mains_end(pid, self._mains)
            self._signal(self._stop_signal)
        await _posix.group_end(pid)

    def _signal(self, signum: int) -> None:
        if self._group is not None:
            _posix.signal_group(self._group, signum)


def _account_of(name: str, user: str | int, contain: str, *, has_stdio: bool) -> _posix.Account | None:
    """Return the account for the ``user`` setting of the worker ``name``.

    Raises:
        ValueError: if the user is unknown, cannot be used here, or conflicts with another setting.
    """
    other = "stdio" if has_stdio else f"contain={contain!r}" if contain in (Level.CGROUP, Level.PIDNS) else None
    if other is not None:
        raise ValueError(f"{name!r} has both user and {other}, but these cannot be combined; use only one of them")
    try:
        return _posix.find_account(user)
    except ValueError as error:
        raise ValueError(f"user={user!r} of {name!r} {error}") from None


def _span() -> dict[str, str]:
    """Return the environment variable for the current span, in the W3C format that OpenTelemetry uses."""
    traceparent = current_span.get()
    return {"TRACEPARENT": traceparent} if traceparent else {}


def _fault_of_exit(name: str, code: int | None) -> WorkerFailed | None:
    """Return the error for an exit code, or None for 0. Callers ignore the error if the worker was asked to stop."""
    if code == 0:
        return None
    if code is None:
        return WorkerFailed(
            f"{name!r} exited, but its exit status was lost because other code reaped it; do not ignore SIGCHLD "
            "or wait for child processes that other code started"
        )
    if code > 0:
        return WorkerFailed(f"{name!r} exited with status {code}")
    if code == -signal.SIGKILL:
        return WorkerFailed(f"{name!r} was killed by signal 9 (SIGKILL), perhaps because the system ran out of memory")
    return WorkerFailed(f"{name!r} was killed by signal {-code} ({_posix.signal_name(-code)})")
