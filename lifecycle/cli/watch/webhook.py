"""The webhook of `lifecycle watch`, which says where it listens once it does, and whom it lets in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.cli.variables import secret_in
from lifecycle.sources import WebhookSource
from lifecycle.sources.signatures import GitHub

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from lifecycle.cli.values import Address

__all__ = ["SpokenWebhook"]


class SpokenWebhook(WebhookSource):
    """Calls ``say`` with its address as soon as it listens, which may be any port; ``secret_env`` is a variable's name.

    Raises:
        ConfigError: when that variable holds no secret.
    """

    def __init__(self, address: Address, secret_env: str | None, *, say: Callable[[str], object]) -> None:
        super().__init__(*address, verify=GitHub(secret_in(secret_env)) if secret_env else None)
        self._say = say
        self._open = (
            "" if secret_env else "; any program or web page here may ask, signed or not: --secret-env NAME stops that"
        )

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._say(f"webhook at {self.url}{self._open}")
        return self
