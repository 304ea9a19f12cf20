"""Rules that select what happens when a path changes.

Files that receive our own output are always ignored. The other rules apply in this order: the first rule of ``--on``
that matches, then ``--ignore``, ``--ignore-file`` and the files that git ignores, and finally ``--ext`` and
``--include``. A rule that names a file without wildcards (``--on .env=restart``) applies even if git ignores that file.
A rule with wildcards (``*.js=restart``) does not, because build output would trigger it. Ignored directories are not
watched, so a rule for a file in one of them needs its path (``dist/app.js=restart``).
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from codecs import BOM_UTF8
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from lifecycle._text import printable
from lifecycle._util import file_mode
from lifecycle.cli.files import read_text
from lifecycle.cli.options import Glob
from lifecycle.cli.output import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from lifecycle.cli.options import Action
    from lifecycle.cli.watch.settings import Settings
    from lifecycle.events import Change

__all__ = ["PathRules", "absolute", "own_output"]

#: The maximum number of names in a message. If there are more, only their number is shown.
_MAX_NAMES: Final = 3

#: The ignore files that a directory may contain. The first file with a matching rule takes precedence.
_NAMES: Final = (".ignore", ".gitignore")
#: Matches the key in a git configuration file that sets the user's own ignore file.
_EXCLUDES_FILE = re.compile(
    r"^[ \t]*\[core\][^\[]*?^[ \t]*excludesfile[ \t]*=[ \t]*(\S[^\n]*?)[ \t]*$", re.IGNORECASE | re.MULTILINE
)
#: More than two stars in a row mean the same as two. pathspec would search for each, which takes exponential time.
_STARS = re.compile(r"\*{3,}")
#: Matches a line with a class such as ``[[:alpha:]]``, which pathspec does not support.
_POSIX_CLASS = re.compile(r"\[[^]]*\[[:.=]").search

_log = logging.getLogger("lifecycle.cli")


class _Rule(NamedTuple):
    """One line of an ignore file: whether it ignores the paths in which ``search`` finds its pattern."""

    ignores: bool
    search: Callable[[str], re.Match[str] | None]

    def matches(self, path: str) -> bool:
        """Return whether the rule matches ``path`` itself. A match that ends before is one of a parent directory."""
        found = self.search(path)
        # pathspec's only group is the slash after the name of a directory.
        return found is not None and (found.lastgroup is None or found.end() == len(path))


class _IgnoreFile(NamedTuple):
    """An ignore file's rules as of the last read, the last one first. There are none if it does not exist."""

    stamp: tuple[int, int, int] | None
    rules: tuple[_Rule, ...]


class _Directory(NamedTuple):
    """The rules from ignore files that apply to a directory's entries."""

    #: True if this directory or a parent directory is ignored.
    ignored: bool
    #: The rules of each file, with the file's depth. The nearest file comes first.
    files: tuple[tuple[int, tuple[_Rule, ...]], ...]

    def ignores(self, parts: tuple[str, ...], *, is_dir: bool) -> bool:
        """Return whether the first ignore file that has a rule for the entry at ``parts`` ignores it."""
        for depth, rules in self.files:
            path = "/".join(parts[depth:]) + ("/" if is_dir else "")
            for rule in rules:
                if rule.matches(path):
                    return rule.ignores
        return False


#: A cache of directories, so that each ignore file is checked only once for several paths.
_Known: TypeAlias = "dict[tuple[IgnoreFiles, tuple[str, ...]], _Directory]"


class IgnoreFiles:
    """Finds paths below ``root`` (an absolute directory) that ignore files exclude.

    In each directory from ``top`` down, the files called ``names`` apply to paths in that directory, and files in the
    nearest directory take precedence. The files ``others`` apply to all paths below ``top``. Files are read again when
    they change.
    """

    def __init__(self, root: Path, top: Path, names: Sequence[str], others: Iterable[Path]) -> None:
        self._root = root
        self._top = top
        self._names = names
        self._others = tuple(others)
        self._files: dict[str, _IgnoreFile] = {}

    def ignores(self, path: Path, known: _Known) -> bool:
        """Return whether a file excludes ``path`` (which is absolute) or a directory between ``path`` and the root."""
        depth = len(self._root.parts)
        return path.parts[:depth] == self._root.parts and self._ignores_below(depth, path, known)

    def _ignores_below(self, depth: int, path: Path, known: _Known) -> bool:
        """Return whether ``path`` or a parent directory with more than ``depth`` parts is ignored."""
        # Slicing takes a tenth of the time of `Path.relative_to`.
        above = len(self._top.parts)
        parts, first = path.parts[above:], depth - above
        if len(parts) <= first:
            return False
        directory = self._directory(parts[:-1], first, known)
        if directory.ignored or not directory.files:
            return directory.ignored
        return directory.ignores(parts, is_dir=os.path.isdir(path))  # noqa: PTH112  # never raises

    def _directory(self, parts: tuple[str, ...], first: int, known: _Known) -> _Directory:
        """Return the rules for the directory at ``parts``. Directories down to depth ``first`` are never ignored."""
        found = known.get((self, parts))
        if found is None:
            if parts:
                above = self._directory(parts[:-1], first, known)
            else:
                above = _Directory(ignored=False, files=self._rules(map(str, self._others), 0))
            ignored = above.ignored or (len(parts) > first and above.ignores(parts, is_dir=True))
            # Join strings here, because `Path.joinpath` would take most of the time.
            own = self._rules(("/".join((str(self._top), *parts, name)) for name in self._names), len(parts))
            found = known[self, parts] = _Directory(ignored, (*own, *above.files))
        return found

    def _rules(self, files: Iterable[str], depth: int) -> tuple[tuple[int, tuple[_Rule, ...]], ...]:
        return tuple((depth, rules) for file in files if (rules := self._read(file)))

    def _read(self, file: str) -> tuple[_Rule, ...]:
        stamp = _stamp(file)
        known = self._files.get(file)
        if known is None or known.stamp != stamp:
            known = self._files[file] = _IgnoreFile(stamp, _parse(file) if stamp else ())
        return known.rules


