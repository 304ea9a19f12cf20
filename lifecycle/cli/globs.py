"""Globs for paths: the patterns of topics, with the manners that people know from ``.gitignore``.

``*`` and ``?`` never cross a slash, ``**`` does. A glob without a slash matches a name anywhere; one with a slash
starts at the current directory, or where the file lies that it was written in; one that ends in a slash means
everything below.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lifecycle.control.patterns import Pattern

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Glob"]


@dataclass(frozen=True, slots=True)
class Glob:
    """One glob, ready to match paths with forward slashes, relative to ``base`` (None: the current directory).

    Raises:
        ValueError: for an empty one, or (`InvalidPattern`) naming the position of what cannot be read.
    """

    text: str
    base: Path | None = None
    _pattern: Pattern = field(init=False, repr=False, compare=False)
    _below: Pattern | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.text.strip("./"):
            raise ValueError(f"{self.text!r} is no glob for paths; give one such as '*.py' or 'src/**'")
        anchored = self.text.removeprefix("./").strip("/")
        floating = "/" not in self.text.rstrip("/")
        pattern = Pattern(f"**/{anchored}" if floating else anchored)
        object.__setattr__(self, "_pattern", pattern)
        object.__setattr__(self, "_below", Pattern(f"{pattern}/**") if self.text.endswith("/") else None)

    def at(self, base: Path) -> Glob:
        """The same, starting at ``base``."""
        return replace(self, base=base)

    @property
    def is_name(self) -> bool:
        """Whether it has no wildcard, and so was meant for exactly what it says."""
        return self._below is None and not any(char in self.text for char in "*?[")

    def matches(self, path: str) -> bool:
        """Whether it means this very path."""
        if self._below is not None:
            return self._below.matches(path) and not self._pattern.matches(path)
        return self._pattern.matches(path)

    def covers(self, path: str) -> bool:
        """Whether it means the path or a directory above it."""
        parts = path.split("/")
        # A glob for directories does not mean a file of that name.
        last = len(parts) - (self._below is not None)
        return any(self._pattern.matches("/".join(parts[:end])) for end in range(1, last + 1))
