"""The program that the guard runs: it waits for the end of its parent, and then ends all that the parent left.

It is started as ``python -I -S watchman.py RUNTIME PARENT FILE FILE``. Its input is a pipe that the parent alone holds
open; the parent's end shows by this pipe or by its pidfd, whichever is first. The two files are descriptors of the
parent's notes (see `guards.Notes`), which are read once the parent has ended: a line ``+PID BORN`` for a process group
that is to be ended, ``-PID`` for one that is gone (written before the number can pass to another), ``@PATH`` for a
cgroup, ``%NAME SOCKET`` for a container of the engine that listens there, ``~NAME`` for one that is removed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

# A program: nothing is to be imported from it.
__all__: list[str] = []

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.workers.containment import cgroupfs, sweeps
else:
    # Without site, which would cost megabytes, and without the package around, which would cost more.
    sys.path.append(os.path.dirname(__file__))  # noqa: PTH120  # pathlib costs a megabyte
    import cgroupfs
    import sweeps

_RUNTIME_DIGITS = 32
_INPUT = 0
#: Looks in a row that have to find nobody.
_LOOKS = 3
#: Each file of notes begins with its number in so many hexadecimal digits.
_HEADER = 16
#: Seconds for the killed to be gone from their cgroups.
_LAST_WAIT = 10.0
#: Seconds between two of them: nobody waits for us, and who hops from process to process is met sooner or later.
_PAUSE = 0.001
#: Seconds that an engine has to remove a container.
_ENGINE_PATIENCE = 60.0


class Watchman:
    """What the parent said that it has."""

    def __init__(self, runtime: bytes) -> None:
        self._runtime = runtime
        # The leaders of groups, and when they were born.
        self._leaders: dict[int, int] = {}
        self._places: set[str] = set()
        # The sockets of the engines of containers.
        self._engines: dict[str, str] = {}
        # In clock ticks since the machine was started, as births are.
        self._alarm = 0

    def wait(self, parent: int) -> None:
        """Return when ``parent`` has ended."""
        poll = select.poll()
        poll.register(_INPUT, select.POLLIN)
        pidfd = _pidfd(parent)
        if pidfd is not None:
            poll.register(pidfd, select.POLLIN)
        # Looked at after the pidfd was opened: it is the parent's, or the parent is gone already.
        while os.getppid() == parent:
            ready = [fd for fd, _ in poll.poll()]
            # Nothing is ever written to the pipe, but a copy of its end could be anywhere.
            if pidfd in ready or not os.read(_INPUT, 1 << 16):
                break

    def read(self, notes: tuple[int, int]) -> None:
        """Read what the parent had, from the newer one of its two files."""
        # A last line without an end was being written when the parent was killed.
        *lines, _ = _content(max(notes, key=_number)).split(b"\n")
        for line in lines:
            self._hear(line.decode())

    def clear(self) -> None:
        """End everything that is left."""
        self._alarm = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        sweeps.sweep(self._find, looks=_LOOKS, pause=_PAUSE)
        until = time.monotonic() + _LAST_WAIT
        for place in self._places:
            # It is empty a moment after all in it were killed; on a busy machine, a long one.
            while not cgroupfs.remove_cgroup(place) and time.monotonic() < until:
                select.select([], [], [], _PAUSE)
        _remove_containers(self._engines)

    def _hear(self, line: str) -> None:
        match line[:1]:
            case "+":
                pid, born = line[1:].split()
                self._leaders[int(pid)] = int(born)
            case "-":
                self._leaders.pop(int(line[1:]), None)
            case "@":
                self._places.add(line[1:])
            case "%":
                name, _, path = line[1:].partition(" ")
                self._engines[name] = path
            case "~":
                self._engines.pop(line[1:], None)
            case _:
                pass

    def _find(self) -> Iterator[sweeps.Known]:
        for place in self._places:
            cgroupfs.kill_cgroup(place)
        table = sweeps.processes()
        members = [process for process in table.values() if self._is_member(process, table)]
        below = sweeps.descendants((process.pid for process in members), table)
        for pid, born in self._leaders.items():
            # At once, which is what a fork bomb cannot outrun.
            if pid in table and table[pid].born == born and table[pid].group == pid:
                sweeps.kill_group(pid)
        yield from {process.known for process in members + below if not process.dead}
        # Those who were executed meanwhile have another environment now: strangers are met anew in each look.
        yield from sweeps.Holders(self._is_ours)()

    def _is_member(self, process: sweeps.Process, table: dict[int, sweeps.Process]) -> bool:
        """Whether it is in a group of ours, and the group's number certainly not somebody else's by now."""
        born = self._leaders.get(process.group)
        if born is None:
            return False
        leader = table.get(process.group)
        # A number is not free while its group has members: one who was there at the alarm is in the group of old.
        return process.born <= self._alarm if leader is None else leader.born == born

    def _is_ours(self, cookie: bytes) -> bool:
        runtime, _, number = cookie.partition(b":")
        return runtime == self._runtime and number.isdigit()


def _number(file: int) -> int:
    """The number of a file of notes; -1 for one that is not complete."""
    try:
        return int(os.pread(file, _HEADER, 0), 16)
    except ValueError:
        return -1


def _content(file: int) -> bytes:
    parts: list[bytes] = []
    at = _HEADER
    # The offset of the descriptor is the parent's as well, and stays as it is.
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
    """Have all of them removed at the same time, each by its engine, which answers when that is done."""
    if not engines:
        return
    # Not before there is need: this costs memory as long as the parent lives.
    import socket

    asked: list[socket.socket] = []
    for name, path in engines.items():
        ask = socket.socket(socket.AF_UNIX)
        ask.settimeout(_ENGINE_PATIENCE)
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
            continue  # it did what it could


def _withdraw() -> None:
    """Be nobody's concern: deaf to signals, in no directory, and with a name that tells what this is."""
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(signum, signal.SIG_IGN)
    os.chdir("/")
    try:
        # We have time until the parent is dead.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with open("/proc/self/comm", "w") as name:  # noqa: PTH123  # pathlib costs a megabyte
            name.write("lifecycle-guard")
    except (AttributeError, OSError):
        pass  # it can do without


def main(runtime: str, parent: str, first: str, second: str) -> None:
    """Guard ``parent``, whose notes are in the descriptors ``first`` and ``second``."""
    if len(runtime) != _RUNTIME_DIGITS or not set(runtime) <= set("0123456789abcdef"):
        sys.exit(f"{runtime!r} is no {_RUNTIME_DIGITS} hexadecimal digits; a weak cookie would kill strangers")
    _withdraw()
    watchman = Watchman(runtime.encode())
    watchman.wait(int(parent))
    watchman.read((int(first), int(second)))
    watchman.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
