"""A worker that runs a container in an engine with Docker's API, such as Docker or Podman.

`ContainerWorker` is the worker itself, while `EngineContainer` calls the engine and interprets its responses. The
functions at the end of this module find the engine's address. If this program is killed, the guard process in
`lifecycle.workers.containment` removes the container.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import signal
import socket
import stat
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from lifecycle._async import start_task
from lifecycle._util import needs_extra, reason_of
from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers import _posix
from lifecycle.workers.base import RESUME_ID, BaseWorker, check_env
from lifecycle.workers.containment.containment import Level
from lifecycle.workers.containment.guard import ContainerGuard
from lifecycle.workers.model import End, Status
from lifecycle.workers.stdio import Receiver, RecentLines

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from aiodocker import Docker
    from aiodocker.stream import Stream as Attached

    from lifecycle._durations import Duration
    from lifecycle.workers.model import WorkerState
    from lifecycle.workers.stdio import Output, Stream

__all__ = [
    "ContainerEnd",
    "ContainerWorker",
    "container_name",
    "engine_address",
    "failure_of",
    "signal_number",
]

_log = logging.getLogger("lifecycle.workers")

#: Seconds to wait for the remaining output once the container has exited.
_DRAIN: Final = 5.0
#: The labels that identify our containers in an engine.
_NAME_LABEL: Final = "lifecycle.worker"
_OWNER_LABEL: Final = "lifecycle.owner"
_RESUME_LABEL: Final = "lifecycle.resume_id"
#: Like shells, engines report the exit status of a process killed by a signal as this number plus the signal number.
_SIGNALLED: Final = 128
#: The time limit for requests that should be quick, in seconds.
_ANSWER: Final = 10.0
#: The time limit for removing a container, in seconds. Removal is slow because the engine deletes a file system.
_REMOVAL: Final = 60.0
#: The status that aiodocker reports if the engine did not respond.
_NO_ANSWER: Final = 900
_STDERR: Final = 2
#: Addresses of local engines start with this prefix.
_UNIX: Final = "unix://"
_SCHEMES: Final = (_UNIX, "tcp://", "http://", "https://", "npipe://")
#: Seconds to wait for the first response from an engine.
_PING: Final = 30.0


class ContainerWorker(BaseWorker):
    """A worker that creates, runs and removes a container.

    The worker controls Docker or Podman through the engine's socket. This requires the extra ``docker`` (aiodocker). If
    the engine does not have the image, the image is pulled. Stopping the worker sends the image's stop signal (usually
    SIGTERM) to the first process in the container. When the worker ends, the container is always removed, along with
    its anonymous volumes. If the engine is local and a guard is available (see `ProcessWorker`), the container is
    removed even if this program is killed. `suspend` freezes all processes in the container.

    Args:
        name: The worker's name, used in messages and states. The container has a unique name derived from it; see
            `container`.
        image: The container's image.
        command: The command and its arguments, which override the image's command.
        env: Environment variables in addition to those in the image. This program's own variables are not inherited.
        engine: The engine's address: ``"unix:///path/of/its.sock"``, just the path, or ``"tcp://host:port"``. The
            default is ``DOCKER_HOST`` if it is set, otherwise the first of these sockets that exists:
            ``/var/run/docker.sock``, Podman's socket for this user, and Podman's system-wide socket.
        stop_timeout: Seconds to wait after the stop signal before killing the container.
        output: A plain function to call in the event loop with each line of output, without its line ending, and the
            name of the stream, "stdout" or "stderr". If the function raises, the exception is logged. ``"inherit"``
            prints the lines to this program's own streams. By default, lines are logged to
            ``lifecycle.workers.<name>`` at level INFO, or printed if no handler of the log shows that level.

    Raises:
        ValueError: if a setting is invalid. The message names the setting.
        TypeError: if the command does not consist of strings, or ``output`` is invalid.
    """

    kind: ClassVar[str] = "container"
    _stop_signal: int | None = signal.SIGTERM
    # A busy engine can take a while to report that a container was killed, and to remove the container.
    _last_wait: ClassVar[float] = 10.0

    def __init__(  # public API; each option has a default
        self,
        name: str,
        image: str,
        *,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        engine: str | None = None,
        stop_timeout: Duration = 10.0,
        output: Output | Literal["inherit"] | None = None,
    ) -> None:
        super().__init__(name, stop_timeout=stop_timeout)
        if not image:
            raise ValueError(f"{name!r} has no image; pass one, as in ContainerWorker({name!r}, 'redis:7')")
        self._image = image
        self._command = None if command is None else _words(name, command)
        self._engine = None if engine is None else _check_address(engine)
        self._receiver = Receiver(output, name)
        #: The last lines of the output.
        self.recent: RecentLines = RecentLines()
        self._receiver.listen(self._take_line)
        self._guard = ContainerGuard()
        self._level: Level | None = None
        self._at: EngineContainer | None = None
        self._address = ""
        self._changing = asyncio.Lock()
        self._paused = False
        self._killed = False
        for key, value in (env or {}).items():
            check_env(key, value)
            self._env[key] = value

    def _take_line(self, line: str) -> None:
        self.recent.add(line)

    @property
    def container(self) -> str | None:
        """The container's name, for commands such as ``docker exec``, or None if the worker has not been started."""
        return None if self._at is None else self._at.name

    def _state_as(self, name: str, **known: Any) -> WorkerState:
        """Return the worker's state, including what its supervisor adds and its containment level."""
        return replace(super()._state_as(name, **known), contain=self._level)

    async def suspend(self) -> None:
        """Freeze all processes in the container immediately. Idempotent.

        If the call is cancelled, the container keeps running.

        Raises:
            InvalidTransition: if the container is not running, or its engine cannot freeze it. Rootless Podman can
                freeze containers only with cgroups version 2.
        """
        async with self._changing:
            if self.status is Status.SUSPENDED:
                return
            at = self._at_engine(Status.RUNNING, "suspended")
            # Set this before pausing the container. If the worker is stopped in the meantime, it must unpause the
            # container, or the stop signal would not be delivered.
            self._paused = True
            try:
                await at.pause()
                self._machine.to(Status.SUSPENDED)
            except BaseException as error:
                await self._unpause(at)
                self._raise_if_refused("suspended", error)
                raise

    async def resume(self) -> None:
        """Unfreeze the container. Idempotent.

        If the call is cancelled, the container stays suspended.

        Raises:
            InvalidTransition: if the container is neither suspended nor running, or its engine cannot unfreeze it.
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
                    with suppress(EngineRefused, EngineLost):
                        await at.pause()
                self._raise_if_refused("resumed", error)
                raise

    def _at_engine(self, status: Status, change: str) -> EngineContainer:
        if self._at is None or self.status is not status:
            raise InvalidTransition(f"{self.name!r} is {self.status} and cannot be {change}; it must be {status}")
        return self._at

    def _raise_if_refused(self, change: str, error: BaseException) -> None:
        if isinstance(error, EngineRefused | EngineLost):
            raise InvalidTransition(f"{self.name!r} cannot be {change}: its engine reported: {error}") from error

    # -- start and end -----------------------------------------------------------------------------------------------

    async def _launch(self) -> Awaitable[End]:
        try:
            self._address = engine_address(self._engine)
            at = self._at = await EngineContainer.at(self._address, container_name(self.name))
        except WorkerFailed as error:
            raise WorkerFailed(f"{self.name!r} cannot start: {error}") from error
        try:
            await self._set_up(at)
        except BaseException as error:
            await self._clear(at)
            if isinstance(error, EngineRefused | EngineLost):
                raise WorkerFailed(f"{self.name!r} cannot start: the engine at {self._address}: {error}") from error
            raise
        return self._watch(at)

    async def _set_up(self, at: EngineContainer) -> None:
        guarded = self._guard.add(at.name, _socket_of(self._address))
        self._level = Level.GUARD if guarded else Level.DETACHED
        if resume_id := self._env.get(RESUME_ID):
            # Remove containers from earlier runs that were left behind because the engine was not running at the time.
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
        assert self._at is not None, "it is set by the launch"
        self._killed = force
        if self._paused:
            await self._unpause(self._at)
        try:
            await self._at.kill(signal.SIGKILL if force else self._stop_signal or signal.SIGTERM)
        except (EngineRefused, EngineLost) as error:
            # Usually, this means that the container or the engine has just exited, which `_watch` reports.
            _log.debug("the engine could not send a signal to %r: %s", self.name, error)

    async def _unpause(self, at: EngineContainer) -> None:
        with suppress(EngineRefused, EngineLost):
            await at.unpause()
        self._paused = False

    async def _watch(self, at: EngineContainer) -> End:
        """Wait until the container has exited and its output has ended, and remove the container."""
        reading = start_task(at.read(self._receiver.feed), name=f"output of {self.name}")
        ended: ContainerEnd | None = None
        failure = ""
        try:
            ended = await at.ended()
            await asyncio.wait({reading}, timeout=_DRAIN)
        except EngineRefused as error:
            failure = f"{self.name!r} is gone: its container {at.name} was removed from outside: {error}"
        except EngineLost as error:
            failure = (
                f"the connection to the engine at {self._address} was lost ({error}); {self.name!r} was running. "
                f"Its container {at.name} may still run: check it when the engine is back"
            )
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            for stream in ("stdout", "stderr"):
                self._receiver.feed(b"", stream)
            removed = await self._clear(at)
        if ended is not None and ended.code != 0 and not removed and self.status is not Status.STOPPING:
            # If something else removes the container, the engine first kills it, and reports that it has exited.
            failure = (
                f"{self.name!r} is gone: its container {at.name} was removed from outside and ended with status "
                f"{ended.code}"
            )
        if ended is None or failure:
            return End(WorkerFailed(failure), stderr=self._receiver.tail())
        code = -signal.SIGKILL if self._killed and ended.code == _SIGNALLED + signal.SIGKILL else ended.code
        return End(failure_of(self.name, ended), code, self._receiver.tail())

    async def _clear(self, at: EngineContainer) -> bool:
        """Remove the container and close the connection. Return False if something else had already removed it."""
        try:
            return await at.remove()
        except (EngineRefused, EngineLost) as error:
            _log.warning("the container %s of %r could not be removed: %s", at.name, self.name, error)
            return True
        finally:
            await at.close()
            await self._guard.release()


def _words(name: str, command: Sequence[str]) -> list[str]:
    if isinstance(command, str | bytes) or not all(isinstance(word, str) for word in command):
        raise TypeError(f"command of {name!r} must be a list of strings, got {command!r}")
    return list(command)


def container_name(name: str) -> str:
    """Return a unique container name for the worker ``name``, using only characters that engines allow."""
    return f"{re.sub('[^a-zA-Z0-9_.-]+', '-', name).lstrip('_.-')[:40] or 'worker'}-{secrets.token_hex(6)}"


def failure_of(name: str, ended: ContainerEnd) -> WorkerFailed | None:
    """Return the error for a container that exited, or None for status 0.

    The caller ignores the error if the worker was asked to stop.
    """
    if ended.code == 0:
        return None
    if ended.out_of_memory:
        return WorkerFailed(f"{name!r} ran out of memory and was killed; it exited with status {ended.code}")
    if ended.code == _SIGNALLED + signal.SIGKILL:
        return WorkerFailed(
            f"{name!r} was killed by signal 9 (status {ended.code}), perhaps because the system ran out of memory"
        )
    if ended.code - _SIGNALLED in signal.valid_signals():
        signum = ended.code - _SIGNALLED
        return WorkerFailed(
            f"{name!r} exited with status {ended.code}, as if killed by signal {signum} ({_posix.signal_name(signum)})"
        )
    return WorkerFailed(f"{name!r} exited with status {ended.code}")


# -- a container at its engine -----------------------------------------------------------------------------------------


class EngineRefused(Exception):
    """Raised when the engine responds with an error. The message contains this error."""


class EngineLost(Exception):
    """Raised when the engine does not respond. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """How a container ended, as reported by the engine."""

    #: The exit status of the first process, or 128 + n if signal n killed it.
    code: int
    out_of_memory: bool = False


