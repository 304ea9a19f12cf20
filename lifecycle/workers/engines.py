"""Where the engine of containers is, and a client for it: Docker's API, which Podman speaks as well.

`lifecycle.workers.containers` has the worker, `lifecycle.workers.engine_api` what it asks of the engine.
"""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle._util import reason_of
from lifecycle.errors import WorkerFailed

if TYPE_CHECKING:
    from aiodocker import Docker

__all__ = ["address_of", "check_address", "client", "socket_of"]

#: What the address of an engine on this machine begins with.
_UNIX: Final = "unix://"
_SCHEMES: Final = (_UNIX, "tcp://", "http://", "https://", "npipe://")
#: Seconds that an engine has to say that it is there.
_PATIENCE: Final = 30.0


def check_address(address: str, setting: str = "engine") -> str:
    """``address``, which stands in ``setting``, as a URL, if it can be one; a path is a socket's. Raises ValueError."""
    if address.startswith("/"):
        return _UNIX + address
    scheme = next((each for each in _SCHEMES if address.startswith(each)), None)
    if scheme is None or address == scheme:
        raise ValueError(
            f"{setting}={address!r} is no address of an engine; give 'unix:///path/of/its.sock' or 'tcp://host:port'"
        )
    return address


def address_of(engine: str | None) -> str:
    """Where to find it: at ``engine``, else at what ``DOCKER_HOST`` says, else at the first socket there is.

    Raises:
        WorkerFailed: if there is none; the message names the sockets that were looked for.
    """
    if engine is None and (told := os.environ.get("DOCKER_HOST")):
        try:
            engine = check_address(told, "DOCKER_HOST")
        except ValueError as error:
            raise WorkerFailed(str(error)) from error
    if engine is not None and socket_of(engine) is None:
        return engine
    paths = _sockets() if engine is None else [engine.removeprefix(_UNIX)]
    for path in paths:
        if _is_socket(path):
            return _UNIX + path
    raise WorkerFailed(
        f"there is no engine's socket at {', '.join(paths)}; a container worker needs the extra 'docker' of "
        "lifecycle-control, and Docker or `podman system service` running; engine='unix:///path/of/its.sock' or "
        "DOCKER_HOST says where"
    )


def socket_of(address: str) -> str | None:
    """The path of the engine's socket, if it is on this machine."""
    return address.removeprefix(_UNIX) if address.startswith(_UNIX) else None


async def client(address: str) -> Docker:
    """A client of the engine at ``address``, which has answered; whoever asked for it closes it.

    Raises:
        WorkerFailed: if aiodocker is not installed, or the engine does not answer.
    """
    try:
        from aiodocker import Docker
    except ImportError as error:
        raise WorkerFailed(
            "a container worker needs aiodocker; install the extra 'docker': pip install 'lifecycle-control[docker]'"
        ) from error
    from aiohttp import ClientError

    docker = Docker(address)
    try:
        docker.api_version = await _spoken_by(docker)
    except BaseException as error:
        await docker.close()
        if isinstance(error, OSError | ClientError):
            raise WorkerFailed(
                f"the engine at {address} does not answer ({reason_of(error)}); "
                "is it running, and may this user speak to it?"
            ) from error
        raise
    return docker


async def _spoken_by(docker: Docker) -> str:
    """The version of the API that the engine speaks; asked for its version in full, Podman takes its time."""
    async with asyncio.timeout(_PATIENCE), docker.session.get(f"{docker.docker_host}/_ping") as answer:
        answer.raise_for_status()
        version = answer.headers.get("Api-Version")
    return f"v{version}" if version else docker.api_version


def _sockets() -> list[str]:
    """Where engines listen, in the order in which they are tried."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = [f"{runtime}/podman/podman.sock"] if runtime else []
    return ["/var/run/docker.sock", *own, "/run/podman/podman.sock"]


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except OSError:
        return False
