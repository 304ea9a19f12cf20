"""A snapshot of the watched files to compare with the disk.

A watcher's report is only a hint to check an entry again. The change itself is found by comparing the entry with the
snapshot. As a result, a replaced file is always reported as modified, and a file that is created and deleted between
two checks is not reported. A new directory is read completely. All functions in this module block, so call them in a
thread, one at a time.
"""

# We use strings for paths, as the system does. Creating a Path for each file would take longer than
# checking the file.
# ruff: noqa: PTH114, PTH115, PTH116, PTH118, PTH120

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias

from lifecycle.control.patterns import path_glob

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from lifecycle.events import Change

__all__ = ["DEFAULT_IGNORES", "STAMP_NS", "Rules", "Tree", "entries_on_the_way", "may_read"]

_log = logging.getLogger("lifecycle.sources")

#: Names ignored by default: version control directories, caches, virtual environments, and editors' temporary files.
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

#: Two writes within this many nanoseconds may get the same timestamp. The clock for file times advances in steps of up
#: to 10 ms.
STAMP_NS = 20_000_000

# The maximum number of links to follow, which is also the kernel's limit.
_MOST_LINKS = 40

# The fingerprint of a file whose directory was replaced before the file was examined. No other fingerprint equals it.
_OTHER = 0

# Whether a scan compares only the names of files, or also their states.
_Scan: TypeAlias = Literal["names", "states"]


