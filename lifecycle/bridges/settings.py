"""What a bridge was told, checked."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lifecycle.control.patterns import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lifecycle.backoff import Backoff

__all__ = ["Settings", "patterns_of"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}").fullmatch
_PREFIX = re.compile(r"(?=.{1,200}$)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*").fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one bridge.

    Raises:
        ValueError: for names that a server could not take, and figures that would deliver nothing.
    """

    stream: str
    prefix: str
    group: str
    subscribe: tuple[Pattern, ...]
    publish: tuple[Pattern, ...]
    max_in_flight: int
    ack_wait: float
    max_deliver: int
    backoff: Backoff
    sync: bool

    def __post_init__(self) -> None:
        for word, name in (("stream", self.stream), ("group", self.group)):
            if not _NAME(name):
                raise ValueError(f"{word}={name!r} is no name on a server; use letters, digits, - and _, at most 200")
        if not _PREFIX(self.prefix):
            raise ValueError(f"prefix={self.prefix!r} begins no subject; give words of letters, digits, - and _")
        if self.max_in_flight < 1 or self.max_deliver < 1:
            raise ValueError(
                f"max_in_flight={self.max_in_flight!r}, max_deliver={self.max_deliver!r} would deliver nothing; "
                "give 1 or more for both"
            )
        if not 1 <= self.ack_wait < math.inf:
            raise ValueError(f"ack_wait={self.ack_wait!r} is no time to wait for an answer; give a second or more")
        if not self.subscribe and not self.publish:
            raise ValueError("a bridge that neither subscribes nor publishes does nothing; give it patterns")

    def is_subscribed(self, topic: str) -> bool:
        """Whether the group wants events of ``topic``: the router's own rules, where a subject says less."""
        return any(pattern.matches(topic) for pattern in self.subscribe)


def patterns_of(word: str, given: Iterable[str | Pattern] | str | Pattern) -> tuple[Pattern, ...]:
    """Patterns from their texts; one may stand alone.

    Raises:
        InvalidPattern: for one that cannot be read.
        TypeError: for what is no pattern.
    """
    several = (given,) if isinstance(given, (str, Pattern)) else tuple(given)
    for each in several:
        if not isinstance(each, (str, Pattern)):
            raise TypeError(f"{word}={given!r}: {each!r} is no pattern; give texts such as 'deploy/**'")
    return tuple(each if isinstance(each, Pattern) else Pattern(each) for each in dict.fromkeys(several))
