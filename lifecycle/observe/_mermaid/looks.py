"""What ``label`` and ``style`` ask for, and how each status looks unless they do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CLASSES", "Label", "Look", "Style"]

#: A heading, or a function from a record to what its node says; None from it: what it would say anyway.
Label: TypeAlias = "str | Callable[[Any], str | None]"
#: CSS by class, or a function from a record to its class; None from it: the one of its status.
Style: TypeAlias = "Mapping[str, str] | Callable[[Any], str | None]"

#: The look of each status. Both colours are always said: the page around may be light or dark.
CLASSES: Final[Mapping[str, str]] = {
    "created": "fill:#f8fafc,stroke:#94a3b8,color:#334155",
    "pending": "fill:#fef9c3,stroke:#ca8a04,color:#713f12,stroke-dasharray:5 3",
    "starting": "fill:#e0f2fe,stroke:#0284c7,color:#0c4a6e",
    "running": "fill:#dcfce7,stroke:#16a34a,color:#14532d",
    "suspended": "fill:#ede9fe,stroke:#7c3aed,color:#4c1d95",
    "stopping": "fill:#ffedd5,stroke:#ea580c,color:#7c2d12",
    "stopped": "fill:#e2e8f0,stroke:#64748b,color:#334155",
    "finished": "fill:#ccfbf1,stroke:#0d9488,color:#134e4a",
    "failed": "fill:#fee2e2,stroke:#dc2626,color:#7f1d1d,stroke-width:3px",
    "killed": "fill:#7f1d1d,stroke:#450a0a,color:#fef2f2,stroke-width:3px",
    # Over the look of its status.
    "unhealthy": "stroke:#dc2626,stroke-width:3px,stroke-dasharray:3 3",
    # The state of a state diagram that something is in.
    "present": "stroke-width:3px,font-weight:bold",
    # Around what belongs together.
    "frame": "fill:transparent,stroke:#94a3b8",
}

_DECLARATION: Final = re.compile(r"[a-z-]+:[-\w#%. ]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Look:
    """How one diagram looks."""

    heading: str | None
    _label: Callable[[Any], str | None] | None
    _css: Mapping[str, str]
    _class: Callable[[Any], str | None] | None

    @classmethod
    def of(cls, label: Label | None, style: Style | None) -> Look:
        """The look that was asked for.

        Raises:
            TypeError: for what is neither of the two that each may be.
            ValueError: for a class that is none, or CSS that a diagram cannot hold.
        """
        if not (label is None or isinstance(label, str) or callable(label)):
            raise TypeError(f"label={label!r}: give a heading, or a function from a record to what its node says")
        if not (style is None or isinstance(style, Mapping) or callable(style)):
            raise TypeError(
                f"style={style!r}: give a mapping from class to CSS, or a function from a record to a class"
            )
        css = cast("Mapping[str, str]", style if isinstance(style, Mapping) else {})
        return cls(
            heading=label if isinstance(label, str) else None,
            _label=None if isinstance(label, str) else label,
            _css={_known(name): _css(name, each) for name, each in css.items()},
            _class=None if isinstance(style, Mapping) else style,
        )

    def lines(self, record: Any, usual: Sequence[str]) -> Sequence[str]:
        """What the node of ``record`` says."""
        said = None if self._label is None else self._label(record)
        return usual if said is None else said.split("\n")

    def name(self, record: Any, usual: str) -> str:
        """The class of the node of ``record``."""
        chosen = None if self._class is None else self._class(record)
        return usual if chosen is None else _known(chosen)

    def definitions(self) -> list[str]:
        """Every class, whether or not a node has it: a diagram of tomorrow differs only where the program does."""
        return [f"classDef {name} {css}" for name, css in {**CLASSES, **self._css}.items()]


def _known(name: str) -> str:
    """``name``, if it is a class.

    Raises:
        ValueError: naming those that are.
    """
    if name not in CLASSES:
        raise ValueError(f"{name!r} is no class of a diagram; there are {', '.join(CLASSES)}")
    return str(name)


def _css(name: str, css: str) -> str:
    declarations = [each.strip() for each in re.split("[,;]", css) if each.strip()]
    if not declarations or not all(_DECLARATION.fullmatch(each) for each in declarations):
        raise ValueError(f"{css!r} of {name!r} is no CSS for a diagram; give it as 'fill:#fee2e2,stroke:#dc2626'")
    return ",".join(declarations)
