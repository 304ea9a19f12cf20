"""A container run as a worker: created, followed and removed at an engine that speaks Docker's API.

What is asked of the engine is in `engine_api`, where it is found in `engines`, and who sees to the container when this
program is killed in `containment.holds`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import signal
import socket
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers import _platform
from lifecycle.workers.base import RESUME_ID, BaseWorker, check_env
from lifecycle.workers.containment.holds import Ward
from lifecycle.workers.engine_api import Container, Lost, Refused
from lifecycle.workers.engines import address_of, check_address, socket_of
from lifecycle.workers.model import End, Status
from lifecycle.workers.output import Receiver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from lifecycle.workers.engine_api import Ended
    from lifecycle.workers.model import WorkerState
    from lifecycle.workers.output import Output

__all__ = ["ContainerWorker"]

_log = logging.getLogger("lifecycle.workers")

#: Seconds for what is still on its way when the container has ended.
_DRAIN: Final = 5.0
#: What a container is labelled with, for those who look for it at the engine.
_NAME_LABEL: Final = "lifecycle.worker"
_OWNER_LABEL: Final = "lifecycle.owner"
_RESUME_LABEL: Final = "lifecycle.resume_id"
#: What an exit code is more than the number of a signal, where shells and engines tell of one.
_SIGNALLED: Final = 128


class ContainerWorker(BaseWorker):
    """A container, from its creation to its removal.

    It is run by Docker, or by Podman, through the engine's socket; aiodocker is needed, which the extra ``docker``
    brings. The image is pulled if the engine does not have it. A stop sends the signal that the image asks for
    (SIGTERM, in most cases) to the container's first process, which has ``stop_timeout`` seconds before it is killed.
    However it ends, the container is removed, with its anonymous volumes; where the engine is on this machine and
    there can be a guard (see `ProcessWorker`), also when this program is killed. `suspend` freezes all of its
    processes.

    Args:
        name: what it is called in messages and states. The container has a name of its own, made from this one:
            `container`.
        image: what it is made from.
        command: what it runs, a word each, in place of what the image says.
        env: what its environment has over the image's; it has nothing of ours.
        engine: where the engine is: ``"unix:///path/of/its.sock"``, or only the path, or ``"tcp://host:port"``. By
            default what ``DOCKER_HOST`` says, else ``/var/run/docker.sock``, else Podman's sockets, of this user or
            the system.
        stop_timeout: seconds that it has to stop, before it is killed.
        output: called with each line, without its end, and "stdout" or "stderr". By default lines go to the log
            ``lifecycle.workers.<name>`` at level INFO. It is called in the loop; if it raises, that is logged.

    Raises:
        ValueError: for settings that cannot work; the message names them.
        TypeError: for a command that is not made of words, or an ``output`` that is no plain function.
    """

    kind: ClassVar[str] = "container"
    _stop_signal: int | None = signal.SIGTERM
    # An engine under load takes its time to tell that something was killed, and to remove it.
    _last_wait: ClassVar[float] = 10.0

    def __init__(  # the names are promised; each has a default
        self,
        name: str,
        image: str,
        *,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        engine: str | None = None,
        stop_timeout: float = 10.0,
        output: Output | None = None,
    ) -> None:
        super().__init__(name, stop_timeout=stop_timeout)
        if not image:
            raise ValueError(f"{name!r} has no image; give what it is made from: ContainerWorker({name!r}, 'redis:7')")
        self._image = image
        self._command = None if command is None else _words(name, command)
        self._engine = None if engine is None else check_address(engine)
        self._receiver = Receiver(output, logging.getLogger(f"lifecycle.workers.{name}"))
        self._ward = Ward()
        self._at: Container | None = None
        self._address = ""
        self._changing = asyncio.Lock()
        self._paused = False
        self._killed = False
        for key, value in (env or {}).items():
            check_env(key, value)
            self._env[key] = value

    @property
    def container(self) -> str | None:
        """What the engine calls it, for ``docker exec`` and the like; None before it starts."""
        return None if self._at is None else self._at.name

    def _state_as(self, name: str, **known: Any) -> WorkerState:
        """Its state with what only its supervisor knows."""
        return replace(super()._state_as(name, **known), contain=self._ward.level)

    async def suspend(self) -> None:
        """Freeze all of its processes, wherever they are: nothing is drained. Nothing happens if it is suspended.

        Whoever gives up waiting, leaves it running.

        Raises:
            InvalidTransition: if it does not run, or its engine cannot: rootless Podman needs cgroups of version 2.
        """
        async with self._changing:
            if self.status is Status.SUSPENDED:
                return
            at = self._at_engine(Status.RUNNING, "suspended")
            # Already now: a stop that comes meanwhile has to let it go on, or it would not hear of it.
            self._paused = True
            try:
                await at.pause()
                self._machine.to(Status.SUSPENDED)
            except BaseException as error:
                await self._unpause(at)
                self._say_if_refused("suspended", error)
                raise

    async def resume(self) -> None:
        """Let it go on. Nothing happens if it runs.

        Whoever gives up waiting, leaves it suspended.

        Raises:
            InvalidTransition: if it is neither suspended nor running, or its engine cannot.
        """
        async with self._changing:
            if self.status is Status.RUNNING:
                return
            at = self._at_engine(Status.SUSPENDED, "resumed")
            try:
                await at.unpause()
                self._machine.to(Status.RUNNING)
                self._paused = False
            except BaseException as error:
                if self.status is Status.SUSPENDED:
                    with suppress(Refused, Lost):
                        await at.pause()
                self._say_if_refused("resumed", error)
                raise

    def _at_engine(self, status: Status, change: str) -> Container:
        if self._at is None or self.status is not status:
            raise InvalidTransition(f"{self.name!r} is {self.status} and cannot be {change}; it has to be {status}")
        return self._at

    def _say_if_refused(self, change: str, error: BaseException) -> None:
        if isinstance(error, Refused | Lost):
            raise InvalidTransition(f"{self.name!r} cannot be {change}: its engine says: {error}") from error

    # -- the life -----------------------------------------------------------------------------------------------

    async def _launch(self) -> Awaitable[End]:
        try:
            self._address = address_of(self._engine)
            at = self._at = await Container.at(self._address, _called(self.name))
        except WorkerFailed as error:
            raise WorkerFailed(f"{self.name!r} cannot start: {error}") from error
        try:
            await self._set_up(at)
        except BaseException as error:
            await self._clear(at)
            if isinstance(error, Refused | Lost):
                raise WorkerFailed(f"{self.name!r} cannot start: the engine at {self._address}: {error}") from error
            raise
        return self._watch(at)

    async def _set_up(self, at: Container) -> None:
        self._ward.take(at.name, socket_of(self._address))
        if resume_id := self._env.get(RESUME_ID):
            # Of a life before whose end we could not see to, since the engine was away.
            await at.remove_labelled(_RESUME_LABEL, resume_id)
        await at.create(self._config())
        self._stop_signal = await at.stop_signal()
        await at.start()

    def _config(self) -> dict[str, Any]:
        labels = {_NAME_LABEL: self.name, _OWNER_LABEL: f"{os.getpid()}@{socket.gethostname()}"}
        if resume_id := self._env.get(RESUME_ID):
            labels[_RESUME_LABEL] = resume_id
        command = {} if self._command is None else {"Cmd": self._command}
        env = [f"{name}={value}" for name, value in self._env.items()]
        return {
            "Image": self._image,
            "Env": env,
            "Labels": labels,
            "AttachStdout": True,
            "AttachStderr": True,
            **command,
        }

    async def _terminate(self, *, force: bool) -> None:
        assert self._at is not None, "what was launched is at an engine"
        self._killed = force
        if self._paused:
            await self._unpause(self._at)
        try:
            await self._at.kill(signal.SIGKILL if force else self._stop_signal or signal.SIGTERM)
        except (Refused, Lost) as error:
            # As a rule it has ended meanwhile, or the engine has; its life is the one to hear of either.
            _log.debug("the engine sends %r no signal: %s", self.name, error)

    async def _unpause(self, at: Container) -> None:
        with suppress(Refused, Lost):
            await at.unpause()
        self._paused = False

    async def _watch(self, at: Container) -> End:
        """The life of the container, to the end of its output and its removal."""
        reading = asyncio.create_task(at.read(self._receiver.feed), name=f"output of {self.name}")
        try:
            ended = await at.ended()
            await asyncio.wait({reading}, timeout=_DRAIN)
            return self._judged(ended)
        except Refused as error:
            return self._missed(f"{self.name!r} is gone, its container {at.name} was removed by somebody else: {error}")
        except Lost as error:
            return self._missed(
                f"the engine at {self._address} went away ({error}); {self.name!r} was running, and its container "
                f"{at.name} may live on: look for it when the engine is back"
            )
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            for stream in ("stdout", "stderr"):
                self._receiver.feed(b"", stream)
            await self._clear(at)

    def _judged(self, ended: Ended) -> End:
        code = -signal.SIGKILL if self._killed and ended.code == _SIGNALLED + signal.SIGKILL else ended.code
        return End(_verdict(self.name, ended), code, self._receiver.tail())

    def _missed(self, what: str) -> End:
        return End(WorkerFailed(what), stderr=self._receiver.tail())

    async def _clear(self, at: Container) -> None:
        """Have nothing left of it at the engine, and of the engine here."""
        try:
            await at.remove()
        except (Refused, Lost) as error:
            _log.warning("the container %s of %r could not be removed, and is left: %s", at.name, self.name, error)
        finally:
            await at.close()
            await self._ward.release()


def _words(name: str, command: Sequence[str]) -> list[str]:
    if isinstance(command, str | bytes) or not all(isinstance(word, str) for word in command):
        raise TypeError(f"command={command!r} of {name!r} is not made of words; give a list of strings")
    return list(command)


def _called(name: str) -> str:
    """A name for a container, which nobody else has: people recognise it, and engines accept it."""
    return f"{re.sub('[^a-zA-Z0-9_.-]+', '-', name).lstrip('_.-')[:40] or 'worker'}-{secrets.token_hex(6)}"


def _verdict(name: str, ended: Ended) -> WorkerFailed | None:
    """What is wrong with an end, were it not asked for."""
    if ended.code == 0:
        return None
    if ended.out_of_memory:
        return WorkerFailed(f"{name!r} ran out of memory and was killed; it ended with status {ended.code}")
    if ended.code == _SIGNALLED + signal.SIGKILL:
        return WorkerFailed(f"{name!r} was killed, as status {ended.code} tells (by signal 9), perhaps out of memory")
    if ended.code - _SIGNALLED in signal.valid_signals():
        signum = ended.code - _SIGNALLED
        return WorkerFailed(
            f"{name!r} ended with status {ended.code}, as of signal {signum} ({_platform.signal_name(signum)})"
        )
    return WorkerFailed(f"{name!r} exited with status {ended.code}")
