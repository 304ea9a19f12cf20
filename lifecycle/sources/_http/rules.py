"""What a webhook server goes by; set once, when its source is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lifecycle.sources.signatures.verifiers import Verify

__all__ = ["Limits", "Rules"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sender, and all senders together, may cost.

    Raises:
        ValueError: for a limit that would let nothing through.
    """

    #: Bytes of a request body; more is 413.
    body: int = 1_048_576
    #: Requests that wait for room in their lane at a time, an inbox's included, or with ``answer="handled"`` for their
    #: handler; more is 429. It bounds the memory for bodies as well.
    pending: int = 100
    #: ``(n, seconds)``: at most n requests in so many seconds from one address; more is 429.
    rate: tuple[int, float] | None = None
    #: Seconds for the headers of a request, from connecting or from the last answer; then the connection is closed.
    header_timeout: float = 10.0
    #: Seconds for the body; more is 408.
    body_timeout: float = 30.0
    #: Seconds that ``answer="handled"`` waits for the handler; then it is 504, and the handler goes on.
    answer_timeout: float = 10.0

    def __post_init__(self) -> None:
        for name in ("body", "pending", "header_timeout", "body_timeout", "answer_timeout"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}={value!r} would let nothing through; give a number above 0")
        if self.rate is not None:
            count, seconds = self.rate
            if count < 1 or not seconds > 0:
                raise ValueError(f"rate={self.rate!r} would let nothing through; give (requests, seconds)")


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
