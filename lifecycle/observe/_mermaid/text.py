"""Text that Mermaid shows as it stands, whatever it says.

A diagram is a program, and the names in it come from anywhere. Whatever is more than a letter, a digit, or a mark
inside a word, is written as its number (``#34;``), which Mermaid puts back when nothing reads syntax, Markdown or HTML
any more. So a diagram is plain ASCII, too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from lifecycle._text import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["escape", "indented", "markdown", "quoted", "shown"]

#: Characters of one name that are shown; Mermaid refuses diagrams of more than 50,000.
_LONGEST: Final = 1000

# All that is not: a letter, a digit; a mark between two of them; a single space before one. A dot after "www" would
# begin a link, and "end note" would end a note.
_TROUBLE: Final = re.compile(
    r"""(?!  [0-9A-Za-z]
          | (?<=[0-9A-Za-z]) (?: , (?=\ ) | (?: [-_/] | (?<!w)\. ) (?=[0-9A-Za-z]) )
          | (?<=\S) \  (?=[0-9A-Za-z]) (?! note)
        ) .""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
# What HTML has no number for: it would show another character, or none.
_UNSHOWN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# Mermaid's own signs for "&#", "&" and ";": a word joiner within keeps it from taking them for its work.
_SIGNS: Final = re.compile("(?<=ﬂ)(?=°)|(?<=¶)(?=ß)")


def escape(text: str) -> str:
    """``text`` so that it means itself in every place of every diagram; control characters become U+FFFD."""
    shown = _SIGNS.sub("\u2060", _UNSHOWN.sub("\ufffd", text))
    return _TROUBLE.sub(lambda found: f"#{ord(found[0])};", shown)


def shown(line: str) -> str:
    """A line that means itself; never an empty one, which Mermaid takes for a mistake."""
    return escape(shorten(line, _LONGEST)) or "#32;"


def quoted(text: str) -> str:
    """A title: one string."""
    return f'"{shown(text)}"'


def markdown(lines: Iterable[str]) -> str:
    """What a node says, the first line in bold, each as it stands.

    A Markdown string, because in all others Mermaid looks for icons, formulas and line ends after it has put the
    numbers back.
    """
    first, *others = [shown(line) for line in lines] or [shown("")]
    return '"`' + "\n".join([f"**{first}**", *others]) + '`"'


def indented(lines: Iterable[str]) -> list[str]:
    """``lines`` one level further in."""
    return [f"    {line}" for line in lines]
