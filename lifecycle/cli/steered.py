"""The control socket that the commands open for what they run, so that `lifecycle ctl` reaches it."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

from lifecycle.runtime.mains import Auxiliary

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from pathlib import Path

    from lifecycle.cli.messages import Voice

__all__ = ["Steered", "named_after"]


class Steered(Auxiliary):
    """A main for `run`: a `ControlSocket` called ``name``; one that cannot be opened is said, and nothing else."""

    def __init__(self, name: str, voice: Voice) -> None:
        super().__init__()
        self.name = name
        self._voice = voice

    async def _open(self, held: AsyncExitStack) -> None:
        if not hasattr(socket, "AF_UNIX"):
            return
        from lifecycle.observe.control import ControlSocket

        try:
            await held.enter_async_context(ControlSocket(self.name))
        except OSError as error:
            self._voice.warn(f"lifecycle ctl will not find this program: {error.strerror or error}")


def named_after(command: str, directory: Path) -> str:
    """A name for what ``command`` runs in ``directory``, of characters that need no quotes."""
    return f"{command}-{re.sub('[^A-Za-z0-9._-]+', '_', directory.name) or 'root'}"
