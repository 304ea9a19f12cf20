"""The program that the guard runs. It waits until its parent has exited, and then kills all processes left behind.

The parent starts it as ``python -I -S guard_main.py RUNTIME PARENT FILE FILE``. Its standard input is a pipe that only
the parent holds open. The guard is notified of the parent's exit by this pipe or a pidfd, whichever comes first. It
then reads the parent's `SharedLog` from the two files, which are inherited descriptors. In the log, ``+PID START_TIME``
is a process group to kill. ``-PID`` means that a group is gone, and is written before the pid can be reused. ``@PATH``
is a cgroup, ``%NAME SOCKET`` is a container and its engine's socket, and ``~NAME`` is a container that has been
removed. ``?COOKIE TIME`` is a process that is about to be forked, and ``!COOKIE`` means that it has been listed or has
not been started.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

# This is a program, so it exports nothing.
__all__: list[str] = []

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.workers.containment import process_scan
else:
    # Import the module directly, because `site` and the rest of this package would use megabytes of memory.
    sys.path.append(os.path.dirname(__file__))  # noqa: PTH120  # pathlib costs a megabyte
    import process_scan

_RUNTIME_DIGITS = 32
_INPUT = 0
#: The number of consecutive scans that must find no process.
_SCANS = 3
#: The number of hexadecimal digits at the start of each log file.
_HEADER = 16
#: Seconds to wait for killed processes to leave their cgroups.
_LAST_WAIT = 10.0
#: Seconds between scans. If a process evades a scan by forking, a later scan catches it.
_PAUSE = 0.001
#: Seconds to wait for a process that had been forked, but had not executed its program yet. Until then, it has no
#: cookie. Opening the program can take long, for example on a network file system.
_START_LIMIT = 60.0
#: Seconds between scans during that time.
_START_PAUSE = 0.05
#: How long an engine may take to remove a container, in seconds.
_ENGINE_TIMEOUT = 60.0


class Guard:
    """The parent's processes and containers, as listed in its log."""

    def __init__(self, runtime: bytes) -> None:
        self._runtime = runtime
        self._parent = 0
        # The start times of group leaders.
        self._leaders: dict[int, int] = {}
        self._cgroups: set[str] = set()
        # When each process that was being started was about to be forked, by cookie.
        self._starts: dict[str, int] = {}
        # The socket of each container's engine.
        self._engines: dict[str, str] = {}
        # When the parent exited. Like process start times, this is measured in clock ticks since boot.
        self._parent_ended = 0

    def wait(self, parent: int) -> None:
        """Wait until ``parent`` has exited."""
        self._parent = parent
        poll = select.poll()
        poll.register(_INPUT, select.POLLIN)
        pidfd = _pidfd(parent)
        if pidfd is not None:
            poll.register(pidfd, select.POLLIN)
        # Check the parent after opening the pidfd. If it is already gone, the pid may have been reused.
        while os.getppid() == parent:
            ready = [fd for fd, _ in poll.poll()]
            # The parent never writes to the pipe. However, other processes may hold copies of its write end.
            if pidfd in ready or not os.read(_INPUT, 1 << 16):
                break

    def read(self, log: tuple[int, int]) -> None:
        """Read the parent's log from the newer of its two files."""
        # If the parent was killed while writing, the last line is incomplete, so we ignore it.
        *lines, _ = _content(max(log, key=_number)).split(b"\n")
        for line in lines:
            self._take(line.decode())

    def clear(self) -> None:
        """Kill all remaining processes and remove all containers."""
        self._parent_ended = process_scan.ticks_since_boot()
        self._kill_all()
        until = time.monotonic() + _LAST_WAIT
        for path in self._cgroups:
            # A cgroup takes a while to become empty after its processes have been killed, especially on a busy machine.
            while not process_scan.remove_cgroup(path) and time.monotonic() < until:
                select.select([], [], [], _PAUSE)
        _remove_containers(self._engines)

    def _kill_all(self) -> None:
        until = time.monotonic() + _START_LIMIT
        starting = True
        while starting and time.monotonic() < until:
            # Check this before the scan, which finds processes that have their cookie by now.
            starting = self._is_starting()
            process_scan.kill_found(self._find, scans=_SCANS, pause=_START_PAUSE if starting else _PAUSE)

    def _is_starting(self) -> bool:
        """Return whether one of the parent's processes may have been forked, but have no cookie yet."""
        if not self._starts:
            return False
        first, table = min(self._starts.values()), process_scan.all_processes()
        # All orphans of our parent get the same new parent, as we do.
        parents = self._parent, os.getppid()
        return any(
            process.parent in parents
            and first <= process.start_time <= self._parent_ended
            and process_scan.is_starting(process)
            for process in table.values()
        )

    def _take(self, line: str) -> None:
        match line[:1]:
            case "+":
                pid, start_time = line[1:].split()
                self._leaders[int(pid)] = int(start_time)
            case "-":
                self._leaders.pop(int(line[1:]), None)
            case "@":
                self._cgroups.add(line[1:])
            case "?":
                cookie, start_time = line[1:].split()
                self._starts[cookie] = int(start_time)
            case "!":
                self._starts.pop(line[1:], None)
            case "%":
                name, _, path = line[1:].partition(" ")
                self._engines[name] = path
            case "~":
                self._engines.pop(line[1:], None)
            case _:
                pass

    def _find(self) -> Iterator[process_scan.Identity]:
        for path in self._cgroups:
            process_scan.kill_cgroup(path)
        table = process_scan.all_processes()
        members = [process for process in table.values() if self._is_member(process, table)]
        below = process_scan.descendants((process.pid for process in members), table)
        for pid, start_time in self._leaders.items():
            # Kill the group with a single call, which not even a fork bomb can outrun.
            if pid in table and table[pid].start_time == start_time and table[pid].group == pid:
                process_scan.kill_group(pid)
        yield from {process.identity for process in members + below if not process.is_dead}
        # Create a new scan each time, because a process may have changed its environment through an exec.
        yield from process_scan.CookieScan(self._is_ours)()

    def _is_member(self, process: process_scan.Process, table: dict[int, process_scan.Process]) -> bool:
        """Return whether the process is in one of the parent's groups whose id cannot have been reused."""
        start_time = self._leaders.get(process.group)
        if start_time is None:
            return False
        leader = table.get(process.group)
        # A group id is not reused while the group has members. Therefore, any process in it that started before the
        # parent exited is ours.
        return process.start_time <= self._parent_ended if leader is None else leader.start_time == start_time

    def _is_ours(self, cookie: bytes) -> bool:
        runtime, _, number = cookie.partition(b":")
        return runtime == self._runtime and number.isdigit()