class EngineContainer:
    """The container ``name`` in an engine. Call `close` once you no longer need it.

    We make the same API calls as ``docker run``, in the same order. To receive all of the output, we attach before
    starting the container. Attaching later could also lose the exit code, because Podman forgets it when a client
    attaches after the container has exited. We don't let the engine remove the container automatically, because Podman
    could then lose the exit code and the out-of-memory flag.
    """

    def __init__(self, docker: Docker, name: str) -> None:
        self.name = name
        # Typed as Any because aiodocker's type hints are incomplete.
        self._docker: Any = docker
        self._there = self._docker.containers.container(name)
        self._attached: Attached | None = None

    @classmethod
    async def at(cls, address: str, name: str) -> EngineContainer:
        """Return the container ``name`` for the engine at ``address``, without creating it yet. Raises WorkerFailed."""
        return cls(await _client(address), name)

    async def create(self, config: Mapping[str, Any]) -> None:
        """Pull the image if it is missing, create the container, and attach to its output.

        Raises:
            EngineRefused: if, for example, the image cannot be pulled or the name is in use.
            EngineLost: if the engine does not respond.
        """
        async with _answers(None):
            if not await self._has_image(config["Image"]):
                await self._pull(config["Image"])
            await _settled(self._docker.containers.create(dict(config), name=self.name))
            attached: Attached = self._there.attach(stdout=True, stderr=True)
            # Set this before connecting, because `close` must also close a half-open connection.
            self._attached = attached
            await attached.__aenter__()

    async def start(self) -> None:
        """Start the container. Raises EngineLost, or EngineRefused if, for example, its command does not exist."""
        async with _answers(None):
            await self._there.start()

    async def stop_signal(self) -> int:
        """Return the stop signal that the image defines."""
        async with _answers():
            found = await self._there.show()
        return signal_number(found["Config"].get("StopSignal"))

    async def read(self, feed: Callable[[bytes, Stream], None]) -> None:
        """Pass all output to ``feed``."""
        assert self._attached is not None, "create() sets it"
        with suppress(EngineLost):
            async with _answers(None):
                while message := await self._attached.read_out():
                    if message.data:
                        feed(message.data, "stderr" if message.stream == _STDERR else "stdout")

    async def ended(self) -> ContainerEnd:
        """Wait until the container exits, without a timeout. Raises EngineLost, or EngineRefused if it was removed."""
        async with _answers(None):
            await self._there.wait()
        # The result of the wait is unreliable, because Podman reports status 0 if the container is removed in the
        # meantime.
        async with _answers():
            state = (await self._there.show())["State"]
        return ContainerEnd(state["ExitCode"], state.get("OOMKilled", False))

    async def kill(self, signum: int) -> None:
        """Send a signal to the first process. Raises EngineRefused or EngineLost."""
        async with _answers():
            await self._there.kill(signal=str(signum))

    async def pause(self) -> None:
        """Freeze the container. Raises EngineLost, or EngineRefused if the engine does not support this."""
        async with _answers():
            await _settled(self._there.pause())

    async def unpause(self) -> None:
        """Unfreeze the container. Raises EngineRefused or EngineLost."""
        async with _answers():
            await _settled(self._there.unpause())

    async def remove(self) -> bool:
        """Kill the container if necessary, and remove it. Return False if another client is removing or has removed it.

        Raises:
            EngineRefused, EngineLost: if the container was not removed.
        """
        return await self._remove(self.name)

    async def remove_labelled(self, label: str, value: str) -> None:
        """Remove containers from earlier runs that have this label. Raises EngineRefused or EngineLost."""
        async with _answers():
            filters = json.dumps({"label": [f"{label}={value}"]})
            found = await self._docker.containers.list(all=True, filters=filters)
        for each in found:
            await self._remove(each.id)

    async def close(self) -> None:
        """Close the connection to the engine."""
        if self._attached is not None:
            # aiodocker asserts that the connection is still open, even though the engine may have closed it.
            with suppress(AssertionError):
                await self._attached.close()
        await self._docker.close()

    async def _has_image(self, image: str) -> bool:
        from aiodocker import DockerError

        try:
            await self._docker.images.inspect(image)
        except DockerError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    async def _pull(self, image: str) -> None:
        try:
            async with _answers(None):
                await self._docker.images.pull(image)
        except EngineRefused as error:
            raise EngineRefused(f"the image {image!r} does not exist and cannot be pulled: {error}") from error

    async def _remove(self, name: str) -> bool:
        from aiodocker import DockerError

        async with _answers(_REMOVAL):
            try:
                await self._docker.containers.container(name).delete(force=True, v=True)
            except DockerError as error:
                if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                    raise
                return False
        return True


