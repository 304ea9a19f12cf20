"""FileWatchSource on real files, through a real router."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.backoff import Backoff
from lifecycle.control import Router
from lifecycle.errors import SourceFailed
from lifecycle.sources import FileWatchSource
from lifecycle.testing import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from lifecycle.events import FileEvent

LIMIT = 30


class Seen:
    """Records changes in order."""

    def __init__(self) -> None:
        self.events: list[FileEvent] = []
        self._news = asyncio.Condition()

    async def __call__(self, event: FileEvent) -> None:
        async with self._news:
            self.events.append(event)
            self._news.notify_all()

    @property
    def pairs(self) -> list[tuple[str, Path]]:
        return [(event.change, event.path) for event in self.events]

    def net(self) -> dict[Path, str]:
        """Return the last change to each path."""
        return {event.path: event.change for event in self.events}

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self._news:
            try:
                await asyncio.wait_for(self._news.wait_for(condition), LIMIT)
            except TimeoutError:
                pytest.fail(f"no such event; the events were: {self.pairs}")

    async def wait_for(self, change: str, path: Path) -> None:
        """Wait for an event, and forget all events up to and including it."""
        await self.until(lambda: (change, path) in self.pairs)

    async def after(self, sentinel: Path) -> list[tuple[str, Path]]:
        """Write the file ``sentinel``, return the changes that are reported before its own, and forget all of them."""
        sentinel.write_text("sentinel")
        await self.wait_for("added", sentinel)
        before = [pair for pair in self.pairs if pair[1] != sentinel]
        self.events.clear()
        return before


@contextlib.asynccontextmanager
async def watching(*paths: Path, **settings: Any) -> AsyncIterator[Seen]:
    router, seen = Router(), Seen()
    router.handle("file/*", seen)
    router.add_source(FileWatchSource(*paths, **{"step": 0.02, **settings}), backoff=Backoff(initial=0.01))
    async with running(router):
        yield seen


def replace(path: Path, text: str) -> None:
    """Replace a file as editors do: write a temporary file, then rename it."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    beside.replace(path)


def link(path: Path, target: str) -> None:
    """Replace a link in one step."""
    beside = path.with_name(path.name + "_tmp")
    beside.symlink_to(target)
    beside.replace(path)