class Tree:
    """The files in ``roots``, and the files below the directories in ``roots``.

    Links to directories outside the roots are followed only if ``follow_links`` is true.
    """

    def __init__(self, roots: Iterable[str], rules: Rules, *, recursive: bool, follow_links: bool = False) -> None:
        self._rules = rules
        self._recursive = recursive
        self._follow_links = follow_links
        self._roots = tuple(dict.fromkeys(roots))
        self.index = _SnapshotIndex()
        # A virtual directory that contains the roots. The rules do not apply to its entries.
        self._top = self.index.top
        # The net change to each path since the last call to `take_changes`.
        self._changes: dict[str, Change] = {}
        #: Called with the real path of each directory before it is read.
        self.watch: Callable[[str], object] = lambda _: None
        self._warned_of_names = False
        # The time of the first `list_files` in nanoseconds, minus the tolerance for file timestamps.
        self._listed_at = 0

    @property
    def skipped(self) -> int:
        """The number of names that are skipped because they are not UTF-8."""
        return self.index.skipped()

    def list_files(self) -> None:
        """Record the names of all files, which takes only a fraction of the time that `compare` takes.

        A file that is only listed is treated as modified at the first hint, or if it has changed since the first call.
        """
        self._listed_at = self._listed_at or time.time_ns() - STAMP_NS
        self._look_at_roots({}, scan="names")

    def compare(self) -> None:
        """Compare all files with the snapshot. On the first call, every file is recorded as added."""
        self._look_at_roots({}, scan="states")

    def update(self, hints: Iterable[tuple[str, bool]], again: Iterable[str] = ()) -> None:
        """Check the paths in ``hints``, everything in the directories in ``again``, and all links.

        The second item of a hint is true if the path was reported as modified. Such a report is trusted even if none of
        the file's attributes has changed.
        """
        hinted = _without_links(hints)
        for path, modified in hinted.items():
            for directory, name in self.index.entries_for(path):
                if not _is_text(name):
                    self._drop_undecodable(directory, _entries(directory.path) or {})
                    continue
                self._look(directory, name, modified=modified, scan="states")
                self.index.links_changed |= name in directory.links
        for real in again:
            for directory in self.index.at(real):
                self._scan(directory)
        self._look_at_roots(hinted)
        for directory, name in self.index.links():
            # Checking one link may have removed the directory that contains another.
            if name in directory.links:
                self._look(directory, name, modified=hinted.get(os.path.realpath(directory.prefix + name)))

    def take_changes(self) -> Mapping[str, Change]:
        """Return the net change to each path since the last call."""
        changes, self._changes = self._changes, {}
        return changes

    def entries(self) -> set[str]:
        """Return the entries that determine where the watched paths and the links in them lead, as real paths."""
        self.index.links_changed = False
        links = [directory.prefix + name for directory, name in self.index.links() if name not in directory.unfollowed]
        return {entry for path in (*self._roots, *links) for entry in entries_on_the_way(path)}

    # -- comparison with the disk -------------------------------------------------------------------------------

    def _look_at_roots(self, hinted: Mapping[str, bool], *, scan: _Scan | None = None) -> None:
        reals = {path: os.path.realpath(path) for path in self._roots}
        if not self._follow_links:
            self.index.allowed = tuple(reals.values())
        for path, real in reals.items():
            self._look(self._top, path, modified=hinted.get(real), scan=scan)

    def _look(
        self, directory: _DirectorySnapshot, name: str, *, modified: bool | None = None, scan: _Scan | None = None
    ) -> None:
        """Check one entry. With ``scan``, read it even if it is a directory that is already known.

        ``modified`` is None unless a hint refers to this entry.
        """
        path = directory.prefix + name
        if self._skips(directory, name):
            return
        self.index.note_link(directory, name, link=directory is not self._top and os.path.islink(path))
        try:
            found = os.stat(path)
        except OSError:
            self._remove(directory, name)
            return
        entered = self._record(directory, name, found, modified=modified)
        inner = directory.directories.get(name)
        if inner is not None and (entered or scan):
            self._scan(inner, scan or "states")

    def _scan(self, directory: _DirectorySnapshot, scan: _Scan = "states") -> None:
        """Read a directory and all directories below it.

        We use a loop, because recursion could overflow the call stack.
        """
        pending = [directory]
        while pending:
            directory = pending.pop()
            self.watch(directory.real)
            entries = _entries(directory.path)
            if entries is None:
                continue
            self._drop_undecodable(directory, entries)
            known = (*directory.files, *directory.directories, *directory.links)
            for name in [each for each in known if each not in entries]:
                self.index.note_link(directory, name, link=False)
                self._remove(directory, name)
            self.index.keep_links(directory, entries)
            for name, entry in entries.items():
                if self._rules.skips(name, directory.relative + name):
                    continue
                if scan == "names" and entry.is_file(follow_symlinks=False):
                    self._list_file(directory, name)
                    continue
                self.index.note_link(directory, name, link=entry.is_symlink())
                try:
                    found = entry.stat()
                except OSError:
                    self._remove(directory, name)
                else:
                    self._record(directory, name, found)
            pending.extend(directory.directories.values())

    def _drop_undecodable(self, directory: _DirectorySnapshot, entries: dict[str, os.DirEntry[str]]) -> None:
        """Remove names that are not UTF-8 from ``entries``, because events have text paths."""
        undecodable = [name for name in entries if not name.isascii() and not _is_text(name)]
        directory.undecodable = len(undecodable)
        for name in undecodable:
            del entries[name]
        if undecodable and not self._warned_of_names:
            self._warned_of_names = True
            text = "the name %r in %s is not UTF-8, so it is skipped; rename it (other such names are not logged)"
            _log.warning(text, undecodable[0], directory.path)

    def _skips(self, directory: _DirectorySnapshot, name: str) -> bool:
        return directory is not self._top and self._rules.skips(name, directory.relative + name)

    # -- recording entries --------------------------------------------------------------------------------------

    def _list_file(self, directory: _DirectorySnapshot, name: str) -> None:
        """Record the name of an existing file."""
        if name in directory.links or name in directory.directories:
            self.index.note_link(directory, name, link=False)
            self._remove(directory, name)
        if name not in directory.files and self._rules.wants(name, directory.relative + name):
            directory.files[name] = None

    def _record(
        self, directory: _DirectorySnapshot, name: str, found: os.stat_result, *, modified: bool | None = None
    ) -> bool:
        """Record an existing entry. Return True if it is a directory that was not known before."""
        if stat.S_ISDIR(found.st_mode):
            self._remove_file(directory, name)
            if self.index.note_unfollowed(directory, name, link=name in directory.links):
                self._remove_directory(directory, name)
                return False
            may_enter = self._recursive or directory is self._top
            return may_enter and self.index.add(directory, name, (found.st_dev, found.st_ino))
        self._remove_directory(directory, name)
        if not stat.S_ISREG(found.st_mode):
            self._remove_file(directory, name)
        elif directory is self._top or self._rules.wants(name, directory.relative + name):
            self._record_file(directory, name, found, modified=modified)
        return False

    def _record_file(
        self, directory: _DirectorySnapshot, name: str, found: os.stat_result, *, modified: bool | None
    ) -> None:
        """Record an existing file. If its fingerprint is ambiguous, ``modified`` decides whether it has changed."""
        known = directory.files.get(name)
        is_listed = known is None and name in directory.files
        # A link may lead to a file that is older than the list.
        same_entry = name not in directory.links
        if is_listed and same_entry and modified is None and found.st_ctime_ns < self._listed_at:
            return
        fingerprint = _fingerprint(found)
        if known is None:
            self._note(directory.prefix + name, "modified" if is_listed else "added")
        elif known not in (fingerprint, ~fingerprint) or (modified and known < 0):
            self._note(directory.prefix + name, "modified")
        else:
            return
        directory.files[name] = fingerprint

    def _remove(self, directory: _DirectorySnapshot, name: str) -> None:
        self.index.note_unfollowed(directory, name, link=False)
        self._remove_file(directory, name)
        self._remove_directory(directory, name)

    def _remove_file(self, directory: _DirectorySnapshot, name: str) -> None:
        if name in directory.files:
            del directory.files[name]
            self._note(directory.prefix + name, "deleted")

    def _remove_directory(self, directory: _DirectorySnapshot, name: str) -> None:
        if name in directory.directories:
            for removed in self.index.remove(directory, name):
                for each in tuple(removed.files):
                    self._remove_file(removed, each)

    def _note(self, path: str, change: Change) -> None:
        before = self._changes.pop(path, None)
        if before == "added":
            if change != "deleted":
                self._changes[path] = "added"
        elif before == "deleted" and change == "added":
            self._changes[path] = "modified"
        else:
            self._changes[path] = change


