"""`LabelPolicy`: which values the labels of meters may have, so that no name of yours makes series without end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from lifecycle._text import shorten, utf8

__all__ = ["LABELS", "LabelPolicy", "policy_of"]

#: The labels that meters have, and what each says.
LABELS: Final[Mapping[str, str]] = {
    "queue": "Where the jobs of a queue are kept.",
    "child": "The name of a worker in its supervisor.",
    "error": "The type of an error.",
    "flow": "The name that a flow was defined with.",
    "function": "What a pool was asked to call.",
    "inbox": "The file of an inbox.",
    "lane": "The name of a lane.",
    "pattern": "The pattern of a route; never the topic that it matched.",
    "pool": "The name of a pool.",
    "source": "The name of a source.",
    "state": "How far something is.",
    "status": "The status of a worker.",
    "success": "``true`` or ``false``.",
    "supervisor": "The name of a supervisor.",
    "worker_type": "The kind of a worker: ``process``, ``task``, …",
}

_UNKNOWN, _OTHER = "unknown", "other"


@dataclass(frozen=True, slots=True)
class LabelPolicy:
    """Which values labels may have.

    A value that is empty is ``unknown``. One that is too long is cut and ends in ``…``. Where ``allow`` lists the
    values of a label, any other is ``other``; with ``strict``, what has it is not counted at all.

    Raises:
        ValueError: for a label that no meter has, and bounds that leave nothing.
        TypeError: for a list that is a text.
    """

    #: Label to its values; a label that is not here may have any.
    allow: Mapping[str, Collection[str]] = field(default_factory=dict[str, Collection[str]])
    strict: bool = False
    #: Characters of a value.
    max_length: int = 64
    #: How many series a meter may have; what comes later has ``other`` for all of its labels.
    max_series: int = 1000

    def __post_init__(self) -> None:
        for label, values in self.allow.items():
            if label not in LABELS:
                raise ValueError(f"allow={{{label!r}: …}} is about no label of a meter; there are {', '.join(LABELS)}")
            if isinstance(values, str):
                raise TypeError(f"allow={{{label!r}: {values!r}}} is one text; give the values in a list")
        for name, number in {"max_length": self.max_length, "max_series": self.max_series}.items():
            if number < 1:
                raise ValueError(f"{name}={number!r} leaves nothing; give 1 or more")

    def settle(self, label: str, value: object) -> str | None:
        """What is said for ``value``; None where it is not to be counted."""
        text = str(value).strip()
        if not text:
            return _UNKNOWN
        allowed = self.allow.get(label)
        if allowed is not None and text not in allowed:
            return None if self.strict else _OTHER
        return utf8(shorten(text, self.max_length))

    def settle_all(self, labels: tuple[str, ...], values: tuple[object, ...]) -> tuple[str, ...] | None:
        """The same for the labels of one series."""
        settled = [self.settle(label, value) for label, value in zip(labels, values, strict=True)]
        kept = tuple(text for text in settled if text is not None)
        return kept if len(kept) == len(labels) else None

    def fold(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Where those go that are too many."""
        return (_OTHER,) * len(labels)


def policy_of(labels: LabelPolicy | None) -> LabelPolicy:
    """What is to hold where ``labels`` was given, or nothing was.

    Raises:
        TypeError: for what is no policy.
    """
    if labels is None:
        return LabelPolicy()
    if not isinstance(labels, LabelPolicy):
        raise TypeError(f"labels={labels!r} is no policy; give LabelPolicy(…)")
    return labels
