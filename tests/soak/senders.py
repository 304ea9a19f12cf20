"""Webhook senders for all runs. They forge, truncate or repeat some requests.

Each sender tries again with the same id until a response arrives.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp

from tests.soak.webhooks import PATHS, SECRET

if TYPE_CHECKING:
    import random

    from tests.soak.attack_switch import AttackSwitch
    from tests.soak.history import History

__all__ = ["Senders"]

#: The number of senders.
_MANY = 6
_ACCEPTED, _REFUSED, _FORBIDDEN = 202, (429, 503), (401, 403)


class Senders:
    """Sends webhooks while attacks are on. `url` is the program's address, or empty while it is not listening."""

    def __init__(self, history: History, attack_switch: AttackSwitch, chance: random.Random) -> None:
        self._history, self._attack_switch, self._chance = history, attack_switch, chance
        self._numbers = count(1)
        self._url = ""
        self._listens = asyncio.Event()

    def listens(self, url: str) -> None:
        """Set the program's address, or an empty string while the program is not listening."""
        self._url = url
        self._listens.set() if url else self._listens.clear()

    async def run(self) -> None:
        """Send until cancelled."""
        async with aiohttp.ClientSession() as client, asyncio.TaskGroup() as group:
            for _ in range(_MANY):
                group.create_task(self._send_all(client))

    async def _send_all(self, client: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(self._chance.random() * 0.3)
            async with self._attack_switch.attacking():
                await self._listens.wait()
                number, path = next(self._numbers), self._chance.choice(PATHS)
                match self._chance.choices(("good", "forged", "torn", "twice"), (85, 5, 5, 5))[0]:
                    case "good":
                        await self._send(client, path, number)
                    case "forged":
                        await self._forge(client, path, number)
                    case "torn":
                        await self._tear(path, number)
                    case _:
                        await asyncio.gather(self._send(client, path, number), self._send(client, path, number))

    async def _send(self, client: aiohttp.ClientSession, path: str, number: int) -> None:
        """Send a request until a response arrives.

        A request without a response may have been accepted, so a later rejection proves nothing.
        """
        unanswered = False
        while True:
            await self._listens.wait()
            status = await self._post(client, path, number, _signature(number))
            if status == _ACCEPTED:
                self._history.accepted[path].add(number)
                return
            if status in _REFUSED:
                # A different attempt may still be in progress, and may be accepted.
                await asyncio.sleep(0.1)
            elif status is not None:
                self._history.wrong.append(f"the webhook {number} to {path} was answered with {status}")
                return
            unanswered |= status is None
            await asyncio.sleep(0.05)

    async def _forge(self, client: aiohttp.ClientSession, path: str, number: int) -> None:
        status = await self._post(client, path, number, _signature(number + 1))
        self._history.refused.add(number)
        if status not in (*_REFUSED, *_FORBIDDEN, None):
            self._history.wrong.append(f"the forged webhook {number} was answered with {status}")

    async def _post(self, client: aiohttp.ClientSession, path: str, number: int, signature: str) -> int | None:
        headers = {"X-Hub-Signature-256": signature, "X-GitHub-Delivery": f"number-{number}"}
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with client.post(f"{self._url}/{path}", data=str(number).encode(), headers=headers) as answer:
                return answer.status
        return None

    async def _tear(self, path: str, number: int) -> None:
        """Send half of a request, and never send the rest."""
        self._history.refused.add(number)
        address = urlsplit(self._url)
        with suppress(OSError):
            _, writer = await asyncio.open_connection(address.hostname, address.port)
            head = f"POST /{path} HTTP/1.1\r\nHost: x\r\nX-Hub-Signature-256: {_signature(number)}\r\n"
            writer.write(f"{head}Content-Length: {len(str(number)) + 1}\r\n\r\n{number}".encode())
            await writer.drain()
            await asyncio.sleep(self._chance.random() * 0.2)
            writer.close()


def _signature(number: int) -> str:
    return f"sha256={hmac.digest(SECRET.encode(), str(number).encode(), hashlib.sha256).hex()}"
