"""Which paths below a watched directory count, by their names alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.control import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DEFAULT_IGNORES", "Rules"]

#: What no program wants to be told of: version control, caches, environments, what editors leave for a moment.
DEFAULT_IGNORES: tuple[str, ...] = (
    ".git",
    ".hg",
    ".jj",
    ".svn",
    "__pycache__",
    "*.py[cod]",
    ".venv",
    ".nox",
    ".tox",
    "node_modules",
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".idea",
    ".DS_Store",
    "*~",
    ".*.sw[a-p]",
    ".#*",
    "#*#",
    ".goutputstream-*",
    "*___jb_old___",
    "*___jb_tmp___",
)


class Rules:
    """Globs on what lies below a watched directory; how the way to that directory is called never counts.

    A glob without a slash is held against one name, anywhere below; one with a slash against the whole path from
    the watched directory on. A directory that is ignored is ignored with all that it contains.

    Raises:
        InvalidPattern: for a glob that cannot be read; the message names the position.
    """

    def __init__(self, include: Iterable[str], ignore: Iterable[str]) -> None:
        self._include = _Globs(include)
        self._ignore = _Globs(ignore)

    def skips(self, name: str, below: str) -> bool:
        """Whether the entry ``name``, at ``below`` from the watched directory, is ignored."""
        return self._ignore.match(name, below)

    def wants(self, name: str, below: str) -> bool:
        """Whether a file that is not ignored counts."""
        return not self._include or self._include.match(name, below)


class _Globs:
    """Several globs as one question; plain names are looked up, not tried one after the other."""

    def __init__(self, globs: Iterable[str]) -> None:
        texts = (globs,) if isinstance(globs, str) else tuple(globs)
        patterns = [(Pattern(_tidy(text)), "/" in text.rstrip("/")) for text in texts]
        names = [pattern for pattern, anchored in patterns if not anchored]
        self._names = frozenset(pattern.topic for pattern in names if pattern.is_exact)
        self._wild_names = tuple(pattern for pattern in names if not pattern.is_exact)
        self._paths = tuple(pattern for pattern, anchored in patterns if anchored)

    def __bool__(self) -> bool:
        return bool(self._names or self._wild_names or self._paths)

    def match(self, name: str, below: str) -> bool:
        return (
            name in self._names
            or any(pattern.matches(name) for pattern in self._wild_names)
            or any(pattern.matches(below) for pattern in self._paths)
        )


def _tidy(glob: str) -> str:
    """``./src/`` is ``src``."""
    return glob.removeprefix("./").strip("/") or glob
