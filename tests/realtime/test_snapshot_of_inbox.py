"""An inbox in a snapshot: the messages that wait in its file, and its dead letters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp

from lifecycle import Router, lifetime
from lifecycle.observe import nodes, snapshot, watch
from lifecycle.sources import Inbox, WebhookSource
from lifecycle.testing import running

if TYPE_CHECKING:
    from pathlib import Path

    from lifecycle import WebhookEvent


async def test_a_snapshot_has_the_numbers_of_waiting_and_dead_messages(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def handle(event: WebhookEvent) -> None:
        if event.text() == "bad":
            raise ValueError("no")
        await release.wait()

    router, path = Router(), tmp_path / "inbox.db"
    source = WebhookSource(port=0, inbox=Inbox(path, max_attempts=1))
    router.handle("webhook/**", handle)
    router.add_source(source)
    async with lifetime(signals=False), running(router), aiohttp.ClientSession() as client, watch() as updates:
        for body in ("bad", "good"):
            async with client.post(f"{source.url}/", data=body.encode()) as answer:
                assert answer.status == 202
        async with asyncio.timeout(30):
            async for update in updates:
                [inbox] = update.snapshot.inboxes
                if inbox.depths == {"waiting": 0, "under_way": 1, "dead": 1}:
                    break
        assert inbox.details == {"delivers": True, "suspended": False}
        assert nodes(snapshot())[f"inbox:{path}"]["kind"] == "inbox"
        release.set()
        async with asyncio.timeout(30):
            async for update in updates:
                if update.snapshot.inboxes[0].depths == {"waiting": 0, "under_way": 0, "dead": 1}:
                    break
