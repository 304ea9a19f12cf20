"""The control socket that the commands open for what they run, so that `lifecycle ctl` reaches it."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

    from lifecycle.cli.messages import Voice

__all__ = ["Steered", "named_after"]


class Steered:
    """A main for `run`: a `ControlSocket` called ``name``; one that cannot be opened is said, and nothing else."""

    #: For `run`.
    auxiliary: ClassVar[bool] = True

    def __init__(self, name: str, voice: Voice) -> None:
        self.name = name
        self._voice = voice
        # Whether it is open, or never will be.
        self._tried = asyncio.Event()

    async def run(self) -> None:
        """Be there until cancelled; `run` calls this."""
        if not hasattr(socket, "AF_UNIX"):
            self._tried.set()
            return
        from lifecycle.observe.control import ControlSocket

        try:
            async with ControlSocket(self.name):
                self._tried.set()
                await asyncio.Event().wait()
        except OSError as error:
            self._voice.warn(f"lifecycle ctl will not find this program: {error.strerror or error}")
            self._tried.set()

    async def wait_running(self) -> None:
        """Wait until it is known whether there is one."""
        await self._tried.wait()


def named_after(command: str, directory: Path) -> str:
    """A name for what ``command`` runs in ``directory``, of characters that need no quotes."""
    return f"{command}-{re.sub('[^A-Za-z0-9._-]+', '_', directory.name) or 'root'}"
