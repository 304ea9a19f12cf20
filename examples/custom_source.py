"""Two custom sources: an async generator, and a `Source` that keeps a resource open.

Try it: ``python examples/custom_source.py ls -l``. Each line that the command prints is an event. If its handler
rejects a line, the source prints the error: awaiting the `Delivery` returns the handler's result or raises its error.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from lifecycle import Event, Router, run, shutdown
from lifecycle.control import Emit
from lifecycle.sources import Source


async def countdown() -> AsyncIterator[Event]:
    """Yield events. This is the simplest source. It ends when the generator returns."""
    for number in (3, 2, 1):
        yield Event("countdown", number)


class CommandOutput(Source):
    """The output lines of a command.

    If the command cannot be started, `run` raises `SourceFailed` with the source's name.
    """

    def __init__(self, *argv: str) -> None:
        self.name = f"output of {argv[0]}"
        self.argv = argv

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(*self.argv, stdout=asyncio.subprocess.PIPE)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        with suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()

    async def run(self, emit: Emit) -> None:
        """Wait for space in the lane before each line, so that a slow handler slows the command down."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            delivery = await emit(Event("line/new", line.decode(errors="replace").rstrip()))
            try:
                await delivery
            except Exception as error:  # noqa: BLE001  # whatever the handler raised
                print("refused:", error, flush=True)
        await self.process.wait()
        await emit(Event("line/end"))


def main(*argv: str) -> None:
    """Print the countdown and the command's lines, then exit."""
    router = Router()
    router.add_source(countdown)
    router.add_source(CommandOutput(*argv))
    router.handle("countdown", lambda event: print(event.data, flush=True))
    router.handle("line/end", lambda _: shutdown())

    @router.on("line/new")
    async def line(event: Event) -> None:
        if not event.data:
            raise ValueError("an empty line")
        print("line:", event.data, flush=True)

    run(router)


if __name__ == "__main__":
    main(*sys.argv[1:] or ["ls", "-l"])