class GitIgnore(IgnoreFiles):
    """Finds paths below ``root`` (an absolute directory) that git or an ``.ignore`` file excludes, without running git.

    All ignore files apply, starting at the top of the repository. If ``root`` is not in a repository, or if git ignores
    ``root`` itself, only the files from ``root`` down apply, because the user named that directory explicitly.
    """

    def __init__(self, root: Path) -> None:
        top = repository(root) or root
        super().__init__(root, top, _NAMES, (top / ".git" / "info" / "exclude", _global_excludes()))
        if self._ignores_below(len(top.parts), root, {}):
            self._top = root


def _global_excludes() -> Path:
    """Return the path of the user's own ignore file for git. Included configuration files are not read."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111  # never raises
    for file in (os.path.expanduser("~/.gitconfig"), f"{home}/git/config"):  # noqa: PTH111
        try:
            found = _EXCLUDES_FILE.search(Path(file).read_text(encoding="utf-8", errors="surrogateescape"))
        except OSError:
            continue
        if found:
            return Path(os.path.expanduser(found[1].strip('"')))  # noqa: PTH111
    return Path(home, "git", "ignore")


def repository(start: Path) -> Path | None:
    """Return the top directory of the repository that contains ``start``, found by its ``.git`` directory or file."""
    return next((each for each in (start, *start.parents) if file_mode(each / ".git")), None)


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)  # noqa: PTH116  # faster
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _parse(file: str) -> tuple[_Rule, ...]:
    """Return the rules of an ignore file, the last one first, because it takes precedence."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        _log.warning("cannot read %s, so its rules have no effect: %s", printable(file), error)
        return ()
    rules: list[_Rule] = []
    # Only a newline ends a line. `str.splitlines` would also split lines at form feeds, for example.
    for number, line in enumerate(data.removeprefix(BOM_UTF8).decode(errors="surrogateescape").split("\n"), 1):
        try:
            rules += _parse_line(line.removesuffix("\r"))
        except (ValueError, re.error) as error:
            _log.warning("cannot parse line %d of %s, so it has no effect: %s", number, printable(file), error)
    return tuple(reversed(rules))


def _parse_line(line: str) -> list[_Rule]:
    """Return the rule in one line of an ignore file, if there is one.

    Raises:
        ValueError, re.error: if the line cannot be parsed.
    """
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    if _POSIX_CLASS(line):
        raise ValueError("classes such as [[:alpha:]] are not supported; write [a-zA-Z]")
    if line.rstrip() == "!/":
        # In pathspec, this rule matches each directory. In git, it matches nothing.
        return []
    with warnings.catch_warnings():
        # Python warns of a [ in a class, which only matches that character.
        warnings.simplefilter("ignore", FutureWarning)
        pattern, ignores = GitIgnoreSpecPattern.pattern_to_regex(_STARS.sub("**", line))
        if pattern is None or ignores is None:
            return []
        search = re.compile(pattern).search

    def inside(path: str) -> re.Match[str] | None:
        # The regular expression for everything inside a directory also finds the directory's own slash.
        return search(path.removesuffix("/"))

    return [_Rule(ignores, inside if line.rstrip().endswith("/**") else search)]


