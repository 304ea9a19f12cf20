"""Parses and runs the health check that a child's ``probe=`` setting describes, for any kind of child."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from dataclasses import replace
from typing import Protocol

from lifecycle._async import shield, start_task
from lifecycle.workers import _posix
from lifecycle.workers.containment.containment import Containment, Level
from lifecycle.workers.containment.guard import why_no_guard
from lifecycle.workers.model import ProbeResult
from lifecycle.workers.process import ProcessWorker
from lifecycle.workers.readiness import Port, Url
from lifecycle.workers.stdio import Command, fault_of, popen

__all__ = ["Probe", "answer_of", "parse_probe"]


class Probe(Protocol):
    """A health check. Its ``str()`` completes the sentence "it did not …"."""

    #: Why the last check failed, if known.
    reason: str

    async def check(self, worker: object, /) -> bool:
        """Return whether ``worker`` is healthy."""
        ...


def parse_probe(text: str, name: str) -> Probe:
    """Return the probe that ``text`` describes, for the child ``name``.

    Raises:
        ValueError: if ``text`` does not describe a probe.
    """
    try:
        return _read(text, name)
    except ValueError as error:
        raise ValueError(
            f"{name!r}: probe must be 'port:N', 'http://…', 'https://…' or 'cmd:COMMAND', got {text!r} ({error})"
        ) from None


def _read(text: object, name: str) -> Probe:
    match text.split(":", 1) if isinstance(text, str) else None:
        case ["port", number]:
            return Port(number)
        case ["http" | "https", _]:
            return Url(str(text))
        case ["cmd", line]:
            return CommandProbe(name, line)
        case _:
            raise ValueError("unknown kind")


async def answer_of(probe: Probe, worker: object) -> ProbeResult:
    """Check ``worker`` once. Return the result, including the reason for a failure."""
    if await probe.check(worker):
        return ProbeResult(healthy=True)
    return ProbeResult(healthy=False, message=f"did not {probe}{probe.reason and f': {probe.reason}'}")


class CommandProbe:
    """A probe that succeeds if a command exits with status 0.

    The command runs with the same environment, working directory and user as the process being checked. It is not
    passed through a shell, and its output is discarded.

    Raises:
        ValueError: if the command cannot be split into words.
    """

    reason: str = ""

    def __init__(self, name: str, line: str) -> None:
        argv = shlex.split(line)
        if not argv or "\0" in line:
            raise ValueError("the command is empty or contains NUL")
        self._name = name
        self._argv = argv

    def __str__(self) -> str:
        return f"exit with status 0 ({shlex.join(self._argv)})"

    async def check(self, worker: object, /) -> bool:
        """Run the command for ``worker``. If the caller is cancelled, the command is killed."""
        containment = Containment(self._name, Level.GROUP if why_no_guard() else Level.GUARD)
        like = Command((), os.environ)
        if isinstance(worker, ProcessWorker):
            like = worker._command()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # same package
        command = replace(like, argv=self._argv, inherit=())
        pid: int | None = None
        try:
            command = await containment.prepare(command)
            pid = _spawn(command)
            await containment.attach(pid)
            await _posix.process_end(pid)
            code = _posix.exit_code(pid)
        except OSError as error:
            self.reason = fault_of(command, error)
            return False
        finally:
            await shield(start_task(_end(containment, pid)))
        self.reason = (
            f"it exited with status {code}" if code is None or code >= 0 else f"it was killed by signal {-code}"
        )
        return code == 0


def _spawn(command: Command) -> int:
    null = subprocess.DEVNULL
    return popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)


async def _end(containment: Containment, pid: int | None) -> None:
    """Kill all remaining processes of the command."""
    if pid is not None:
        _posix.signal_group(pid, signal.SIGKILL)
        await _posix.process_end(pid)
        await containment.reap(pid)
    await containment.clear(started=pid is not None)
