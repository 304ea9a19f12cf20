"""Collect measurements from devices over TCP: ``python examples/gateway.py``, then ``nc 127.0.0.1 9100``.

A device sends lines such as ``7 temp 21.5``. Each line becomes an event with the topic ``device/7/temp``. The readings
of one device within five seconds are stored as one mean. Each device has its own window, and slow storage for one
device does not delay the others.
"""

import asyncio
import os

from lifecycle import Debounce, Event, Router, run
from lifecycle.control import Emit

SECONDS = float(os.environ.get("SECONDS", "5"))


class Lines:
    """A source that emits the lines of all its TCP clients."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def run(self, emit: Emit) -> None:
        """Listen until cancelled."""

        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async for line in reader:
                    await self.read(line.decode(errors="replace"), emit)
            finally:
                writer.close()

        async with await asyncio.start_server(client, "127.0.0.1", self.port) as server:
            await server.serve_forever()

    async def read(self, line: str, emit: Emit) -> None:
        """Emit an event for a line, or print the line if it is invalid."""
        try:
            device, kind, value = line.split()
            event = Event(f"device/{device}/{kind}", [float(value)])
        except ValueError:
            print("refused:", line.strip(), flush=True)
        else:
            await emit(event)


def device(event: Event) -> str:
    """Return the device, which is the key of its window and its lane."""
    return event.topic.split("/")[1]


def together(first: Event, second: Event) -> Event:
    """Merge two events of the same window."""
    return Event(first.topic, first.data + second.data)


router = Router("gateway")
WINDOW = Debounce(SECONDS, max_wait=SECONDS, merge=together, key=device)


@router.on("device/{name}/temp", debounce=WINDOW, lane=device, concurrency=10)
async def store(event: Event, name: str) -> None:
    """Store the mean of one device's readings in a window."""
    readings: list[float] = event.data
    print(f"device {name}: {sum(readings) / len(readings)} degrees, {len(readings)} readings", flush=True)


@router.on("device/{name}/{kind:**}")
def unknown(event: Event, name: str, kind: str) -> None:  # noqa: ARG001  # a handler gets the event first
    """Report a measurement that has no handler."""
    print("device", name, "has no measurement", kind, flush=True)


if __name__ == "__main__":
    router.add_source(Lines(int(os.environ.get("PORT", "9100"))))
    run(router)