@asynccontextmanager
async def _answers(timeout: float | None = _ANSWER) -> AsyncGenerator[None]:
    """Translate errors from the engine, and limit its response time to ``timeout`` seconds."""
    from aiodocker import DockerError
    from aiohttp import ClientError

    try:
        async with asyncio.timeout(timeout):
            yield
    except DockerError as error:
        if error.status == _NO_ANSWER:
            raise EngineLost(error.message) from error
        raise EngineRefused(error.message) from error
    except (ClientError, OSError) as error:
        raise EngineLost(reason_of(error)) from error


async def _settled(request: Awaitable[object]) -> None:
    """Wait for ``request`` even if cancelled, because an operation can only be undone once it has completed."""
    asked = asyncio.ensure_future(request)
    try:
        await asyncio.shield(asked)
    except asyncio.CancelledError:
        await asyncio.wait({asked}, timeout=_ANSWER)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        raise


def signal_number(stop_signal: str | None) -> int:
    """Return the number of a stop signal, such as ``"SIGINT"``, ``"INT"`` or ``"2"``. None means SIGTERM."""
    text = (stop_signal or "").upper().removeprefix("SIG")
    if text.isascii() and text.isdigit():
        return int(text)
    # Fall back to SIGTERM for other names, such as RTMIN+3, which differ between systems.
    return int(getattr(signal, f"SIG{text}", signal.SIGTERM))


