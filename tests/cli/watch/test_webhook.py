"""The webhook of `lifecycle watch` says where it listens, and whom it lets in."""

from __future__ import annotations

import pytest

from lifecycle.cli.options import Address
from lifecycle.cli.watch.run import SpokenWebhook


@pytest.mark.parametrize(("secret_env", "hinted"), [(None, True), ("SECRET", False)], ids=["anybody", "signed"])
async def test_who_may_ask_without_a_signature_is_said(
    monkeypatch: pytest.MonkeyPatch, secret_env: str | None, *, hinted: bool
) -> None:
    monkeypatch.setenv("SECRET", "secret")
    said: list[str] = []
    async with SpokenWebhook(Address("127.0.0.1", 0), secret_env, say=said.append) as source:
        assert said[0].startswith(f"webhook at {source.url}")
        assert ("--secret-env NAME stops that" in said[0]) == hinted
