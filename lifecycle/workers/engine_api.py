"""One container at its engine: what is asked for, and how the answers read here.

The order of the calls is that of ``docker run``: whoever listens before the start misses nothing, and Podman forgets
the exit code of a container that somebody attaches to once it has ended. Nor does the engine remove it by itself:
Podman may lose the exit code then, and nobody could say whether it ran out of memory.
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from lifecycle._util import reason_of
from lifecycle.workers.engines import client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from aiodocker import Docker
    from aiodocker.stream import Stream as Attached

    from lifecycle.workers.output import Stream

__all__ = ["Container", "Ended", "Lost", "Refused"]

#: Seconds for an answer that takes the engine no work to speak of.
_PATIENCE: Final = 10.0
#: Seconds for a removal, which has a file system to clear away.
_REMOVAL: Final = 60.0
#: What aiodocker has in place of a status where there was no answer.
_NO_ANSWER: Final = 900
_STDERR: Final = 2


class Refused(Exception):
    """The engine said no; its words."""


class Lost(Exception):
    """The engine did not answer; why."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a container, as the engine tells it."""

    #: Of its first process; 128 + n where that died of signal n, and where it says so itself.
    code: int
    out_of_memory: bool = False


class Container:
    """The container ``name`` of one client; `close` it at the end, whatever came of it."""

    def __init__(self, docker: Docker, name: str) -> None:
        self.name = name
        # Its types have holes.
        self._docker: Any = docker
        self._there = self._docker.containers.container(name)
        self._attached: Attached | None = None

    @classmethod
    async def at(cls, address: str, name: str) -> Container:
        """One that is to be called ``name``, at the engine at ``address``. Raises WorkerFailed if there is none."""
        return cls(await client(address), name)

    async def create(self, config: Mapping[str, Any]) -> None:
        """Create it, from an image that is pulled first if it is not there, and listen to what it will write.

        Raises:
            Refused: for an image that is not to be had, a name that is taken, …
            Lost: if the engine goes away.
        """
        async with _answers(None):
            if not await self._has_image(config["Image"]):
                await self._pull(config["Image"])
            await _settled(self._docker.containers.create(dict(config), name=self.name))
            attached: Attached = self._there.attach(stdout=True, stderr=True)
            # Already now: it is to be closed however far it comes.
            self._attached = attached
            await attached.__aenter__()

    async def start(self) -> None:
        """Start it. Raises Refused, for instance where its command does not exist, or Lost."""
        async with _answers(None):
            await self._there.start()

    async def stop_signal(self) -> int:
        """The signal by which its image wants to be stopped."""
        async with _answers():
            found = await self._there.show()
        return _number(found["Config"].get("StopSignal"))

    async def read(self, feed: Callable[[bytes, Stream], None]) -> None:
        """Give ``feed`` what it writes, until its end."""
        assert self._attached is not None, "it was created"
        with suppress(Lost):
            async with _answers(None):
                while message := await self._attached.read_out():
                    if message.data:
                        feed(message.data, "stderr" if message.stream == _STDERR else "stdout")

    async def ended(self) -> Ended:
        """Wait for its end, however long that takes. Raises Refused if it is gone by then, or Lost."""
        async with _answers(None):
            await self._there.wait()
        # Of one that was removed meanwhile, Podman says that it ended well.
        async with _answers():
            state = (await self._there.show())["State"]
        return Ended(state["ExitCode"], state.get("OOMKilled", False))

    async def kill(self, signum: int) -> None:
        """Send its first process a signal. Raises Refused, also where it does not run, or Lost."""
        async with _answers():
            await self._there.kill(signal=str(signum))

    async def pause(self) -> None:
        """Freeze it. Raises Refused where the engine cannot, or Lost."""
        async with _answers():
            await _settled(self._there.pause())

    async def unpause(self) -> None:
        """Let it go on. Raises Refused or Lost."""
        async with _answers():
            await _settled(self._there.unpause())

    async def remove(self) -> None:
        """Kill it if it lives, and have nothing left of it; nothing happens if it is gone. Raises Refused or Lost."""
        await self._remove(self.name)

    async def remove_labelled(self, label: str, value: str) -> None:
        """Remove what has this label, of former lives. Raises Refused or Lost."""
        async with _answers():
            filters = json.dumps({"label": [f"{label}={value}"]})
            found = await self._docker.containers.list(all=True, filters=filters)
        for each in found:
            await self._remove(each.id)

    async def close(self) -> None:
        """Let go of the engine."""
        if self._attached is not None:
            # aiodocker asserts that there still is a connection, which the engine may have closed.
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
        except Refused as error:
            raise Refused(f"there is no image {image!r}, and it cannot be pulled: {error}") from error

    async def _remove(self, name: str) -> None:
        from aiodocker import DockerError

        async with _answers(_REMOVAL):
            try:
                await self._docker.containers.container(name).delete(force=True, v=True)
            except DockerError as error:
                # It is gone, or somebody is at it.
                if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                    raise


@asynccontextmanager
async def _answers(patience: float | None = _PATIENCE) -> AsyncGenerator[None]:
    """What the engine answers within ``patience`` seconds, and if it is an error, in our words."""
    from aiodocker import DockerError
    from aiohttp import ClientError

    try:
        async with asyncio.timeout(patience):
            yield
    except DockerError as error:
        if error.status == _NO_ANSWER:
            raise Lost(error.message) from error
        raise Refused(error.message) from error
    except (ClientError, OSError) as error:
        raise Lost(reason_of(error)) from error


async def _settled(request: Awaitable[object]) -> None:
    """Wait for ``request``, also when cancelled: what the engine has begun can only be undone when it is done."""
    asked = asyncio.ensure_future(request)
    try:
        await asyncio.shield(asked)
    except asyncio.CancelledError:
        await asyncio.wait({asked}, timeout=_PATIENCE)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        raise


def _number(stop_signal: str | None) -> int:
    """The number of a signal that an image names: "SIGINT", "INT", "2" or, in most cases, nothing."""
    text = (stop_signal or "").upper().removeprefix("SIG")
    if text.isascii() and text.isdigit():
        return int(text)
    # Others, such as RTMIN+3, are not the same number everywhere.
    return int(getattr(signal, f"SIG{text}", signal.SIGTERM))
