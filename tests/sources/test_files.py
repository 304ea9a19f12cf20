"""FileWatchSource without system notifications: the names that it watches, and the changes between two scans."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.errors import InvalidPattern
from lifecycle.sources import DEFAULT_IGNORES, FileWatchSource
from lifecycle.sources._file_hints import WATCHES_DEEP, Hints
from lifecycle.sources._file_rules import Rules
from lifecycle.sources._file_tree import STAMP_NS, Tree

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def skips(ignore: Sequence[str], below: str) -> bool:
    """Return whether ``below`` or a directory above it is ignored, checking directories from the top."""
    rules, parts = Rules((), ignore), below.split("/")
    return any(rules.skips(part, "/".join(parts[: depth + 1])) for depth, part in enumerate(parts))


@pytest.mark.parametrize(
    ("ignore", "below", "expected"),
    [
        (["build"], "build", True),
        (["build"], "a/build/b", True),
        (["build"], "rebuild/builder", False),
        (["*.log"], "a/b.log", True),
        (["*.log"], "logs.d/b", False),
        (["docs/_build"], "docs/_build/x", True),
        (["docs/_build"], "a/docs/_build/x", False),
        (["**/docs/_build"], "a/docs/_build/x", True),
        (["./build/"], "build/x", True),
        (["/build"], "build/x", True),
        (["a/*.txt"], "a/b/c.txt", False),
        (DEFAULT_IGNORES, ".git/HEAD", True),
        (DEFAULT_IGNORES, "a/__pycache__/b.pyc", True),
        (DEFAULT_IGNORES, "src/.main.py.swp", True),
        (DEFAULT_IGNORES, "movie.swf", False),
        (DEFAULT_IGNORES, "4913", False),
        (DEFAULT_IGNORES, ".github/workflows/ci.yml", False),
        (DEFAULT_IGNORES, "gitlab/.gitignore", False),
        ([], ".git/HEAD", False),
    ],
)
def test_whole_names_are_ignored(ignore: Sequence[str], below: str, expected: bool) -> None:
    assert skips(ignore, below) is expected


@pytest.mark.parametrize(
    ("include", "below", "expected"),
    [
        ([], "a", True),
        (["*.py"], "a/b.py", True),
        ("*.py", "a/b.py", True),
        (["*.py"], "a/b.pyx", False),
        (["src/**/*.toml"], "src/a.toml", True),
        (["src/**/*.toml"], "src/a/b/c.toml", True),
        (["src/**/*.toml"], "a.toml", False),
        (["Makefile", "*.mk"], "a/Makefile", True),
    ],
)
def test_only_included_files_are_wanted(include: Sequence[str], below: str, expected: bool) -> None:
    assert Rules(include, ()).wants(below.rpartition("/")[2], below) is expected


def look(tree: Tree, *hints: Path) -> dict[str, str]:
    tree.update([str(path) for path in hints])
    return {path.rpartition("/")[2]: change for path, change in tree.take_changes().items()}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree([str(tmp_path)], Rules((), DEFAULT_IGNORES), recursive=True)
    tree.compare()
    tree.take_changes()
    return tree


def test_one_hint_for_a_new_directory_finds_all_files_below_it(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    for place in ("a/1", "a/b/2", "a/b/c/3"):
        (tmp_path / place).write_text("x")
    assert look(tree, tmp_path / "a" / "b" / "c" / "3") == {"1": "added", "2": "added", "3": "added"}
    assert look(tree, tmp_path / "a") == {}


def test_directories_may_nest_deeper_than_the_call_stack(tree: Tree, tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(1500):
            os.mkdir("d", dir_fd=here)
            inner = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
        os.close(os.open("file", os.O_CREAT, dir_fd=here))
        os.close(here)
        assert look(tree, tmp_path / "d") == {"file": "added"}
    finally:
        # pytest removes temporary directories with shutil.rmtree(), which cannot delete such a deep tree.
        subprocess.run(["rm", "-rf", tmp_path / "d" / "d" / "d"], check=True)
    assert look(tree, tmp_path / "d" / "d" / "d") == {"file": "deleted"}


def test_a_file_that_becomes_a_directory_is_deleted_and_its_files_are_added(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "thing").write_text("x")
    assert look(tree, tmp_path / "thing") == {"thing": "added"}
    (tmp_path / "thing").unlink()
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / "inner").write_text("x")
    assert look(tree, tmp_path / "thing") == {"thing": "deleted", "inner": "added"}
    shutil.rmtree(tmp_path / "thing")
    (tmp_path / "thing").write_text("x")
    assert look(tree, tmp_path / "thing") == {"thing": "added", "inner": "deleted"}


def test_several_changes_to_a_file_between_reports_are_one_net_change(tree: Tree, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    tree.compare()
    file.unlink()
    tree.compare()
    assert tree.take_changes() == {}
    file.write_text("x")
    tree.compare()
    tree.take_changes()
    file.unlink()
    tree.compare()
    file.write_text("x")
    tree.compare()
    assert tree.take_changes() == {str(file): "modified"}


def test_a_reported_modification_counts_without_a_visible_difference(tree: Tree, tmp_path: Path) -> None:
    """Two writes of the same size within one tick of the file system's clock leave the same size and time."""
    file = tmp_path / "file"
    file.write_text("1")
    tree.update([str(file)])
    tree.take_changes()
    tree.update([str(file)])
    assert tree.take_changes() == {str(file): "modified"}


