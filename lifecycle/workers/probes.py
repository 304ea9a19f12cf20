"""The ``probe=`` of a `Spec`: a health check that is described by a text, for any kind of child."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
from typing import TYPE_CHECKING, Protocol

from lifecycle._async import shield
from lifecycle.workers import _posix
from lifecycle.workers.base import check_env
from lifecycle.workers.containment.containment import Containment, Level
from lifecycle.workers.containment.guard import why_no_guard
from lifecycle.workers.model import ProbeResult
from lifecycle.workers.readiness import Port, Url
from lifecycle.workers.stdio import Command, fault_of, popen

if TYPE_CHECKING:
    from lifecycle.workers.specs import Spec

__all__ = ["Probe", "answer_of", "parse_probe"]


class Probe(Protocol):
    """A health check. Its text completes "it did not …"."""

    #: The reason why the last check failed, if known.
    reason: str

    async def check(self) -> bool:
        """Return whether the child is healthy."""
        ...


def parse_probe(text: str, spec: Spec) -> Probe:
    """Return the probe that ``text`` describes. A command has the environment, the directory and the user of ``spec``.

    Raises:
        ValueError: if ``text`` describes no probe.
    """
    try:
        return _read(text, spec)
    except ValueError as error:
        raise ValueError(
            f"probe={text!r} of {spec.name!r} is not a probe ({error}); "
            "give 'port:N', 'http://…', 'https://…' or 'cmd:COMMAND'"
        ) from None


def _read(text: object, spec: Spec) -> Probe:
    match text.split(":", 1) if isinstance(text, str) else None:
        case ["port", number]:
            return Port(number)
        case ["http" | "https", _]:
            return Url(str(text))
        case ["cmd", line]:
            return CommandProbe(line, spec)
        case _:
            raise ValueError("unknown kind")


async def answer_of(probe: Probe) -> ProbeResult:
    """Check once, and return the result with the reason of a failure."""
    if await probe.check():
        return ProbeResult(healthy=True)
    return ProbeResult(healthy=False, message=f"did not {probe}{probe.reason and f': {probe.reason}'}")


class CommandProbe:
    """A probe that is good if a command exits with status 0. Its output is discarded, and no shell reads it.

    Raises:
        ValueError: if the command cannot be split into words.
    """

    reason: str = ""

    def __init__(self, line: str, spec: Spec) -> None:
        argv = shlex.split(line)
        if not argv or "\0" in line:
            raise ValueError("the command is empty or has a NUL")
        self._name = spec.name
        self._argv = argv
        self._cwd = None if spec.cwd is None else os.fspath(spec.cwd)
        self._account = None if spec.user is None else _posix.find_account(spec.user)
        self._env = {**(self._account.variables if self._account else {}), **(spec.env or {})}
        for key, value in self._env.items():
            check_env(key, value)

    def __str__(self) -> str:
        return f"exit with status 0 ({shlex.join(self._argv)})"

    async def check(self) -> bool:
        """Run the command. If the caller is cancelled, the command is killed."""
        containment = Containment(self._name, Level.GROUP if why_no_guard() else Level.GUARD)
        command = Command(self._argv, {**os.environ, **self._env}, self._cwd, account=self._account)
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
            await shield(asyncio.ensure_future(_end(containment, pid)))
        self.reason = f"it exited with status {code}" if code is None or code >= 0 else f"signal {-code} killed it"
        return code == 0


def _spawn(command: Command) -> int:
    null = subprocess.DEVNULL
    return popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)


async def _end(containment: Containment, pid: int | None) -> None:
    """Kill what is left of the command."""
    if pid is not None:
        _posix.signal_group(pid, signal.SIGKILL)
        await _posix.process_end(pid)
        await containment.reap(pid)
    await containment.clear(started=pid is not None)