class PathRules:
    """Selects what happens when a path changes.

    Args:
        settings: The paths and rules.
        here: The current directory, to which paths and globs are relative.
        outputs: Files that are always ignored, as returned by `own_output`.
    """

    def __init__(self, settings: Settings, here: Path, *, outputs: Collection[tuple[int, int]] = ()) -> None:
        self._here = here
        self._flat = tuple(absolute(path, here) for path in settings.watch_non_recursive)
        self._roots = (*(absolute(path, here) for path in settings.paths), *self._flat)
        self._ext = tuple(f".{ext}" for ext in settings.ext)
        self._include = (*settings.include, *(glob for file in settings.filter_file for glob in _read_globs(file)))
        self._ignore = settings.ignore
        self._on = settings.on
        self._outputs = frozenset(outputs)
        self._otherwise: Action = settings.change
        self._env_file = absolute(settings.env_file, here) if settings.env_file else None
        bases = [root if S_ISDIR(file_mode(root)) else root.parent for root in self._roots]
        self._git = tuple(map(GitIgnore, bases)) if settings.gitignore else ()
        self._listed = _ignore_lists([absolute(file, here) for file in settings.ignore_file], here, bases)

    def ignore(self, *descriptors: int) -> None:
        """Ignore changes to the files behind these descriptors."""
        self._outputs |= own_output(*descriptors)

    @property
    def files(self) -> tuple[Path, ...]:
        """The absolute paths of the watched directories, and of watched files outside these directories."""
        flat = [each for path in self._flat for each in (path.iterdir() if S_ISDIR(file_mode(path)) else [path])]
        return (
            *self._roots[: len(self._roots) - len(self._flat)],
            *(each for each in flat if S_ISREG(file_mode(each))),
        )

    def actions(self, paths: Iterable[Path]) -> dict[Path, Action]:
        """Return what to do about a change to each of the ``paths`` that is not ignored.

        Each ignore file is checked only once.
        """
        known: _Known = {}
        actions: dict[Path, Action] = {path: self._action(path, known) for path in paths}
        return {path: action for path, action in actions.items() if action != "ignore"}

    def action(self, path: Path) -> Action:
        """Return what to do about a change to ``path``."""
        return self._action(path, {})

    def _action(self, path: Path, known: _Known) -> Action:
        path = absolute(path, self._here)
        if self._outputs and _identity(path) in self._outputs:
            return "ignore"
        for glob, action in self._on:
            if self._matches(glob, path) and (glob.is_name or not self._git_ignores(path, known)):
                return action
        if path == self._env_file:
            return "restart"
        if any(glob.covers(self.name(path, glob.base)) for glob in self._ignore):
            return "ignore"
        if any(each.ignores(path, known) for each in self._listed) or self._git_ignores(path, known):
            return "ignore"
        return self._otherwise if self._is_wanted(path) else "ignore"

    def prunes(self, directory: Path) -> bool:
        """Return whether all changes below a directory are ignored, so that it need not be watched.

        A rule for a path without wildcards applies in an ignored directory, but a rule for a name does not.
        """
        named = [absolute(Path(glob.text), glob.base or self._here) for glob, _ in self._on if glob.is_path]
        if any(path.is_relative_to(directory) for path in (*named, *([self._env_file] if self._env_file else []))):
            return False
        known: _Known = {}
        return (
            any(glob.covers(f"{self.name(directory, glob.base)}/*") for glob in self._ignore)
            or any(each.ignores(directory, known) for each in self._listed)
            or self._git_ignores(directory, known)
        )

    def name(self, path: Path, start: Path | None = None) -> str:
        """Return ``path`` relative to ``start`` (default: the current directory), or else to a watched root."""
        path = absolute(path, self._here)
        for base in (start or self._here, *(root if os.path.isdir(root) else root.parent for root in self._roots)):  # noqa: PTH112  # as above
            if path.is_relative_to(base):
                return path.relative_to(base).as_posix()
        return path.as_posix().lstrip("/")

    def describe(self, changes: Mapping[Path, Change]) -> str:
        """Describe changes, for example as ``changed: app.py, new.py (added) (+3)``."""
        shown = [
            printable(self.name(path)) + ("" if change == "modified" else f" ({change})")
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

    def _git_ignores(self, path: Path, known: _Known) -> bool:
        return path not in self._roots and any(git.ignores(path, known) for git in self._git)


def _read_globs(file: Path) -> tuple[Glob, ...]:
    """Return the globs in ``file``, skipping empty lines and comments.

    Raises:
        ConfigError: if the file cannot be read, or a line is not a valid glob.
    """
    lines = [line.strip() for line in read_text(file).splitlines()]
    try:
        return tuple(Glob(line) for line in lines if line and not line.startswith("#"))
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None


def _ignore_lists(files: Sequence[Path], here: Path, bases: Iterable[Path]) -> tuple[IgnoreFiles, ...]:
    """Return the rules in ``files`` for paths below ``here``, and below each directory in ``bases`` outside it."""
    outside = (base for base in bases if not base.is_relative_to(here))
    return tuple(IgnoreFiles(top, top, (), files) for top in (here, *outside)) if files else ()


def own_output(*more: int) -> frozenset[tuple[int, int]]:
    """Return the device and inode of each file behind standard output, standard error and the descriptors ``more``.

    Changes to these files are ignored. Otherwise, ``lifecycle watch -- make >log`` would keep triggering itself.
    """
    found = {_identity(fd) for fd in (1, 2, *more)}
    return frozenset(each for each in found if each is not None)


def _identity(file: Path | int) -> tuple[int, int] | None:
    """Return the device and inode of a regular file, or None for anything else."""
    try:
        status = os.stat(file)  # noqa: PTH116  # may be a descriptor
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if S_ISREG(status.st_mode) else None


def absolute(path: Path, here: Path) -> Path:
    """Return ``path``, relative to ``here``, as an absolute path without ``..``. Links are not resolved."""
    path = path if path.is_absolute() else here / path
    return Path(os.path.normpath(path)) if ".." in path.parts else path