def _fingerprint(found: os.stat_result) -> int:
    """Return a number that represents a file's state. A single number per file saves memory.

    If the file has just been written, a further write may leave its attributes unchanged. In that case, the fingerprint
    is ambiguous. An ambiguous fingerprint is negative: the bitwise complement of the normal one.
    """
    number = hash((found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)) >> 1
    number = number if number >= 0 else ~number
    return ~number if time.time_ns() - found.st_ctime_ns < STAMP_NS else number


def _entries(path: str) -> dict[str, os.DirEntry[str]] | None:
    """Return the entries of a directory, {} if it does not exist, or None if it cannot be read."""
    try:
        with os.scandir(path) as found:
            return {entry.name: entry for entry in found}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError:
        return None


def _without_links(hints: Iterable[tuple[str, bool]]) -> dict[str, bool]:
    """Return the hints after resolving links in their directories' paths."""
    directories: dict[str, str] = {}
    found: dict[str, bool] = {}
    for path, modified in hints:
        directory, name = os.path.split(path)
        if directory not in directories:
            directories[directory] = os.path.realpath(directory)
        entry = os.path.join(directories[directory], name)
        found[entry] = modified or found.get(entry, False)
    return found


# -- snapshots -------------------------------------------------------------------------------------------------


class _DirectorySnapshot:
    """The last known state of a directory, including the fingerprints of its files."""

    __slots__ = (
        "directories",
        "files",
        "identity",
        "links",
        "parent",
        "path",
        "prefix",
        "real",
        "relative",
        "undecodable",
        "unfollowed",
    )

    def __init__(
        self,
        path: str,
        real: str,
        relative: str,
        *,
        identity: tuple[int, int] = (0, 0),
        parent: _DirectorySnapshot | None = None,
    ) -> None:
        #: The path as the user specified it. ``prefix`` is the same path with a trailing slash, for building the paths
        #: of its entries.
        self.path = path
        self.prefix = path if path.endswith("/") or not path else f"{path}/"
        #: The path with links resolved. The system watches the directory at this path.
        self.real = real
        #: The path relative to the watched directory, with a trailing slash. Empty for the watched directory itself.
        self.relative = relative
        self.identity = identity
        self.parent = parent
        #: The fingerprint of each file; None if only its name has been listed.
        self.files: dict[str, int | None] = {}
        self.directories: dict[str, _DirectorySnapshot] = {}
        #: The names of all links, wherever they lead.
        self.links: set[str] = set()
        #: The names of links to directories outside the roots, which are not followed.
        self.unfollowed: set[str] = set()
        #: The number of names that are skipped because they are not UTF-8.
        self.undecodable: int = 0

    def is_inside(self, real: str) -> bool:
        """Return whether this directory is at or below ``real``.

        If it is, a link in it that leads to ``real`` would create a loop.
        """
        above: _DirectorySnapshot | None = self
        while above is not None and above.real:
            if _is_within(above.real, (real,)):
                return True
            above = above.parent
        return False


