"""A webhook that says where it listens once it does, as the port may have been any, and whom it lets in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.sources import WebhookSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from lifecycle.sources.signatures import Verifier

__all__ = ["SpokenWebhook"]


class SpokenWebhook(WebhookSource):
    """Calls ``say`` with its address as soon as it listens."""

    def __init__(self, host: str, port: int, *, verify: Verifier | None, say: Callable[[str], object]) -> None:
        super().__init__(host, port, verify=verify)
        self._say = say
        self._open = (
            "" if verify else "; any program or web page here may ask, signed or not: --secret-env NAME stops that"
        )

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._say(f"webhook at {self.url}{self._open}")
        return self
