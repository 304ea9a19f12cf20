"""The program of the guard process: it waits for the end of its parent, and ends all processes that the parent left.

It is started as ``python -I -S guard_main.py RUNTIME PARENT FILE FILE``. Its input is a pipe that only the parent holds
open. It detects the parent's end by this pipe or by its pidfd, whichever comes first. The two files are descriptors of
the parent's `SharedLog`, which is read after that. A line ``+PID START_TIME`` is a process group to end. ``-PID`` is a
group that is gone; it is written before another process can get the pid. ``@PATH`` is a cgroup, ``%NAME SOCKET`` is a
container of the engine that listens at the socket, and ``~NAME`` is a removed container.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

# A program: no module imports it.
__all__: list[str] = []

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.workers.containment import process_scan
else:
    # It runs without site, which would use megabytes, and without the rest of this package, which would use more.
    sys.path.append(os.path.dirname(__file__))  # noqa: PTH120  # pathlib costs a megabyte
    import process_scan

_RUNTIME_DIGITS = 32
_INPUT = 0
#: The number of consecutive scans that must find no process.
_SCANS = 3
#: The number of hexadecimal digits at the beginning of each file of the log.
_HEADER = 16
#: Seconds until killed processes must have left their cgroups.
_LAST_WAIT = 10.0
#: Seconds between two scans. A process that evades them by forking is eventually found.
_PAUSE = 0.001
#: Seconds for an engine to remove a container.
_ENGINE_TIMEOUT = 60.0


class Guard:
    """The processes and containers of the parent, as listed in its log."""

    def __init__(self, runtime: bytes) -> None:
        self._runtime = runtime
        # The leaders of groups, with their start times.
        self._leaders: dict[int, int] = {}
        self._cgroups: set[str] = set()
        # For each container, the socket of its engine.
        self._engines: dict[str, str] = {}
        # The time of the parent's end in clock ticks since the boot, as start times are.
        self._parent_ended = 0

    def wait(self, parent: int) -> None:
        """Wait until ``parent`` has ended."""
        poll = select.poll()
        poll.register(_INPUT, select.POLLIN)
        pidfd = _pidfd(parent)
        if pidfd is not None:
            poll.register(pidfd, select.POLLIN)
        # Checked after opening the pidfd: it belongs to the parent, or the parent is already gone.
        while os.getppid() == parent:
            ready = [fd for fd, _ in poll.poll()]
            # The parent never writes to the pipe, but other processes may hold a copy of its end.
            if pidfd in ready or not os.read(_INPUT, 1 << 16):
                break

    def read(self, log: tuple[int, int]) -> None:
        """Read the parent's log, from the newer one of its two files."""
        # The parent was writing a last line without an end when it was killed.
        *lines, _ = _content(max(log, key=_number)).split(b"\n")
        for line in lines:
            self._take(line.decode())

    def clear(self) -> None:
        """End all remaining processes and containers."""
        self._parent_ended = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        process_scan.kill_found(self._find, scans=_SCANS, pause=_PAUSE)
        until = time.monotonic() + _LAST_WAIT
        for path in self._cgroups:
            # A cgroup becomes empty some time after its processes were killed. On a busy machine, this takes long.
            while not process_scan.remove_cgroup(path) and time.monotonic() < until:
                select.select([], [], [], _PAUSE)
        _remove_containers(self._engines)

    def _take(self, line: str) -> None:
        match line[:1]:
            case "+":
                pid, start_time = line[1:].split()
                self._leaders[int(pid)] = int(start_time)
            case "-":
                self._leaders.pop(int(line[1:]), None)
            case "@":
                self._cgroups.add(line[1:])
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
            # Kill the group immediately, because a fork bomb cannot outrun this.
            if pid in table and table[pid].start_time == start_time and table[pid].group == pid:
                process_scan.kill_group(pid)
        yield from {process.identity for process in members + below if not process.is_dead}
        # Create a new scan each time, because a process may have a new environment after an exec.
        yield from process_scan.CookieScan(self._is_ours)()

    def _is_member(self, process: process_scan.Process, table: dict[int, process_scan.Process]) -> bool:
        """Return whether the process is in a group of the parent whose id certainly belongs to no other group."""
        start_time = self._leaders.get(process.group)
        if start_time is None:
            return False
        leader = table.get(process.group)
        # A group id is not reused while the group has members, so a process that is older than the parent's end is a
        # member.
        return process.start_time <= self._parent_ended if leader is None else leader.start_time == start_time

    def _is_ours(self, cookie: bytes) -> bool:
        runtime, _, number = cookie.partition(b":")
        return runtime == self._runtime and number.isdigit()


def _number(file: int) -> int:
    """Return the number of a file of the log; -1 if the file is incomplete."""
    try:
        return int(os.pread(file, _HEADER, 0), 16)
    except ValueError:
        return -1


def _content(file: int) -> bytes:
    parts: list[bytes] = []
    at = _HEADER
    # By position, because the parent shares the offset of the descriptor.
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
    """Remove all containers concurrently, each through its engine, which answers after the removal."""
    if not engines:
        return
    # Imported only now, because it would use memory while the parent runs.
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
            ask.close()  # the engine is gone as well
    for ask in asked:
        try:
            ask.recv(1)
        except OSError:
            continue  # the engine failed or did not answer in time


def _isolate() -> None:
    """Ignore signals, leave the directory, and set a descriptive process name."""
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(signum, signal.SIG_IGN)
    os.chdir("/")
    try:
        # It is not urgent before the parent has ended.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with open("/proc/self/comm", "w") as name:  # noqa: PTH123  # pathlib costs a megabyte
            name.write("lifecycle-guard")
    except (AttributeError, OSError):
        pass  # optional


def main(runtime: str, parent: str, first: str, second: str) -> None:
    """Guard ``parent``, whose log is in the descriptors ``first`` and ``second``."""
    if len(runtime) != _RUNTIME_DIGITS or not set(runtime) <= set("0123456789abcdef"):
        sys.exit(f"{runtime!r} is not {_RUNTIME_DIGITS} hexadecimal digits; a weak cookie would kill other processes")
    _isolate()
    guard = Guard(runtime.encode())
    guard.wait(int(parent))
    guard.read((int(first), int(second)))
    guard.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
