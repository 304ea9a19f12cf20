"""What a changed path leads to: nothing but a decision, made from the settings and from what git ignores.

What our own output goes to never counts. Then, in order: the first rule of ``--on`` that matches; ``--ignore``; what
git ignores; ``--ext`` and ``--include``. A rule that names a file without wildcards (``--on .env=restart``) counts even
where git ignores that file; one with wildcards does not, so that what a build writes does not set off ``*.js=restart``.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle.cli.watch.gitignore import GitIgnore

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from lifecycle.cli.globs import Glob
    from lifecycle.cli.values import Action
    from lifecycle.cli.watch.settings import Settings

__all__ = ["PathRules", "absolute", "own_output"]


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

    def strongest(self, paths: Iterable[Path]) -> Action:
        """What several changes lead to together: a restart does all that a reload would."""
        actions = {self.action(path) for path in paths}
        return "restart" if "restart" in actions else "reload" if "reload" in actions else "ignore"

    def name(self, path: Path, start: Path | None = None) -> str:
        """``path`` as globs and people see it: from ``start`` (the current directory), else from the watched one."""
        path = absolute(path, self._here)
        for base in (start or self._here, *(root if root.is_dir() else root.parent for root in self._roots)):
            if path.is_relative_to(base):
                return path.relative_to(base).as_posix()
        return path.as_posix().lstrip("/")

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