# -- finding the engine -----------------------------------------------------------------------------------------------


def _check_address(address: str, setting: str = "engine") -> str:
    """Return ``address``, the value of ``setting``, as a URL. Raises ValueError.

    A plain path is treated as the address of a socket.
    """
    if address.startswith("/"):
        return _UNIX + address
    scheme = next((each for each in _SCHEMES if address.startswith(each)), None)
    if scheme is None or address == scheme:
        raise ValueError(
            f"{setting} must be an address such as 'unix:///path/of/its.sock' or 'tcp://host:port', got {address!r}"
        )
    return address


def engine_address(engine: str | None) -> str:
    """Return the engine's address: ``engine`` if set, otherwise ``DOCKER_HOST`` or the first socket that exists.

    Raises:
        WorkerFailed: if no engine was found. The message lists the sockets that were tried.
    """
    if engine is None and (address := os.environ.get("DOCKER_HOST")):
        try:
            engine = _check_address(address, "DOCKER_HOST")
        except ValueError as error:
            raise WorkerFailed(str(error)) from error
    if engine is not None and _socket_of(engine) is None:
        return engine
    paths = _sockets() if engine is None else [engine.removeprefix(_UNIX)]
    for path in paths:
        if _is_socket(path):
            return _UNIX + path
    raise WorkerFailed(
        f"no engine socket exists at {', '.join(paths)}; start Docker or `podman system service`, or set a different "
        "address with engine='unix:///path/of/its.sock' or DOCKER_HOST (the extra 'docker' is also required)"
    )


