"""A listening socket that outlives the runs of the command: each is handed it, in the way of systemd.

Who connects while no run accepts waits in the socket's queue, so that nobody is refused. The command finds it as
descriptor 3, as sd_listen_fds(3) has it: ``LISTEN_FDS`` is 1, and ``LISTEN_PID`` its own number, which only who becomes
the command can know: a shell, for a moment.
"""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from lifecycle.cli.failures import CliError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from lifecycle.cli.values import Address

__all__ = ["Handover", "handover"]

#: Who waits to be accepted; the system may allow less (net.core.somaxconn).
_QUEUE: Final = 4096
_FIRST: Final = 3
#: Shells know only descriptors of one digit.
_LAST: Final = 9
_HAND_OVER: Final = 'LISTEN_FDS=1 LISTEN_PID=$$; export LISTEN_FDS LISTEN_PID; exec "$@"'


class Handover:
    """Of the socket ``listening`` to one run after the other."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening

    def __str__(self) -> str:
        host, port, *_ = self._listening.getsockname()
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def inherit(self) -> tuple[int]:
        """The descriptor that the command has to inherit."""
        return (self._listening.fileno(),)

    def wrapped(self, argv: Sequence[str]) -> tuple[str, ...]:
        """What becomes ``argv``, with the socket where that looks for it."""
        number = self._listening.fileno()
        move = f"exec {_FIRST}<&{number} {number}<&-; " if number != _FIRST else ""
        return ("/bin/sh", "-c", move + _HAND_OVER, "sh", *argv)


@contextmanager
def handover(address: Address | None) -> Generator[Handover | None]:
    """Listen at ``address``, if there is one.

    Raises:
        CliError: if that cannot be; the message says why.
    """
    if address is None:
        yield None
        return
    with _listen(address) as listening:
        if listening.fileno() > _LAST:
            raise CliError(
                f"--socket needs one of the descriptors {_FIRST} to {_LAST}, and whoever started this left all of them "
                f"open; close one, such as with {_LAST}<&- at the end of the line"
            )
        yield Handover(listening)


def _listen(address: Address) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family, backlog=_QUEUE)
    except OSError as error:
        raise CliError(
            f"--socket {address.host}:{address.port}: {_why(error)}; give an address of this machine and a "
            "port that is free (0: any)"
        ) from error


def _why(error: OSError) -> str:
    """Without the address, which Python puts behind it."""
    return (error.strerror or str(error)).partition(" (")[0]