@pytest.mark.usefixtures("every_loop")
async def test_a_file_causes_events_when_added_modified_and_deleted(tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    async with watching(tmp_path, step=0.1) as seen:
        file.write_text("one")
        await seen.wait_for("added", file)
        assert await seen.after(tmp_path / "1") == [("added", file)]
        file.write_text("two!")
        await seen.wait_for("modified", file)
        assert set(await seen.after(tmp_path / "2")) == {("modified", file)}
        file.unlink()
        await seen.wait_for("deleted", file)
        assert await seen.after(tmp_path / "3") == [("deleted", file)]


async def test_files_from_before_the_start_cause_no_event(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    async with watching(tmp_path) as seen:
        assert await seen.after(tmp_path / "new") == []


async def test_an_atomic_replacement_is_one_modification(tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("one")
    async with watching(tmp_path, step=0.1) as seen:
        for number in range(3):
            replace(file, f"text {number}")
            await seen.wait_for("modified", file)
            assert await seen.after(tmp_path / f"sentinel {number}") == [("modified", file)]


async def test_a_named_file_is_watched_through_replacement_and_its_neighbours_are_not(
    tmp_path: Path,
) -> None:
    file = tmp_path / "app.toml"
    file.write_text("one")
    async with watching(file) as seen:
        replace(file, "two")
        await seen.wait_for("modified", file)
        (tmp_path / "neighbour").write_text("x")
        seen.events.clear()
        file.unlink()
        await seen.wait_for("deleted", file)
        file.write_text("three")
        await seen.wait_for("added", file)
        seen.events.clear()
        file.write_text("in place")
        await seen.wait_for("modified", file)
        assert {path for _, path in seen.pairs} == {file}


async def test_a_named_file_is_watched_when_its_directory_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "app.toml"
    file.parent.mkdir(parents=True)
    file.write_text("one")
    async with watching(file) as seen:
        for number in range(3):
            shutil.rmtree(tmp_path / "a")
            await seen.wait_for("deleted", file)
            file.parent.mkdir(parents=True)
            file.write_text(f"number {number}")
            await seen.wait_for("added", file)
            seen.events.clear()


async def test_all_files_in_new_directories_cause_events(tmp_path: Path) -> None:
    wanted: set[Path] = set()

    def make() -> None:
        for number in range(300):
            place = tmp_path / f"d{number}" / "in" / "side"
            place.mkdir(parents=True)
            for name in "ab":
                (place / name).write_text(name)
                wanted.add(place / name)

    async with watching(tmp_path, step=0.005) as seen:
        await asyncio.to_thread(make)
        await seen.until(lambda: wanted <= {path for _, path in seen.pairs})
        assert {path for _, path in seen.pairs} == wanted


async def test_a_directory_moved_in_and_out_takes_its_files_along(tmp_path: Path) -> None:
    inside, outside = tmp_path / "watched", tmp_path / "outside"
    inside.mkdir()
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "file").write_text("x")
    async with watching(inside) as seen:
        outside.rename(inside / "moved")
        await seen.wait_for("added", inside / "moved" / "deep" / "file")
        (inside / "moved" / "deep" / "more").write_text("x")
        await seen.wait_for("added", inside / "moved" / "deep" / "more")
        (inside / "moved").rename(tmp_path / "gone")
        await seen.wait_for("deleted", inside / "moved" / "deep" / "file")
        await seen.wait_for("deleted", inside / "moved" / "deep" / "more")


@pytest.mark.parametrize("how", [shutil.rmtree, lambda path: path.rename(path.with_name("away"))])
async def test_a_watched_directory_that_is_made_again_is_watched_again(
    tmp_path: Path, how: Callable[[Path], object]
) -> None:
    root = tmp_path / "src"
    root.mkdir()
    (root / "file").write_text("x")
    async with watching(root) as seen:
        how(root)
        await seen.wait_for("deleted", root / "file")
        (root / "sub").mkdir(parents=True)
        (root / "sub" / "file").write_text("x")
        await seen.wait_for("added", root / "sub" / "file")
        (root / "sub" / "later").write_text("x")
        await seen.wait_for("added", root / "sub" / "later")


async def test_a_watched_directory_that_is_made_again_at_once_is_watched_again(tmp_path: Path) -> None:
    root = tmp_path / "src"
    root.mkdir()
    async with watching(root) as seen:
        for number in range(5):
            shutil.rmtree(root)
            root.mkdir()
            (root / f"file {number}").write_text("x")
            await seen.wait_for("added", root / f"file {number}")
            (root / f"later {number}").write_text("x")
            await seen.wait_for("added", root / f"later {number}")


@pytest.mark.parametrize("above", ["a", "a/b", "a/b/c"])
async def test_a_watched_directory_is_watched_again_when_a_directory_above_it_is_made_again(
    tmp_path: Path, above: str
) -> None:
    root = tmp_path / "a" / "b" / "c"
    root.mkdir(parents=True)
    async with watching(root) as seen:
        for number in range(5):
            (tmp_path / above).rename(tmp_path / f"old {number}")
            root.mkdir(parents=True)
            (root / f"file {number}").write_text("x")
            await seen.wait_for("added", root / f"file {number}")
            (root / f"later {number}").write_text("x")
            await seen.wait_for("added", root / f"later {number}")


async def test_a_directory_made_again_while_the_watches_are_renewed_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "a" / "root"
    root.mkdir(parents=True)
    (root / "file").write_text("x")
    realpath = os.path.realpath

    def make_again(path: str) -> str:
        real = realpath(path)
        if path == str(root.parent) and not root.parent.exists():
            root.mkdir(parents=True)
        return real

    async with watching(root) as seen:
        # The source finds that the root is missing between these two.
        monkeypatch.setattr(os.path, "realpath", make_again)
        root.parent.rename(tmp_path / "old")
        await seen.wait_for("deleted", root / "file")
        (root / "later").write_text("x")
        await seen.wait_for("added", root / "later")


async def test_a_file_that_was_added_and_deleted_causes_no_event(tmp_path: Path) -> None:
    async with watching(tmp_path, step=0.1) as seen:
        for number in range(20):
            (tmp_path / f"noise {number}").write_text("x")
            (tmp_path / f"noise {number}").unlink()
        assert await seen.after(tmp_path / "sentinel") == []


# -- links -----------------------------------------------------------------------------------------------------


def config_map(root: Path) -> Path:
    """Create a mounted ConfigMap with the layout that Kubernetes uses."""
    (root / "..2026_1").mkdir(parents=True)
    (root / "..2026_1" / "app.yaml").write_text("one")
    (root / "..data").symlink_to("..2026_1")
    (root / "app.yaml").symlink_to("..data/app.yaml")
    return root / "app.yaml"


def update_config_map(root: Path, number: int) -> None:
    """Update files as the kubelet does: create a new directory, replace the link, and remove the old directory."""
    (root / f"..2026_{number}").mkdir()
    (root / f"..2026_{number}" / "app.yaml").write_text(f"number {number}")
    link(root / "..data", f"..2026_{number}")
    shutil.rmtree(root / f"..2026_{number - 1}")


@pytest.mark.parametrize("named", ["the file", "the directory"])
async def test_a_swapped_config_map_modifies_the_file_under_its_own_name(tmp_path: Path, named: str) -> None:
    root = tmp_path / "config"
    file = config_map(root)
    async with watching(file if named == "the file" else root) as seen:
        for number in (2, 3, 4):
            update_config_map(root, number)
            await seen.wait_for("modified", file)
            assert named == "the directory" or set(seen.pairs) == {("modified", file)}
            seen.events.clear()


async def test_a_swapped_link_to_the_watched_directory_compares_old_and_new(tmp_path: Path) -> None:
    for release, names in (("1", "ab"), ("2", "bc")):
        (tmp_path / release).mkdir()
        for name in names:
            (tmp_path / release / name).write_text(release)
    current = tmp_path / "current"
    current.symlink_to("1")
    async with watching(current) as seen:
        link(current, "2")
        net = {current / "a": "deleted", current / "b": "modified", current / "c": "added"}
        await seen.until(lambda: seen.net() == net)
        (tmp_path / "2" / "d").write_text("x")
        await seen.wait_for("added", current / "d")


async def test_a_link_within_a_tree_to_a_directory_outside_is_followed_also_when_swapped(tmp_path: Path) -> None:
    root, one, two = tmp_path / "root", tmp_path / "one", tmp_path / "two"
    for directory in (root, one, two):
        directory.mkdir()
    (root / "inner").symlink_to(one)
    async with watching(root, follow_links=True) as seen:
        (one / "file").write_text("x")
        await seen.wait_for("added", root / "inner" / "file")
        link(root / "inner", str(two))
        await seen.wait_for("deleted", root / "inner" / "file")
        (two / "other").write_text("x")
        await seen.wait_for("added", root / "inner" / "other")


async def test_a_link_to_a_file_elsewhere_is_modified_when_that_file_is(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    target = tmp_path / "elsewhere"
    target.write_text("one")
    (tmp_path / "root" / "link").symlink_to(target)
    async with watching(tmp_path / "root") as seen:
        target.write_text("two!")
        await seen.wait_for("modified", tmp_path / "root" / "link")
        seen.events.clear()
        target.unlink()
        await seen.wait_for("deleted", tmp_path / "root" / "link")


async def test_links_made_later_and_links_that_lead_nowhere_yet_are_followed(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    (root / "broken").symlink_to(elsewhere / "file")
    async with watching(root, follow_links=True) as seen:
        (root / "later").symlink_to(elsewhere)
        (root / "sentinel").write_text("x")
        await seen.wait_for("added", root / "sentinel")
        elsewhere.mkdir()
        (elsewhere / "file").write_text("x")
        await seen.wait_for("added", root / "later" / "file")
        await seen.wait_for("added", root / "broken")
        seen.events.clear()
        (elsewhere / "file").write_text("longer")
        await seen.wait_for("modified", root / "later" / "file")
        await seen.wait_for("modified", root / "broken")


def watches() -> int:
    """Return the number of directories that this process watches through inotify."""
    infos = list(Path("/proc/self/fdinfo").iterdir())
    return sum(info.read_text().count("inotify wd:") for info in infos if info.exists())


@pytest.mark.parametrize("name", ["way-out", "node_modules"])
@pytest.mark.parametrize("when", ["before", "later"])
async def test_a_link_to_a_directory_outside_is_not_followed(tmp_path: Path, when: str, name: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "inner" / "deep").mkdir(parents=True)
    for number in range(200):
        (outside / str(number)).mkdir(parents=True)
    if when == "before":
        (root / "inner" / name).symlink_to(outside)
    async with watching(root) as seen:
        if when == "later":
            (root / "inner" / name).symlink_to(outside)
            # The source updates its watches when a directory is added.
            (root / "new").mkdir()
        (outside / "7" / "file").write_text("x")
        for number, place in enumerate((root, root / "inner", root / "inner" / "deep")):
            (place / "made").mkdir()
            for file in (place / f"file {number}", place / "made" / f"file {number}"):
                file.write_text("x")
                await seen.wait_for("added", file)
        assert watches() < 50
        wait_for = {path for _, path in seen.pairs}
        assert not any(path.is_relative_to(root / "inner" / name) or path.is_relative_to(outside) for path in wait_for)


async def test_a_link_to_a_directory_that_is_watched_too_is_followed(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    (root / "link").symlink_to(other)
    async with watching(root, other) as seen:
        (other / "file").write_text("x")
        await seen.wait_for("added", root / "link" / "file")
        await seen.wait_for("added", other / "file")


async def test_a_link_that_is_swapped_to_lead_outside_loses_its_files(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "one").mkdir(parents=True)
    outside.mkdir()
    for directory in (root / "one", outside):
        (directory / "file").write_text("x")
    (root / "link").symlink_to("one")
    async with watching(root) as seen:
        link(root / "link", str(outside))
        await seen.wait_for("deleted", root / "link" / "file")
        link(root / "link", "one")
        await seen.wait_for("added", root / "link" / "file")


async def test_links_in_a_circle_are_harmless(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "self").symlink_to("self")
    async with watching(tmp_path) as seen:
        (tmp_path / "a" / "file").write_text("x")
        await seen.wait_for("added", tmp_path / "a" / "file")
        assert await seen.after(tmp_path / "sentinel") == [("added", tmp_path / "a" / "file")]


# -- reported changes ------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="counts the watches of inotify")
async def test_ignored_directories_are_not_watched_at_the_start(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / "node_modules" / str(number)).mkdir(parents=True)
        (tmp_path / "src" / str(number)).mkdir(parents=True)
    before = inotify_watches()
    async with watching(tmp_path) as seen:
        assert inotify_watches() - before < 30
        (tmp_path / "src" / "7" / "a").write_text("x")
        await seen.wait_for("added", tmp_path / "src" / "7" / "a")
        (tmp_path / "src" / "new" / "newer").mkdir(parents=True)
        (tmp_path / "src" / "new" / "newer" / "b").write_text("x")
        await seen.wait_for("added", tmp_path / "src" / "new" / "newer" / "b")


def inotify_watches() -> int:
    """Return the number of inotify watches of this process."""
    found = 0
    for info in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            found += info.read_text().count("inotify wd:")
    return found


async def test_ignored_names_count_below_the_watched_directory_only(tmp_path: Path) -> None:
    root = tmp_path / "node_modules" / ".venv"
    (root / ".git").mkdir(parents=True)
    (root / "node_modules_of_mine").mkdir()
    async with watching(root, step=0.1) as seen:
        (root / ".git" / "index").write_text("x")
        (root / "node_modules").mkdir()
        (root / "node_modules" / "module.js").write_text("x")
        (root / "file.txt~").write_text("x")
        (root / "node_modules_of_mine" / "file").write_text("x")
        await seen.wait_for("added", root / "node_modules_of_mine" / "file")
        assert await seen.after(root / "z") == [("added", root / "node_modules_of_mine" / "file")]


async def test_only_included_files_that_pass_the_filter_cause_events(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()

    def no_deletion(change: str, path: Path) -> bool:
        return change != "deleted" and path.name != "no.py"

    async with watching(tmp_path, include=["*.py", "src/**/*.toml"], filter=no_deletion) as seen:
        for name in ("a.py", "no.py", "a.txt", "a.toml", "src/a.toml"):
            (tmp_path / name).write_text("x")
        wait_for = {("added", tmp_path / "a.py"), ("added", tmp_path / "src" / "a.toml")}
        await seen.until(lambda: wait_for <= set(seen.pairs))
        (tmp_path / "a.py").unlink()
        assert set(await seen.after(tmp_path / "z.py")) == wait_for


async def test_without_recursion_only_the_directory_itself_counts(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    async with watching(root, recursive=False) as seen:
        (root / "sub" / "file").write_text("x")
        (root / "file").write_text("x")
        await seen.wait_for("added", root / "file")
        assert await seen.after(root / "z") == [("added", root / "file")]
        shutil.rmtree(root)
        root.mkdir()
        (root / "again").write_text("x")
        await seen.wait_for("added", root / "again")


async def test_overlapping_paths_cause_one_event_per_change(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "file"
    file.write_text("x")
    async with watching(tmp_path, tmp_path / "sub", file) as seen:
        file.write_text("other")
        await seen.wait_for("modified", file)
        file.unlink()
        await seen.wait_for("deleted", file)
        assert (await seen.after(tmp_path / "z")).count(("deleted", file)) == 1


async def test_a_relative_path_causes_events_with_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    async with watching(Path("src")) as seen:
        (tmp_path / "src" / "a").write_text("x")
        await seen.wait_for("added", tmp_path / "src" / "a")


async def test_polling_causes_the_same_events(tmp_path: Path) -> None:
    file = tmp_path / "file"
    async with watching(tmp_path, poll=0.05) as seen:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "inner").write_text("x")
        file.write_text("x")
        await seen.wait_for("added", file)
        file.write_text("y")
        await seen.wait_for("modified", file)
        shutil.rmtree(tmp_path / "sub")
        await seen.wait_for("deleted", tmp_path / "sub" / "inner")


@pytest.mark.parametrize("settings", [{}, {"poll": 0.05}], ids=["watched", "polled"])
async def test_existing_files_are_added_once_before_later_changes(tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    existing = [tmp_path / "a" / "b" / "2", tmp_path / "a" / "1", tmp_path / "3"]
    for file in existing:
        file.write_text("x")
    async with watching(tmp_path, existing=True, **settings) as seen:
        assert await seen.after(tmp_path / "new") == [("added", file) for file in sorted(existing)]


async def test_files_added_during_the_start_are_reported_once_if_existing_files_are(tmp_path: Path) -> None:
    wanted: set[Path] = set()
    stop = False

    def write() -> None:
        for number in range(5000):
            place = tmp_path / f"d{number % 50}"
            place.mkdir(exist_ok=True)
            (place / f"{number}").write_text("x")
            wanted.add(place / f"{number}")
            if stop:
                return

    writing = asyncio.create_task(asyncio.to_thread(write))
    async with watching(tmp_path, existing=True) as seen:
        stop = True
        await writing
        await seen.until(lambda: wanted <= {path for _, path in seen.pairs})
        added = [path for change, path in seen.pairs if change == "added"]
        assert len(added) == len(wanted)


async def test_a_file_that_is_still_being_written_is_not_reported_until_it_has_settled(tmp_path: Path) -> None:
    file = tmp_path / "upload"
    loop = asyncio.get_running_loop()
    async with watching(tmp_path, settled=0.5) as seen:
        with file.open("w") as upload:
            for _ in range(10):
                upload.write("x")
                upload.flush()
                last = loop.time()
                await asyncio.sleep(0.1)
        (tmp_path / "passing").write_text("x")
        (tmp_path / "passing").unlink()
        await seen.until(lambda: bool(seen.events))
        assert seen.pairs == [("added", file)]
        assert loop.time() - last >= 0.5
        file.unlink()
        await seen.wait_for("deleted", file)


# -- failures --------------------------------------------------------------------------------------------------


async def test_a_path_that_does_not_exist_fails_the_start_and_is_named(tmp_path: Path) -> None:
    router = Router()
    router.add_source(FileWatchSource(tmp_path / "nowhere"))
    with pytest.raises(SourceFailed, match="nowhere") as failed:
        await asyncio.wait_for(router.run(), LIMIT)
    assert isinstance(failed.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize("settings", [{}, {"poll": 0.05}], ids=["watched", "polled"])
async def test_a_name_that_is_not_utf_8_is_skipped_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    router, seen = Router(), Seen()
    source = FileWatchSource(tmp_path, **settings)
    router.handle("file/*", seen)
    router.add_source(source)
    async with running(router):
        for number in range(2):
            odd.write_text(str(number))
            (tmp_path / f"even {number}").write_text("x")
            await seen.wait_for("added", tmp_path / f"even {number}")
        assert source.skipped == 1
        assert router.sources()[0].failures == 0
        odd.rename(tmp_path / "renamed")
        await seen.wait_for("added", tmp_path / "renamed")
        assert source.skipped == 0
    assert all("even" in path.name or path.name == "renamed" for _, path in seen.pairs)
    assert [record.levelname for record in caplog.records if "UTF-8" in record.message] == ["WARNING"]


@pytest.mark.parametrize("place", [".", "node_modules"], ids=["counts", "ignored"])
async def test_a_directory_whose_name_is_not_utf_8_hides_no_changes(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    Path(os.fsdecode(os.fsencode(tmp_path / place) + b"/\xff")).mkdir()
    (tmp_path / "inner").mkdir()
    async with watching(tmp_path) as seen:
        for number in range(5):
            changed = tmp_path / "inner" / f"{number}"
            changed.write_text("x")
            await seen.wait_for("added", changed)


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is a feature of Linux")
async def test_changes_are_found_when_the_queue_of_reports_overflows(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    (tmp_path / "inner").mkdir()
    async with watching(tmp_path) as seen:
        # Nothing reads the reports until the next await.
        for number in range(limit):
            (tmp_path / "ab"[number % 2]).touch()
        (tmp_path / "inner" / "new").mkdir()
        (tmp_path / "inner" / "new" / "last").write_text("x")
        await seen.wait_for("added", tmp_path / "inner" / "new" / "last")
        (tmp_path / "inner" / "new" / "later").write_text("x")
        await seen.wait_for("added", tmp_path / "inner" / "new" / "later")


async def test_a_directory_that_becomes_readable_is_watched(as_anybody: Path) -> None:
    (as_anybody / "shut").mkdir()
    (as_anybody / "shut").chmod(0)
    async with watching(as_anybody) as seen:
        (as_anybody / "shut").chmod(0o755)
        (as_anybody / "shut" / "file").write_text("x")
        await seen.wait_for("added", as_anybody / "shut" / "file")
        (as_anybody / "shut" / "later").write_text("x")
        await seen.wait_for("added", as_anybody / "shut" / "later")


async def test_a_restarted_source_reports_changes_since_its_failure(tmp_path: Path) -> None:
    failures = deque([ValueError("the filter fails once")])

    def filter_(_change: str, _path: Path) -> bool:
        if failures:
            (tmp_path / "meanwhile").write_text("x")
            raise failures.popleft()
        return True

    async with watching(tmp_path, filter=filter_) as seen:
        (tmp_path / "a").write_text("x")
        await seen.wait_for("added", tmp_path / "meanwhile")


async def test_a_source_whose_restart_was_cancelled_begins_anew(tmp_path: Path) -> None:
    source = FileWatchSource(tmp_path, step=0.02)
    with pytest.raises(ValueError, match="it fails"):
        async with source:
            raise ValueError("it fails")
    (tmp_path / "meanwhile").write_text("x")
    restart = asyncio.create_task(source.__aenter__())
    await asyncio.sleep(0)
    restart.cancel()
    await asyncio.wait({restart})
    router, seen = Router(), Seen()
    router.handle("file/*", seen)
    router.add_source(source)
    async with running(router):
        assert await seen.after(tmp_path / "sentinel") == []


@pytest.fixture
async def as_anybody() -> AsyncIterator[Path]:
    """Yield a directory. If root runs the tests, run this test as an unprivileged user."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name).resolve()
        async with watching(directory) as seen:
            # Import every module that a source needs now, because the files may be unreadable later.
            await seen.after(directory / "first")
        if os.geteuid() != 0:
            yield directory
            return
        os.chown(directory, 65534, 65534)
        os.seteuid(65534)
        try:
            yield directory
        finally:
            os.seteuid(0)


@pytest.mark.parametrize("bad", ["", *"abcdef"])
async def test_only_unreadable_directories_are_skipped(as_anybody: Path, bad: str) -> None:
    root = as_anybody / "root"
    for name in "abcdef":
        (root / name / "in").mkdir(parents=True)
    for name in (bad, ".git"):
        (root / name / "closed").mkdir(parents=True)
        (root / name / "closed").chmod(0)
    async with watching(root) as seen:
        files = {root / name / "in" / "file" for name in "abcdef"}
        for file in files:
            file.write_text("x")
        await seen.until(lambda: {path for _, path in seen.pairs} == files)
        (root / bad / "new" / "deep").mkdir(parents=True)
        (root / bad / "new" / "deep" / "file").write_text("x")
        await seen.wait_for("added", root / bad / "new" / "deep" / "file")
        (root / bad / "new" / "deep" / "later").write_text("x")
        await seen.wait_for("added", root / bad / "new" / "deep" / "later")


@pytest.mark.parametrize("target", ["../closed/inner", "link"], ids=["unreadable", "loop"])
async def test_links_that_cannot_be_followed_hide_nothing_next_to_unreadable_directories(
    as_anybody: Path, target: str
) -> None:
    root = as_anybody / "root"
    (root / "a" / "in").mkdir(parents=True)
    (root / "a" / "link").symlink_to(target)
    (root / "a" / "shut").mkdir()
    (root / "closed" / "inner").mkdir(parents=True)
    for path in (root / "a" / "shut", root / "closed"):
        path.chmod(0)
    async with watching(root) as seen:
        for file in (root / "a" / "file", root / "a" / "in" / "file"):
            file.write_text("x")
            await seen.wait_for("added", file)


async def test_a_directory_that_may_not_be_read_fails_the_start_and_is_named(as_anybody: Path) -> None:
    (as_anybody / "closed").mkdir()
    (as_anybody / "closed").chmod(0)
    with pytest.raises(PermissionError, match="closed"):
        await FileWatchSource(as_anybody / "closed").__aenter__()


IN_A_NAMESPACE = """
import asyncio, sys
from pathlib import Path
from lifecycle.sources import FileWatchSource

limit, figure, root = sys.argv[1:]
Path("/proc/sys/user/", limit).write_text(figure)

async def main():
    async with FileWatchSource(root):
        pass

try:
    asyncio.run(main())
except OSError as error:
    print(error)
"""


@pytest.mark.engine("unshare")
@pytest.mark.parametrize(
    ("limit", "figure", "named"),
    [("max_inotify_watches", "5", "max_user_watches"), ("max_inotify_instances", "0", "max_user_instances")],
)
async def test_a_limit_that_is_reached_is_named_with_how_to_raise_it(
    tmp_path: Path, limit: str, figure: str, named: str
) -> None:
    for number in range(20):
        (tmp_path / str(number)).mkdir()
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        sys.executable,
        "-c",
        IN_A_NAMESPACE,
        limit,
        figure,
        str(tmp_path),
    ]
    wait_for = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if "unshare" in wait_for.stderr:
        pytest.skip(f"user namespaces are not allowed here: {wait_for.stderr.strip()}")
    assert f"sysctl fs.inotify.{named}=" in wait_for.stdout, wait_for.stderr
    present = Path(f"/proc/sys/fs/inotify/{named}").read_text().strip()
    assert present in wait_for.stdout


GROWS = """
import asyncio, sys
from pathlib import Path
from lifecycle.sources import FileWatchSource

root = Path(sys.argv[1])
Path("/proc/sys/user/max_inotify_watches").write_text("30")

async def main():
    async def emit(event):
        print(event.change, event.path.name, flush=True)
        raise SystemExit

    async with FileWatchSource(root) as source:
        (root / "new").mkdir()
        (root / "new" / "file").touch()
        await source.run(emit)

asyncio.run(main())
"""


@pytest.mark.engine("unshare")
async def test_new_directory_is_watched_if_two_watchers_exceed_the_limit(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).mkdir()
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", GROWS, str(tmp_path)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if "unshare" in done.stderr:
        pytest.skip(f"user namespaces are not allowed here: {done.stderr.strip()}")
    assert done.stdout == "added file\n", done.stderr


async def test_start_that_is_cancelled_reads_no_more_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        (tmp_path / str(number)).mkdir()
    reading, proceed = threading.Event(), threading.Event()
    read: list[str] = []
    scandir = os.scandir

    def slow(path: str) -> Any:
        read.append(path)
        reading.set()
        proceed.wait(LIMIT)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", slow)
    start = asyncio.create_task(FileWatchSource(tmp_path).__aenter__())
    assert await asyncio.to_thread(reading.wait, LIMIT)
    start.cancel()
    await asyncio.sleep(0)
    proceed.set()
    await asyncio.wait({start})
    assert start.cancelled()
    assert len(read) < 5


async def test_source_whose_thread_could_not_start_can_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, begin = FileWatchSource(tmp_path, step=0.02), threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name.startswith("lifecycle files"):
            raise RuntimeError("can't start new thread")
        begin(thread)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="new thread"):
        patch.setattr(threading.Thread, "start", fail)
        await source.__aenter__()
    router, seen = Router(), Seen()
    router.handle("file/*", seen)
    router.add_source(source)
    async with running(router):
        assert await seen.after(tmp_path / "sentinel") == []


def test_source_can_be_used_in_one_loop_after_the_other(tmp_path: Path) -> None:
    source = FileWatchSource(tmp_path, step=0.02)

    async def use(name: str) -> None:
        found: asyncio.Queue[FileEvent] = asyncio.Queue()
        async with source:
            run = asyncio.create_task(source.run(found.put))  # type: ignore[arg-type]  # the source ignores the result
            await asyncio.sleep(0)
            (tmp_path / name).touch()
            assert (await asyncio.wait_for(found.get(), LIMIT)).path == tmp_path / name
            run.cancel()
            await asyncio.wait({run})

    asyncio.run(use("1"))
    asyncio.run(use("2"))


UNCLOSED = """
import asyncio, sys
from pathlib import Path
from lifecycle.sources import FileWatchSource

async def main(source):
    await source.__aenter__()
    asyncio.create_task(source.run(print))
    await asyncio.sleep(0)

source = FileWatchSource(sys.argv[1])
asyncio.run(main(source))
Path(sys.argv[1], "late").touch()
"""


async def test_source_that_was_not_closed_ends_quietly_with_its_program(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNCLOSED, str(tmp_path)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# -- random changes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
async def test_the_last_change_of_each_path_matches_its_existence(tmp_path: Path, seed: int) -> None:
    """The test performs random operations on a small tree, with and without pauses."""
    chance = random.Random(seed)
    root = tmp_path / "root"
    root.mkdir()
    known: dict[Path, str] = {}
    async with watching(root, step=chance.choice([0.001, 0.01, 0.05])) as seen:
        for number in range(150):
            with contextlib.suppress(OSError, shutil.Error):
                _operate(chance, root, number)
            if chance.random() < 0.1:
                await asyncio.sleep(chance.random() * 0.05)

        def settled() -> bool:
            known.update(seen.net())
            there = {path for path, change in known.items() if change != "deleted"}
            return there == {path for path in root.rglob("*") if path.is_file()}

        await seen.until(settled)
        (root / f"sentinel {seed}").write_text("x")
        await seen.until(settled)


def _operate(chance: random.Random, root: Path, number: int) -> None:
    places = [root, *(root / a for a in "xyz"), *(root / a / b for a in "xyz" for b in "pq")]
    place, other = chance.choice(places), chance.choice(places)
    name = chance.choice("abc")
    match chance.randrange(8):
        case 0 | 1:
            place.mkdir(parents=True, exist_ok=True)
            (place / name).write_text("x" * number)
        case 2:
            (place / name).unlink()
        case 3:
            replace(place / name, "y" * number)
        case 4:
            (place / name).rename(other / chance.choice("abc"))
        case 5 if place != root:
            place.rename(other / chance.choice("xyzpq"))
        case 6 if place != root:
            shutil.rmtree(place)
        case _:
            (place / chance.choice("pq")).mkdir(parents=True)
