"""Replies from commands, sent to the prompt or to an external caller."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from lifecycle.control.deliveries import current
from lifecycle.errors import Dropped

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.control import Delivery

__all__ = ["Answer", "current_answer", "refused", "reply", "say"]

#: The maximum length of an answer in characters. The rest is cut off.
_LONGEST = 100_000


class Answer:
    """The replies to an external command. ``delivery`` is the command's delivery, if it went through a lane.

    Events caused by the command cannot add replies.
    """

    def __init__(self, delivery: Delivery | None) -> None:
        self.delivery = delivery
        self._text = ""

    @property
    def text(self) -> str | None:
        """The replies, cut to the maximum length, or None if there were none."""
        return self._text.rstrip("\n")[:_LONGEST] or None

    def add(self, text: str) -> None:
        """Add ``text`` as a line."""
        if len(self._text) < _LONGEST:
            self._text += f"{text}\n"


#: The answer to the current command. Check its delivery before use, because the answer may outlive it.
current_answer: ContextVar[Answer | None] = ContextVar("lifecycle_answer", default=None)


def say(text: str) -> None:
    """Print ``text``."""
    print(text, flush=True)  # noqa: T201  # printing is its purpose


def reply(text: str, otherwise: Callable[[str], object] = say) -> None:
    """Send ``text`` to the command's external caller, or pass it to ``otherwise`` if there is no external caller."""
    answer = current_answer.get()
    # Events caused by the command inherit its context, but must not reply to its caller.
    (otherwise if answer is None or answer.delivery is not current.get() else answer.add)(text)


def refused(text: str) -> Dropped:
    """Reply with the reason for a refusal. The event is counted as dropped, because a refusal is not a failure."""
    reply(text)
    return Dropped(text)
