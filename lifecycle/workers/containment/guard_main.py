"""The program of the guard process: it waits for the end of its parent, and then ends all that the parent left.

It is started as ``python -I -S guard_main.py RUNTIME PARENT FILE FILE``. Its input is a pipe that only the parent holds
open; the parent's end shows by this pipe or by its pidfd, whichever is first. The two files are descriptors of the
parent's `SharedLog`, which is read once the parent has ended: a line ``+PID START_TIME`` for a process group to end,
``-PID`` for one that is gone (written before the number can pass to another), ``@PATH`` for a cgroup, ``%NAME SOCKET``
for a container of the engine that listens there, ``~NAME`` for one that is removed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

# A program: nothing is imported from it.
__all__: list[str] = []

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.workers.containment import process_scan
else:
    # Without site, which would cost megabytes, and without the package around, which would cost more.
    sys.path.append(os.path.dirname(__file__))  # noqa: PTH120  # pathlib costs a megabyte
    import process_scan

_RUNTIME_DIGITS = 32
_INPUT = 0
#: Scans in a row that have to find no process.
_SCANS = 3
#: Each file of the log begins with its number in so many hexadecimal digits.
_HEADER = 16
#: Seconds for killed processes to be gone from their cgroups.
_LAST_WAIT = 10.0
#: Seconds between two scans: a process that keeps forking to evade them is met sooner or later.
_PAUSE = 0.001
#: Seconds that an engine has to remove a container.
_ENGINE_TIMEOUT = 60.0


class Guard:
    """The processes and containers of the parent, as its log lists them."""

    def __init__(self, runtime: bytes) -> None:
        self._runtime = runtime
        # The leaders of groups, and their start times.
        self._leaders: dict[int, int] = {}
        self._cgroups: set[str] = set()
        # The sockets of the engines of containers.
        self._engines: dict[str, str] = {}
        # When the parent ended, in clock ticks since the machine was started, as start times are.
        self._parent_ended = 0

    def wait(self, parent: int) -> None:
        """Return when ``parent`` has ended."""
        poll = select.poll()
        poll.register(_INPUT, select.POLLIN)
        pidfd = _pidfd(parent)
        if pidfd is not None:
            poll.register(pidfd, select.POLLIN)
        # Checked after the pidfd was opened: it is that of the parent, or the parent is gone already.
        while os.getppid() == parent:
            ready = [fd for fd, _ in poll.poll()]
            # Nothing is ever written to the pipe, but a copy of its end could be anywhere.
            if pidfd in ready or not os.read(_INPUT, 1 << 16):
                break

    def read(self, log: tuple[int, int]) -> None:
        """Read what the parent had, from the newer one of its two files."""
        # A last line without an end was being written when the parent was killed.
        *lines, _ = _content(max(log, key=_number)).split(b"\n")
        for line in lines:
            self._take(line.decode())

    def clear(self) -> None:
        """End everything that is left."""
        self._parent_ended = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        process_scan.kill_found(self._find, scans=_SCANS, pause=_PAUSE)
        until = time.monotonic() + _LAST_WAIT
        for path in self._cgroups:
            # It becomes empty a while after all in it were killed, on a busy machine a long while.
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
            # At once, since a fork bomb cannot outrun the kill of its group.
            if pid in table and table[pid].start_time == start_time and table[pid].group == pid:
                process_scan.kill_group(pid)
        yield from {process.identity for process in members + below if not process.is_dead}
        # A new scan each time: a process that was executed meanwhile has another environment now.
        yield from process_scan.CookieScan(self._is_ours)()

    def _is_member(self, process: process_scan.Process, table: dict[int, process_scan.Process]) -> bool:
        """Return whether it is in a group of the parent, whose number has certainly not passed to another group."""
        start_time = self._leaders.get(process.group)
        if start_time is None:
            return False
        leader = table.get(process.group)
        # A number is not reused while its group has members: a process that is older than the end of the parent is one.
        return process.start_time <= self._parent_ended if leader is None else leader.start_time == start_time

    def _is_ours(self, cookie: bytes) -> bool:
        runtime, _, number = cookie.partition(b":")
        return runtime == self._runtime and number.isdigit()


def _number(file: int) -> int:
    """Return the number of a file of the log; -1 if it is not complete."""
    try:
        return int(os.pread(file, _HEADER, 0), 16)
    except ValueError:
        return -1


def _content(file: int) -> bytes:
    parts: list[bytes] = []
    at = _HEADER
    # By position, since the parent shares the offset of the descriptor.
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
    """Have all of them removed concurrently, each by its engine, which answers when that is done."""
    if not engines:
        return
    # Imported only now: it would cost memory as long as the parent lives.
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
            continue  # the engine has failed, or takes too long


def _isolate() -> None:
    """Ignore signals, leave the directory, and set a name that shows what this is."""
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(signum, signal.SIG_IGN)
    os.chdir("/")
    try:
        # Nothing is urgent until the parent has ended.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with open("/proc/self/comm", "w") as name:  # noqa: PTH123  # pathlib costs a megabyte
            name.write("lifecycle-guard")
    except (AttributeError, OSError):
        pass  # it works without


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
