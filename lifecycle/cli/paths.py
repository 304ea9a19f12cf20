"""What a changed path leads to, decided by the settings and by what git ignores.

Files that our own output goes to never count. Then, in this order: the first rule of ``--on`` that matches;
``--ignore``; what git ignores; ``--ext`` and ``--include``. A rule that names a file without wildcards (``--on
.env=restart``) counts even if git ignores that file. One with wildcards does not, so that what a build writes does not
trigger ``*.js=restart``.
"""

from __future__ import annotations

import logging
import os
import stat
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pathspec import GitIgnoreSpec

    from lifecycle.cli.options import Action, Glob
    from lifecycle.cli.output import Console
    from lifecycle.cli.watch.settings import Settings
    from lifecycle.events import Change

__all__ = ["PathRules", "absolute", "available", "honours_gitignore", "own_output"]

#: Names in a message; the others are counted.
_MAX_NAMES: Final = 3

_log = logging.getLogger("lifecycle.cli")


class _IgnoreFile(NamedTuple):
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
        self._files: dict[Path, _IgnoreFile] = {}
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
            known = self._files[file] = _IgnoreFile(stamp, _parse(file) if stamp else None)
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


def honours_gitignore(settings: Settings, console: Console) -> bool:
    """Whether what git ignores shall not count, and can be known."""
    if not settings.gitignore or available():
        return settings.gitignore
    if has_rules(path.absolute() for path in settings.paths):
        console.warning(
            ".gitignore is not honoured: pathspec is not installed; pip install 'lifecycle-control[watch]', "
            "or say --no-gitignore"
        )
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


class PathRules:
    """Decides for one path, and for several at once; ``here`` is the current directory, where paths and globs start.

    ``outputs`` are the files that never count, as `own_output` has them.
    """

    def __init__(
        self, settings: Settings, here: Path, *, git: bool = True, outputs: Collection[tuple[int, int]] = ()
    ) -> None:
        self._here = here
        self._roots = tuple(absolute(path, here) for path in settings.paths)
        self._ext = tuple(f".{ext}" for ext in settings.ext)
        self._include = settings.include
        self._ignore = settings.ignore
        self._on = settings.on
        self._outputs = frozenset(outputs)
        self._otherwise: Action = settings.change
        self._env_file = absolute(settings.env_file, here) if settings.env_file else None
        self._git = tuple(GitIgnore(root if root.is_dir() else root.parent) for root in self._roots) if git else ()

    @property
    def roots(self) -> tuple[Path, ...]:
        """The watched paths, absolute."""
        return self._roots

    def action(self, path: Path) -> Action:
        """What a change to ``path`` leads to."""
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
        """``path`` as globs and people see it: from ``start`` (the current directory), else from the watched one."""
        path = absolute(path, self._here)
        for base in (start or self._here, *(root if root.is_dir() else root.parent for root in self._roots)):
            if path.is_relative_to(base):
                return path.relative_to(base).as_posix()
        return path.as_posix().lstrip("/")

    def describe(self, changes: Mapping[Path, Change]) -> str:
        """Return ``changed: app.py, new.py (added) (+3)``."""
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
    """The files that standard output and error and the descriptors ``more`` go to, each as device and inode.

    ``lifecycle watch -- make >log`` would set itself off for ever.
    """
    found = {_identity(fd) for fd in (1, 2, *more)}
    return frozenset(each for each in found if each is not None)


def _identity(file: Path | int) -> tuple[int, int] | None:
    """Device and inode of a regular file; None where there is none."""
    try:
        status = os.stat(file)  # noqa: PTH116  # a descriptor too
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def absolute(path: Path, here: Path) -> Path:
    """``path`` from ``here`` on, with ``..`` taken out and links kept as they are."""
    return Path(os.path.normpath(here / path))
