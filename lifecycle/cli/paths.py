"""Rules that select the action for a changed path.

Files that receive our own output are always ignored. The other rules apply in this order: the first matching rule of
``--on``, then ``--ignore`` and the files that git ignores, then ``--ext`` and ``--include``. A rule for a file without
wildcards (``--on .env=restart``) applies even if git ignores that file. A rule with wildcards (``*.js=restart``) does
not, so that build output does not trigger it.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pathspec import GitIgnoreSpec

    from lifecycle.cli.options import Action, Glob
    from lifecycle.cli.watch.settings import Settings
    from lifecycle.events import Change

__all__ = ["PathRules", "absolute", "own_output"]

#: The maximum number of names in a message. Further ones are only counted.
_MAX_NAMES: Final = 3

_log = logging.getLogger("lifecycle.cli")


class _IgnoreFile(NamedTuple):
    """The rules of an ignore file when it was last read. ``spec`` is None if the file does not exist."""

    stamp: tuple[int, int, int] | None
    spec: GitIgnoreSpec | None


class GitIgnore:
    """Finds the paths below ``root``, an absolute directory, that git ignores. It does not run git.

    All ignore files from the top of the repository down apply. If ``root`` is not in a repository, only those from
    ``root`` down apply. The same holds if git ignores ``root`` itself, because the user named it explicitly. Files are
    read again when they change. The user's global excludes (``core.excludesFile``) are not read.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[Path, _IgnoreFile] = {}
        self._top = repository(root) or root
        if self._ignores_below(self._top, root):
            self._top = root

    def ignores(self, path: Path) -> bool:
        """Return whether git ignores ``path`` (absolute), or a directory between ``path`` and the root."""
        return path.is_relative_to(self._root) and self._ignores_below(self._root, path)

    def _ignores_below(self, base: Path, path: Path) -> bool:
        """Return whether ``path`` or a directory between it and ``base`` is ignored."""
        parts = path.relative_to(self._top).parts
        first = len(base.relative_to(self._top).parts) + 1
        for end in range(first, len(parts) + 1):
            if self._ignored_itself(parts[:end], is_dir=end < len(parts) or os.path.isdir(path)):  # noqa: PTH112  # never raises
                return True
        return False

    def _ignored_itself(self, parts: tuple[str, ...], *, is_dir: bool) -> bool:
        """Return whether the nearest ignore file with a rule for the path ignores it, or else ``.git/info/exclude``."""
        for depth in range(len(parts) - 1, -1, -1):
            ignored = self._check(self._top.joinpath(*parts[:depth], ".gitignore"), parts[depth:], is_dir=is_dir)
            if ignored is not None:
                return ignored
        return bool(self._check(self._top / ".git" / "info" / "exclude", parts, is_dir=is_dir))

    def _check(self, file: Path, parts: tuple[str, ...], *, is_dir: bool) -> bool | None:
        spec = self._read(file)
        if spec is None:
            return None
        return spec.check_file("/".join(parts) + ("/" if is_dir else "")).include

    def _read(self, file: Path) -> GitIgnoreSpec | None:
        stamp = _stamp(file)
        known = self._files.get(file)
        if known is None or known.stamp != stamp:
            known = self._files[file] = _IgnoreFile(stamp, _parse(file) if stamp else None)
        return known.spec


def repository(start: Path) -> Path | None:
    """Return the top directory of the repository that contains ``start``, the one with a ``.git`` directory or file."""
    return next((each for each in (start, *start.parents) if (each / ".git").exists()), None)


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
        _log.warning("cannot read %s, so its rules have no effect: %s", file, error)
    except ValueError as error:
        _log.warning("cannot parse %s, so its rules have no effect: %s", file, error)
    return None


class PathRules:
    """Selects the action for a changed path.

    Args:
        settings: the paths and rules.
        here: the current directory, to which paths and globs are relative.
        outputs: files that are always ignored, from `own_output`.
    """

    def __init__(self, settings: Settings, here: Path, *, outputs: Collection[tuple[int, int]] = ()) -> None:
        self._here = here
        self._roots = tuple(absolute(path, here) for path in settings.paths)
        self._ext = tuple(f".{ext}" for ext in settings.ext)
        self._include = settings.include
        self._ignore = settings.ignore
        self._on = settings.on
        self._outputs = frozenset(outputs)
        self._otherwise: Action = settings.change
        self._env_file = absolute(settings.env_file, here) if settings.env_file else None
        bases = [root if root.is_dir() else root.parent for root in self._roots] if settings.gitignore else []
        self._git = tuple(map(GitIgnore, bases))

    @property
    def roots(self) -> tuple[Path, ...]:
        """The watched paths, absolute."""
        return self._roots

    def action(self, path: Path) -> Action:
        """Return the action for a change of ``path``."""
        path = absolute(path, self._here)
        if self._outputs and _identity(path) in self._outputs:
            return "ignore"
        for glob, action in self._on:
            if self._matches(glob, path) and (glob.is_name or not self._git_ignores(path)):
                return action
        if path == self._env_file:
            return "restart"
        if any(glob.covers(self.name(path, glob.base)) for glob in self._ignore) or self._git_ignores(path):
            return "ignore"
        return self._otherwise if self._is_wanted(path) else "ignore"

    def name(self, path: Path, start: Path | None = None) -> str:
        """Return ``path`` relative to ``start`` (default: the current directory), or else to its watched directory."""
        path = absolute(path, self._here)
        for base in (start or self._here, *(root if os.path.isdir(root) else root.parent for root in self._roots)):  # noqa: PTH112  # as above
            if path.is_relative_to(base):
                return path.relative_to(base).as_posix()
        return path.as_posix().lstrip("/")

    def describe(self, changes: Mapping[Path, Change]) -> str:
        """Return a description such as ``changed: app.py, new.py (added) (+3)``."""
        shown = [
            self.name(path) + ("" if change == "modified" else f" ({change})")
            for path, change in list(changes.items())[:_MAX_NAMES]
        ]
        more = len(changes) - len(shown)
        return f"changed: {', '.join(shown)}" + (f" (+{more})" if more else "")

    def _matches(self, glob: Glob, path: Path) -> bool:
        return glob.matches(self.name(path, glob.base))

    def _is_wanted(self, path: Path) -> bool:
        if not self._ext and not self._include:
            return True
        return path.name.endswith(self._ext) or any(self._matches(glob, path) for glob in self._include)

    def _git_ignores(self, path: Path) -> bool:
        return path not in self._roots and any(git.ignores(path) for git in self._git)


def own_output(*more: int) -> frozenset[tuple[int, int]]:
    """Return the device and inode of the files behind standard output, standard error and the descriptors ``more``.

    Changes to these files are ignored. Otherwise, ``lifecycle watch -- make >log`` would trigger itself.
    """
    found = {_identity(fd) for fd in (1, 2, *more)}
    return frozenset(each for each in found if each is not None)


def _identity(file: Path | int) -> tuple[int, int] | None:
    """Return the device and inode of a regular file, or None for anything else."""
    try:
        status = os.stat(file)  # noqa: PTH116  # may be a descriptor
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def absolute(path: Path, here: Path) -> Path:
    """Resolve ``path`` relative to ``here`` into an absolute path without ``..``. Links are not resolved."""
    return Path(os.path.normpath(here / path))
