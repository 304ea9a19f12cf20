"""What a command says, and to whom: at the prompt, or to somebody who gave it from outside.

`Answer` collects for the one outside; it holds for the delivery of that one's command, and for none that this causes.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from lifecycle.control.deliveries import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.control import Delivery

__all__ = ["Answer", "asker", "reply", "say"]

#: Characters of an answer that are kept.
_LONGEST = 100_000


class Answer:
    """What is said to whoever asked from outside; ``delivery`` is that of the command, if it went through a lane."""

    def __init__(self, delivery: Delivery | None) -> None:
        self.delivery = delivery
        self._text = ""

    @property
    def text(self) -> str | None:
        """All that was said, None for nothing; the end of what is too long is missing."""
        return self._text.rstrip("\n")[:_LONGEST] or None

    def add(self, text: str) -> None:
        """Say ``text`` as a line."""
        if len(self._text) < _LONGEST:
            self._text += f"{text}\n"


#: Who gave the command that is being handled; read with care, for it outlives the delivery.
asker: ContextVar[Answer | None] = ContextVar("lifecycle_asker", default=None)


def say(text: str) -> None:
    """What everybody is to know: it is printed."""
    print(text, flush=True)  # noqa: T201  # to talk is its purpose


def reply(text: str, otherwise: Callable[[str], object] = say) -> None:
    """What only the one wants to know who asked: it is told whoever asked from outside, or said at the prompt."""
    answer = _asked()
    (otherwise if answer is None else answer.add)(text)


def _asked() -> Answer | None:
    """Who asked for what is being handled here, if it came from outside."""
    answer = asker.get()
    return answer if answer is not None and answer.delivery is current.get() else None
