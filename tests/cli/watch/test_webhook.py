"""The webhook of `lifecycle watch` says where it listens, and whom it lets in."""

from __future__ import annotations

import pytest

from lifecycle.cli.watch.webhook import SpokenWebhook
from lifecycle.sources.signatures import GitHub


@pytest.mark.parametrize(("verify", "hinted"), [(None, True), (GitHub("secret"), False)], ids=["anybody", "signed"])
async def test_who_may_ask_without_a_signature_is_said(verify: GitHub | None, *, hinted: bool) -> None:
    said: list[str] = []
    async with SpokenWebhook("127.0.0.1", 0, verify=verify, say=said.append) as source:
        assert said[0].startswith(f"webhook at {source.url}")
        assert ("--secret-env NAME stops that" in said[0]) == hinted
