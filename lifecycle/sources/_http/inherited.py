"""Listening sockets that whoever started this process opened for it, as sd_listen_fds(3) has it.

``LISTEN_FDS`` says how many descriptors there are from 3 on, and ``LISTEN_PID`` whom they are for.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["addresses", "take"]

_FIRST: Final = 3

#: Digits of ``LISTEN_FDS``; nobody is handed a thousand.
_MOST_DIGITS: Final = 3

#: Who uses which descriptor; one whose socket is closed uses it no longer. Of the module, as descriptors are of the
#: process.
_users: Final[dict[int, socket.socket]] = {}


async def addresses(host: str, port: int) -> Collection[object]:
    """What an inherited socket for this host and port is bound to; nothing if there is none, or any port will do."""
    if port == 0 or not _handed():
        return ()
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        # To listen there fails as well, and says why.
        return ()
    return {where[:2] for *_, where in found}


def take(wanted: Collection[object]) -> socket.socket | None:
    """An inherited socket that is bound to one of ``wanted`` and not in use, or None; to close it gives it back.

    It is a duplicate, so that the descriptor is there for the next who takes it. Neither is inherited further.
    """
    for number in _handed() if wanted else ():
        if number not in _users or _users[number].fileno() == -1:
            taken = _duplicate(number)
            if taken is not None and _listens(taken) and _bound(taken) in wanted:
                os.set_inheritable(number, False)
                _users[number] = taken
                return taken
            if taken is not None:
                taken.close()
    return None


def _handed() -> range:
    """The descriptors that are meant for this very process, and not for the one that left us its environment."""
    number = os.environ.get("LISTEN_FDS", "")
    ours = os.environ.get("LISTEN_PID") == str(os.getpid())
    usable = ours and number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS
    return range(_FIRST, _FIRST + int(number)) if usable else range(0)


def _duplicate(number: int) -> socket.socket | None:
    with suppress(OSError):
        if stat.S_ISSOCK(os.fstat(number).st_mode):
            return socket.socket(fileno=os.dup(number))
    return None


def _listens(given: socket.socket) -> bool:
    return given.type == socket.SOCK_STREAM and bool(given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _bound(given: socket.socket) -> object:
    name = given.getsockname()
    return name if given.family == socket.AF_UNIX else name[:2]