def test_only_regular_files_cause_changes(tree: Tree, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to("nowhere")
    assert look(tree, tmp_path / "pipe", tmp_path / "broken") == {}


def test_a_directory_of_the_tree_is_watched_unless_it_is_ignored_pruned_or_unreadable(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("src/inner", "node_modules/inner", "build/inner"):
        (root / name).mkdir(parents=True)
    tree = Tree([str(root)], Rules((), DEFAULT_IGNORES), prunes=lambda path: path.name == "build")
    tree.compare()
    watched = {tmp_path, root, root / "src", root / "src" / "inner"}
    assert tree.directories(roots=False).keys() == {str(path) for path in watched}
    assert tree.directories(roots=True).keys() == {str(root)}


@pytest.mark.skipif(WATCHES_DEEP, reason="only Linux needs new watches for new directories")
def test_reports_are_kept_while_the_watches_are_replaced(tmp_path: Path) -> None:
    hints = Hints(0.02, 0.02, threading.Event())
    try:
        hints.watch({str(tmp_path): (0, 1)})
        files = [tmp_path / str(number) for number in range(2000)]
        for file in files:
            file.touch()
        (tmp_path / "new").mkdir()
        for inode in (2, 3):
            new, late = hints.watch({str(tmp_path): (0, 1), str(tmp_path / "new"): (0, inode)})
            assert new == [str(tmp_path / "new")]
            assert inode == 3 or late.issuperset(map(str, files))
    finally:
        hints.close()


@pytest.mark.parametrize("watched", ["outside/file", "root"], ids=["above a watched file", "behind a link"])
def test_a_directory_that_is_gone_is_not_watched_before_its_parent_is_looked_at(tmp_path: Path, watched: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    tree = Tree([str(tmp_path / watched)], Rules((), ()), follow_links=True)
    tree.compare()
    assert str(tmp_path / "outside") in tree.directories(roots=False)
    shutil.rmtree(tmp_path / "outside")
    tree.read([str(tmp_path / "outside")])
    assert str(tmp_path / "outside") not in tree.directories(roots=False)


def test_no_path_raises() -> None:
    with pytest.raises(ValueError, match="no paths to watch"):
        FileWatchSource()


@pytest.mark.parametrize("wrong", [{"include": ["[a"]}, {"ignore": ["a\\"]}, {"ignore": [""]}, {"ignore": ["{a}"]}])
def test_invalid_globs_raise(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidPattern):
        FileWatchSource("src", **wrong)


def test_a_filter_that_is_not_callable_raises() -> None:
    with pytest.raises(TypeError, match=r"filter='\*\.py'"):
        FileWatchSource("src", filter="*.py")  # type: ignore[arg-type]  # the mistake under test


# -- files that are only listed -------------------------------------------------------------------------------------


@pytest.fixture
def listed(tmp_path: Path) -> Tree:
    """Return a tree whose files were written long before they were listed."""
    for name in ("a", "b", "d/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    wait_for_next_stamp(tmp_path)
    tree = Tree([str(tmp_path)], Rules((), DEFAULT_IGNORES), recursive=True)
    tree.compare(names=True)
    assert tree.take_changes() == {}
    return tree


def wait_for_next_stamp(directory: Path) -> None:
    """Wait until a change has a time that is clearly later than those of earlier changes."""
    probe = directory.parent / "probe"
    probe.write_text("")
    began = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns - began <= 2 * STAMP_NS:
        probe.touch()


def compared(tree: Tree) -> dict[str, str]:
    tree.compare()
    return {path.rpartition("/")[2]: change for path, change in tree.take_changes().items()}


def test_files_that_have_not_changed_since_they_were_listed_are_unchanged(listed: Tree) -> None:
    assert compared(listed) == {}


def test_changes_since_the_list_are_found_by_a_comparison(listed: Tree, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("y")
    (tmp_path / "b").unlink()
    (tmp_path / "e").write_text("x")
    assert compared(listed) == {"a": "modified", "b": "deleted", "e": "added"}
    assert compared(listed) == {}


def test_hint_at_a_listed_file_is_a_change_once(listed: Tree, tmp_path: Path) -> None:
    assert look(listed, tmp_path / "a") == {"a": "modified"}
    assert look(listed, tmp_path / "a") == {}


def test_listed_files_change_with_their_directory(listed: Tree, tmp_path: Path) -> None:
    other = tmp_path.parent / f"{tmp_path.name} other"
    other.mkdir()
    (other / "c").write_text("x")
    os.utime(other / "c", (1, 1))
    (tmp_path / "d").rename(tmp_path.parent / f"{tmp_path.name} old")
    other.rename(tmp_path / "d")
    assert compared(listed) == {"c": "modified"}


def test_a_listed_file_that_becomes_a_link_to_an_older_file_is_modified(listed: Tree, tmp_path: Path) -> None:
    (tmp_path / "a").unlink()
    (tmp_path / "a").symlink_to(tmp_path / "b")
    assert compared(listed) == {"a": "modified"}
    assert compared(listed) == {}


def test_a_listed_link_that_has_not_changed_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    wait_for_next_stamp(tmp_path)
    tree = Tree([str(tmp_path)], Rules((), DEFAULT_IGNORES), recursive=True)
    tree.compare(names=True)
    assert [*tree.take_changes()] == [str(tmp_path / "link")]
    assert compared(tree) == {}


def test_a_listed_file_that_becomes_a_directory_is_deleted(listed: Tree, tmp_path: Path) -> None:
    (tmp_path / "a").unlink()
    (tmp_path / "a").mkdir()
    assert compared(listed) == {"a": "deleted"}
    shutil.rmtree(tmp_path / "d")
    (tmp_path / "d").write_text("x")
    assert compared(listed) == {"c": "deleted", "d": "added"}
