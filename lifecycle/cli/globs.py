"""Globs for paths: the patterns of topics, with the manners that people know from ``.gitignore``.

``*`` and ``?`` never cross a slash, ``**`` does. A glob without a slash matches a name anywhere; one with a slash
starts at the current directory; one that ends in a slash means everything below.
"""

from __future__ import annotations

from lifecycle.control.patterns import Pattern

__all__ = ["Glob"]


class Glob:
    """One glob, ready to match paths with forward slashes, relative to the current directory.

    Raises:
        ValueError: for an empty one, or (`InvalidPattern`) naming the position of what cannot be read.
    """

    __slots__ = ("_below", "_pattern", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        if not text.strip("./"):
            raise ValueError(f"{text!r} is no glob for paths; give one such as '*.py' or 'src/**'")
        below = text.endswith("/")
        anchored = text.removeprefix("./").strip("/")
        floating = "/" not in text.rstrip("/")
        self._pattern = Pattern(f"**/{anchored}" if floating else anchored)
        self._below: Pattern | None = Pattern(f"{self._pattern}/**") if below else None

    def __repr__(self) -> str:
        return f"Glob({self.text!r})"

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
