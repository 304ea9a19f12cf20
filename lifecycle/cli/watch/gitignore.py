"""What git would ignore, asked path by path, without running git.

The files are read when they are first needed, and again when they changed on disk. Global excludes of the user
(``core.excludesFile``) are not read.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pathspec import GitIgnoreSpec

__all__ = ["GitIgnore", "available", "has_rules"]

_log = logging.getLogger("lifecycle.cli")


class _Read(NamedTuple):
    """A file as it was when it was read; ``spec`` None: there is none."""

    stamp: tuple[int, int, int] | None
    spec: GitIgnoreSpec | None


class GitIgnore:
    """Answers whether git ignores a path below ``root``, an absolute directory.

    Where ``root`` lies in a repository, the files from its top on count; else those from ``root`` on, and so where
    git ignores ``root`` itself: who watches it by name wants it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[Path, _Read] = {}
        self._top = repository(root) or root
        if self._ignores_below(self._top, root):
            self._top = root

    def ignores(self, path: Path) -> bool:
        """Whether git ignores ``path`` (absolute), or a directory between it and the root."""
        return path.is_relative_to(self._root) and self._ignores_below(self._root, path)

    def _ignores_below(self, base: Path, path: Path) -> bool:
        """Whether ``path`` or a directory between it and ``base`` is ignored."""
        parts = path.relative_to(self._top).parts
        first = len(base.relative_to(self._top).parts) + 1
        for end in range(first, len(parts) + 1):
            if self._ignored_itself(parts[:end], is_dir=end < len(parts) or path.is_dir()):
                return True
        return False

    def _ignored_itself(self, parts: tuple[str, ...], *, is_dir: bool) -> bool:
        """What the nearest file that mentions the path says; ``.git/info/exclude`` comes last."""
        for depth in range(len(parts) - 1, -1, -1):
            said = self._said(self._top.joinpath(*parts[:depth], ".gitignore"), parts[depth:], is_dir=is_dir)
            if said is not None:
                return said
        return bool(self._said(self._top / ".git" / "info" / "exclude", parts, is_dir=is_dir))

    def _said(self, file: Path, parts: tuple[str, ...], *, is_dir: bool) -> bool | None:
        spec = self._read(file)
        if spec is None:
            return None
        return spec.check_file("/".join(parts) + ("/" if is_dir else "")).include

    def _read(self, file: Path) -> GitIgnoreSpec | None:
        stamp = _stamp(file)
        known = self._files.get(file)
        if known is None or known.stamp != stamp:
            known = self._files[file] = _Read(stamp, _parse(file) if stamp else None)
        return known.spec


def repository(start: Path) -> Path | None:
    """The top of the repository that ``start`` lies in; a work tree has a file ``.git``, others a directory."""
    return next((each for each in (start, *start.parents) if (each / ".git").exists()), None)


def has_rules(roots: Iterable[Path]) -> bool:
    """Whether anything would be ignored: a ``.gitignore`` between the top of the repository and ``roots``."""
    for root in roots:
        top = repository(root) or root
        if any((each / ".gitignore").is_file() for each in (root, *root.parents) if each.is_relative_to(top)):
            return True
    return False


def available() -> bool:
    """Whether the library that reads the rules is installed."""
    return find_spec("pathspec") is not None


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _parse(file: Path) -> GitIgnoreSpec | None:
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(file.read_text(encoding="utf-8", errors="surrogateescape").splitlines())
    except OSError as error:
        _log.warning("cannot read %s, so it ignores nothing: %s", file, error)
    except ValueError as error:
        _log.warning("cannot understand %s, so it ignores nothing: %s", file, error)
    return None
