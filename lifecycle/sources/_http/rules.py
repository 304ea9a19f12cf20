"""What a webhook server goes by; set once, when its source is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lifecycle.sources.signatures.verifiers import Verify
    from lifecycle.sources.webhook import Limits

__all__ = ["Rules"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a request must be like to be taken."""

    verify: Verify | None
    paths: frozenset[str] | None
    methods: tuple[str, ...]
    limits: Limits
    dedupe: float
    #: Whether the answer comes when the handler has ended, and says how.
    handled: bool
    #: The header without which ``verify`` refuses whatever the body is, if that is known.
    credential_header: str
    #: What a verified request without an id is known by when it is repeated, if anything.
    replay_key: Callable[[Mapping[str, str], bytes], str] | None
