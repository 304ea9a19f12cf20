"""Styles for diagrams, and escaping of text, so that Mermaid shows any text unchanged.

A diagram is code, and the names in it are untrusted. Letters, digits and marks inside a word are left as they are.
Every other character is written as a numeric code (``#34;``), which Mermaid decodes after it has parsed its own syntax,
Markdown and HTML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from lifecycle._text import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["CLASSES", "Label", "Look", "Style", "escape", "indented", "label_line", "markdown", "quoted"]

#: A heading, or a function that returns the label of a record's node. None selects the default label.
Label: TypeAlias = "str | Callable[[Any], str | None]"
#: A mapping from class to CSS, or a function that returns a record's class. None selects the class of the
#: record's status.
Style: TypeAlias = "Mapping[str, str] | Callable[[Any], str | None]"

#: The style for each status. Each style sets the colours of the text and the fill, because the page may be light or
#: dark.
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
    # This style is applied on top of the status's style.
    "unhealthy": "stroke:#dc2626,stroke-width:3px,stroke-dasharray:3 3",
    # The current state in a state diagram.
    "present": "stroke-width:3px,font-weight:bold",
    # The frame around related nodes.
    "frame": "fill:transparent,stroke:#94a3b8",
}

_DECLARATION: Final = re.compile(r"[a-z-]+:[-\w#%. ]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Look:
    """The labels and styles of one diagram."""

    heading: str | None
    _label: Callable[[Any], str | None] | None
    _css: Mapping[str, str]
    _class: Callable[[Any], str | None] | None

    @classmethod
    def of(cls, label: Label | None, style: Style | None) -> Look:
        """Return the labels and styles for these settings.

        Raises:
            TypeError: if a setting has the wrong type.
            ValueError: if a class is unknown, or its CSS cannot be used in a diagram.
        """
        if not (label is None or isinstance(label, str) or callable(label)):
            raise TypeError(f"label={label!r}: pass a heading, or a function that returns the label of a record's node")
        if not (style is None or isinstance(style, Mapping) or callable(style)):
            raise TypeError(
                f"style={style!r}: pass a mapping from class to CSS, or a function that returns a record's class"
            )
        css = cast("Mapping[str, str]", style if isinstance(style, Mapping) else {})
        return cls(
            heading=label if isinstance(label, str) else None,
            _label=None if isinstance(label, str) else label,
            _css={_known(name): _css(name, each) for name, each in css.items()},
            _class=None if isinstance(style, Mapping) else style,
        )

    def lines(self, record: Any, usual: Sequence[str]) -> Sequence[str]:
        """Return the lines in a record's node."""
        label = None if self._label is None else self._label(record)
        return usual if label is None else label.split("\n")

    def name(self, record: Any, usual: str) -> str:
        """Return the class of a record's node."""
        chosen = None if self._class is None else self._class(record)
        return usual if chosen is None else _known(chosen)

    def definitions(self) -> list[str]:
        """Return the definitions of all classes, even unused ones, so that diagrams differ only if programs do."""
        return [f"classDef {name} {css}" for name, css in {**CLASSES, **self._css}.items()]


def _known(name: str) -> str:
    """Return ``name`` if it is a known class.

    Raises:
        ValueError: if it is not. The message lists the classes.
    """
    if name not in CLASSES:
        raise ValueError(f"{name!r} is not a diagram class; use one of {', '.join(CLASSES)}")
    return str(name)


def _css(name: str, css: str) -> str:
    declarations = [each.strip() for each in re.split("[,;]", css) if each.strip()]
    if not declarations or not all(_DECLARATION.fullmatch(each) for each in declarations):
        raise ValueError(
            f"{css!r} of {name!r} is not valid CSS in a diagram; use the form 'fill:#fee2e2,stroke:#dc2626'"
        )
    return ",".join(declarations)


# -- text ----------------------------------------------------------------------------------------------------------

#: The maximum number of characters per line. Mermaid rejects diagrams with more than 50,000 characters.
_LONGEST: Final = 1000

# Matches every character that needs escaping. Letters and digits are left unescaped, as are some punctuation marks
# between them and single spaces before them. The exceptions are a dot after "www", which would start a link, and the
# space in "end note", which would end a note.
_SPECIAL: Final = re.compile(
    r"""(?!  [0-9A-Za-z]
          | (?<=[0-9A-Za-z]) (?: , (?=\ ) | (?: [-_/] | (?<!w)\. ) (?=[0-9A-Za-z]) )
          | (?<=\S) \  (?=[0-9A-Za-z]) (?! note)
        ) .""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
# Characters that HTML cannot represent by number.
_INVISIBLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# Mermaid uses these signs internally for "&#", "&" and ";". A word joiner inside a sign keeps Mermaid from replacing
# it.
_SIGNS: Final = re.compile("(?<=ﬂ)(?=°)|(?<=¶)(?=ß)")


def escape(text: str) -> str:
    """Escape ``text`` for use anywhere in any diagram. Control characters become U+FFFD."""
    visible = _SIGNS.sub("\u2060", _INVISIBLE.sub("\ufffd", text))
    return _SPECIAL.sub(lambda found: f"#{ord(found[0])};", visible)


def label_line(line: str) -> str:
    """Return one escaped line. An empty line becomes a space, because Mermaid rejects empty lines."""
    return escape(shorten(line, _LONGEST)) or "#32;"


def quoted(text: str) -> str:
    """Return a title as a quoted string."""
    return f'"{label_line(text)}"'


def markdown(lines: Iterable[str]) -> str:
    """Return a node's label, with the first line in bold.

    The label has to be a Markdown string. In other strings, Mermaid looks for icons, formulas and line breaks after it
    has decoded the numeric codes.
    """
    first, *others = [label_line(line) for line in lines] or [label_line("")]
    return '"`' + "\n".join([f"**{first}**", *others]) + '`"'


def indented(lines: Iterable[str]) -> list[str]:
    """Return ``lines``, indented by one level."""
    return [f"    {line}" for line in lines]
