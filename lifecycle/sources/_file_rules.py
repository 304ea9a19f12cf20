"""Globs for the files to watch, and for those to ignore."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lifecycle.control.patterns import path_glob

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DEFAULT_IGNORES", "Rules"]

#: Names ignored by default: version control directories, caches, virtual environments, and editors' temporary files.
DEFAULT_IGNORES: tuple[str, ...] = (
    *(".git", ".hg", ".jj", ".svn", "__pycache__", "*.py[cod]", ".venv", ".nox", ".tox", "node_modules"),
    *(".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".idea", ".DS_Store"),
    *("*~", ".*.sw[a-p]", ".#*", "#*#", ".goutputstream-*", "*___jb_old___", "*___jb_tmp___"),
)


class Rules:
    """Globs for paths below a watched directory. The path of the watched directory itself is not matched.

    A glob without a slash is matched against each name in the path. A glob with a slash is matched against the whole
    path below the watched directory. If a directory is ignored, all its contents are ignored.

    Raises:
        InvalidPattern: if a glob cannot be parsed. The message names the position.
    """

    def __init__(self, include: Iterable[str], ignore: Iterable[str]) -> None:
        self._include = _Globs(include)
        self._wants_all = not self._include.given
        self._ignore = _Globs(ignore)

    def skips(self, name: str, relative: str) -> bool:
        """Return whether the entry ``name``, at the path ``relative`` below the watched directory, is ignored."""
        return self._ignore.match(name, relative)

    def wants(self, name: str, relative: str) -> bool:
        """Return whether a file that is not ignored matches the include globs."""
        return self._wants_all or self._include.match(name, relative)


class _Globs:
    """A combined matcher for several globs. Plain names are looked up in a set instead of being tried individually."""

    def __init__(self, globs: Iterable[str]) -> None:
        texts = (globs,) if isinstance(globs, str) else tuple(globs)
        self.given: bool = bool(texts)
        patterns = [(path_glob(_tidy(text)), "/" in text.rstrip("/")) for text in texts]
        names = [pattern for pattern, anchored in patterns if not anchored]
        self._names = frozenset(pattern.topic for pattern in names if pattern.is_exact)
        wild = [pattern.segments[0].regex for pattern in names if not pattern.is_exact]
        # We use a single expression for speed, because every name in the tree is matched. Without globs, it matches
        # nothing.
        self._wild_names = re.compile("|".join(f"(?:{each})" for each in wild) or r"(?!)").fullmatch
        self._paths = tuple(pattern for pattern, anchored in patterns if anchored)

    def match(self, name: str, relative: str) -> bool:
        return (
            name in self._names
            or self._wild_names(name) is not None
            or (bool(self._paths) and any(pattern.matches(relative) for pattern in self._paths))
        )


def _tidy(glob: str) -> str:
    """Strip a leading ``./`` and any leading or trailing slashes from ``glob``: ``./src/`` becomes ``src``."""
    return glob.removeprefix("./").strip("/") or glob