class _SnapshotIndex:
    """All known directories and links. The entries of ``top`` are the watched paths.

    This class reads from the disk only to resolve links.
    """

    def __init__(self) -> None:
        self.top = _DirectorySnapshot("", "", "")
        #: True if a link has been created or replaced since this attribute was last reset.
        self.links_changed = False
        #: A link is followed only if its target is at or below one of these real paths.
        self.allowed: tuple[str, ...] = ("/",)
        # Snapshots by real path. A directory that can be reached through several links has several snapshots.
        self._by_real_path: dict[str, list[_DirectorySnapshot]] = {}
        # Directories that contain links, including broken ones. A link's target may change without a hint.
        self._with_links: set[_DirectorySnapshot] = set()

    def at(self, real: str) -> list[_DirectorySnapshot]:
        """Return the snapshots of the directory ``real``."""
        return self._by_real_path.get(real, [])[:]

    def real_directories(self) -> set[str]:
        """Return the real paths of all directories."""
        return {real for real, snapshots in self._by_real_path.items() if snapshots}

    def links(self) -> list[tuple[_DirectorySnapshot, str]]:
        """Return all links as pairs of directory and name."""
        return [(directory, name) for directory in self._with_links for name in directory.links]

    def skipped(self) -> int:
        """Return the number of names in all known directories that are skipped because they are not UTF-8."""
        known = list(self._by_real_path.values())
        return sum(directory.undecodable for directories in known for directory in directories)

    def entries_for(self, real: str) -> list[tuple[_DirectorySnapshot, str]]:
        """Return the entries to check after a change at ``real``. They are in the nearest known directory."""
        while real != "/":
            parent, _, name = real.rpartition("/")
            real = parent or "/"
            if directories := self._by_real_path.get(real):
                return [(directory, name) for directory in directories]
        return []

    def note_link(self, directory: _DirectorySnapshot, name: str, *, link: bool) -> None:
        """Record whether the entry is a link."""
        if link:
            self.links_changed |= name not in directory.links
            directory.links.add(name)
            self._with_links.add(directory)
        elif name in directory.links:
            directory.links.remove(name)
            if not directory.links:
                self._with_links.remove(directory)

    def note_unfollowed(self, directory: _DirectorySnapshot, name: str, *, link: bool) -> bool:
        """Record and return whether an entry, which is a directory or a link to one, is an unfollowed link."""
        unfollowed = link and not _is_within(os.path.realpath(directory.prefix + name), self.allowed)
        self._set_unfollowed(directory, name, unfollowed=unfollowed)
        return unfollowed

    def keep_links(self, directory: _DirectorySnapshot, present: Container[str]) -> None:
        """Forget the unfollowed links that are not in ``present``."""
        for name in [each for each in directory.unfollowed if each not in present]:
            self._set_unfollowed(directory, name, unfollowed=False)

    def _set_unfollowed(self, directory: _DirectorySnapshot, name: str, *, unfollowed: bool) -> None:
        if unfollowed is (name in directory.unfollowed):
            return
        self.links_changed = True
        (directory.unfollowed.add if unfollowed else directory.unfollowed.discard)(name)

    def add(self, directory: _DirectorySnapshot, name: str, identity: tuple[int, int]) -> bool:
        """Add an entry's directory. Return False if it is already known or would cause a loop."""
        is_root, link = directory is self.top, name in directory.links
        path = directory.prefix + name
        real = os.path.realpath(path) if link or is_root else os.path.join(directory.real, name)
        known = directory.directories.get(name)
        if known and (known.real, known.identity) == (real, identity):
            return False
        if link and directory.is_inside(real):
            return False
        if known:
            # This is a different directory with the same name. The contents of the two are compared file by file.
            self._by_real_path[known.real].remove(known)
            if known.identity != identity:
                known.files = {name: _OTHER if each is None else each for name, each in known.files.items()}
            known.real, known.identity = real, identity
        else:
            relative = "" if is_root else f"{directory.relative}{name}/"
            known = _DirectorySnapshot(path, real, relative, identity=identity, parent=directory)
            directory.directories[name] = known
        self._by_real_path.setdefault(real, []).append(known)
        return True

    def remove(self, directory: _DirectorySnapshot, name: str) -> list[_DirectorySnapshot]:
        """Remove an entry's directory and all directories below it. Return the removed snapshots."""
        removed: list[_DirectorySnapshot] = []
        pending = [directory.directories.pop(name)]
        while pending:
            each = pending.pop()
            removed.append(each)
            pending.extend(each.directories.values())
            self._by_real_path[each.real].remove(each)
            if not self._by_real_path[each.real]:
                del self._by_real_path[each.real]
            each.links.clear()
            each.unfollowed.clear()
            self._with_links.discard(each)
        return removed