def _socket_of(address: str) -> str | None:
    """Return the path to the engine's socket, or None if the engine is not on this machine."""
    return address.removeprefix(_UNIX) if address.startswith(_UNIX) else None


async def _client(address: str) -> Docker:
    """Return a client connected to the engine at ``address``. The caller must close it.

    Raises:
        WorkerFailed: if aiodocker is not installed, or the engine does not respond.
    """
    try:
        from aiodocker import Docker
    except ImportError as error:
        raise WorkerFailed(needs_extra("a container worker", "aiodocker", "docker")) from error
    from aiohttp import ClientError

    docker = Docker(address)
    try:
        docker.api_version = await _api_version(docker)
    except BaseException as error:
        await docker.close()
        if isinstance(error, OSError | ClientError):
            raise WorkerFailed(
                f"the engine at {address} does not respond ({reason_of(error)}); "
                "check that it is running and that this user may connect to it"
            ) from error
        raise
    return docker


async def _api_version(docker: Docker) -> str:
    """Return the engine's API version. In Podman, a ping is much faster than querying all information."""
    async with asyncio.timeout(_PING), docker.session.get(f"{docker.docker_host}/_ping") as answer:
        answer.raise_for_status()
        version = answer.headers.get("Api-Version")
    return f"v{version}" if version else docker.api_version


def _sockets() -> list[str]:
    """Return the possible engine sockets, in the order to try them."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = [f"{runtime}/podman/podman.sock"] if runtime else []
    return ["/var/run/docker.sock", *own, "/run/podman/podman.sock"]


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except OSError:
        return False