def _number(file: int) -> int:
    """Return the number at the start of a log file, or -1 if the file is incomplete."""
    try:
        return int(os.pread(file, _HEADER, 0), 16)
    except ValueError:
        return -1


def _content(file: int) -> bytes:
    parts: list[bytes] = []
    at = _HEADER
    # Read from explicit positions, because the descriptor shares its file offset with the parent.
    while part := os.pread(file, 1 << 16, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _remove_containers(engines: dict[str, str]) -> None:
    """Remove all containers concurrently. An engine responds once the container has been removed."""
    if not engines:
        return
    # Import this only now, because it would use memory while the parent is running.
    import socket

    asked: list[socket.socket] = []
    for name, path in engines.items():
        ask = socket.socket(socket.AF_UNIX)
        ask.settimeout(_ENGINE_TIMEOUT)
        try:
            ask.connect(path)
            ask.sendall(f"DELETE /containers/{name}?force=1&v=1 HTTP/1.1\r\nHost: engine\r\n\r\n".encode())
            asked.append(ask)
        except OSError:
            ask.close()  # the engine is also gone
    for ask in asked:
        try:
            ask.recv(1)
        except OSError:
            continue  # the engine failed or did not respond in time


def _isolate() -> None:
    """Ignore signals, leave the working directory, and set a descriptive process name."""
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(signum, signal.SIG_IGN)
    os.chdir("/")
    try:
        # The guard has nothing urgent to do until the parent has exited.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with open("/proc/self/comm", "w") as name:  # noqa: PTH123  # pathlib costs a megabyte
            name.write("lifecycle-guard")
    except (AttributeError, OSError):
        pass  # optional


def main(runtime: str, parent: str, first: str, second: str) -> None:
    """Guard ``parent``, whose log is in the descriptors ``first`` and ``second``."""
    if len(runtime) != _RUNTIME_DIGITS or not set(runtime) <= set("0123456789abcdef"):
        sys.exit(f"{runtime!r} is not {_RUNTIME_DIGITS} hexadecimal digits; a weak cookie could match other processes")
    _isolate()
    guard = Guard(runtime.encode())
    guard.wait(int(parent))
    guard.read((int(first), int(second)))
    guard.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