def _is_within(real: str, roots: Iterable[str]) -> bool:
    return any(f"{real.rstrip('/')}/".startswith(f"{root.rstrip('/')}/") for root in roots)


def _is_text(name: str) -> bool:
    """Return whether ``name`` can be encoded as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- paths -----------------------------------------------------------------------------------------------------


def may_read(directory: str) -> bool:
    """Return whether this process is allowed to list ``directory``. A watch requires this permission."""
    return os.access(directory, os.R_OK, effective_ids=os.access in os.supports_effective_ids)


def entries_on_the_way(path: str) -> set[str]:
    """Return the entries that determine which file an absolute path refers to: its directories, links and last entry.

    Each returned path begins with the real path of the entry's directory, which is the directory to watch. If part of
    the path is missing, the entries after it are left out.
    """
    found: set[str] = set()
    here, rest = "/", deque(_parts(path))
    links = 0
    while rest:
        name = rest.popleft()
        if name == "..":
            here = os.path.dirname(here)
            continue
        entry = os.path.join(here, name)
        found.add(entry)
        target = _target(entry)
        if target is not None and links < _MOST_LINKS:
            links += 1
            rest.extendleft(reversed(_parts(target)))
            here = "/" if target.startswith("/") else here
        elif target is None and rest and os.path.lexists(entry):
            here = entry
        else:
            break
    return found


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _target(entry: str) -> str | None:
    try:
        return os.readlink(entry)
    except OSError:
        return None


# -- rules -----------------------------------------------------------------------------------------------------


class Rules:
    """Globs for paths below a watched directory. The path of the watched directory itself is not matched.

    A glob without a slash is matched against each name in the path. A glob with a slash is matched against the whole
    path below the watched directory. If a directory is ignored, all its contents are ignored.

    Raises:
        InvalidPattern: if a glob cannot be parsed. The message names the position.
    """

    def __init__(self, include: Iterable[str], ignore: Iterable[str]) -> None:
        self._include = _Globs(include)
        self._ignore = _Globs(ignore)

    def skips(self, name: str, relative: str) -> bool:
        """Return whether the entry ``name``, at the path ``relative`` below the watched directory, is ignored."""
        return self._ignore.match(name, relative)

    def wants(self, name: str, relative: str) -> bool:
        """Return whether a file that is not ignored matches the include globs."""
        return not self._include or self._include.match(name, relative)


class _Globs:
    """A combined matcher for several globs. Plain names are looked up in a set instead of being tried individually."""

    def __init__(self, globs: Iterable[str]) -> None:
        texts = (globs,) if isinstance(globs, str) else tuple(globs)
        self._given = bool(texts)
        patterns = [(path_glob(_tidy(text)), "/" in text.rstrip("/")) for text in texts]
        names = [pattern for pattern, anchored in patterns if not anchored]
        self._names = frozenset(pattern.topic for pattern in names if pattern.is_exact)
        wild = [pattern.segments[0].regex for pattern in names if not pattern.is_exact]
        # We use a single expression for speed, because every name in the tree is matched. Without globs, it matches
        # nothing.
        self._wild_names = re.compile("|".join(f"(?:{each})" for each in wild) or r"(?!)").fullmatch
        self._paths = tuple(pattern for pattern, anchored in patterns if anchored)

    def __bool__(self) -> bool:
        return self._given

    def match(self, name: str, relative: str) -> bool:
        return (
            name in self._names
            or self._wild_names(name) is not None
            or (bool(self._paths) and any(pattern.matches(relative) for pattern in self._paths))
        )


def _tidy(glob: str) -> str:
    """Strip a leading ``./`` and any leading or trailing slashes from ``glob``: ``./src/`` becomes ``src``."""
    return glob.removeprefix("./").strip("/") or glob
