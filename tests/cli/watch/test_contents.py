"""A touch is not a change: the watcher remembers the contents of files, within limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle.cli.watch import contents
from lifecycle.cli.watch.contents import Contents

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from lifecycle.events import Change


async def learn(known: Contents, root: Path, counts: Callable[[Path], bool] = lambda _: True) -> None:
    async for _ in known.learn([root], lambda paths: filter(counts, paths)):
        pass


def made_long_ago() -> Contents:
    """Return a watcher that has already recorded all existing files."""
    return Contents(until=2**62)


async def changed(known: Contents, path: Path, change: Change = "modified") -> bool:
    return path in await known.changed({path: change})


async def test_touch_of_known_file_is_not_a_change(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("1")
    known = made_long_ago()
    await learn(known, tmp_path)

    path.touch()
    assert not await changed(known, path)
    path.write_text("1")
    assert not await changed(known, path)
    path.write_text("2")
    assert await changed(known, path)
    path.touch()
    assert not await changed(known, path)


async def test_change_before_reading_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch is read before the command starts, so only the file in the second batch is treated as changed."""
    monkeypatch.setattr(contents, "BATCH", 1)
    monkeypatch.setattr(contents, "STAMP_NS", 60 * 10**9)  # on a busy machine, the first batch may take long
    known = Contents()
    paths = [tmp_path / "a.py", tmp_path / "b.py"]
    for path in paths:
        path.write_text("1")
    await learn(known, tmp_path)
    assert sorted([await changed(known, path) for path in paths]) == [False, True]
    assert not any([await changed(known, path) for path in paths])


async def test_late_reading_does_not_hide_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("1")
    known = made_long_ago()
    assert await changed(known, path)
    path.write_text("2")
    await learn(known, tmp_path)
    assert await changed(known, path)


async def test_added_and_deleted_files_always_count(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("1")
    known = made_long_ago()
    await learn(known, path)
    assert await changed(known, path, "added")
    path.unlink()
    assert await changed(known, path, "deleted")
    path.write_text("1")
    assert await changed(known, path, "added")


async def test_changed_permissions_are_a_change(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("1")
    known = made_long_ago()
    await learn(known, tmp_path)
    path.chmod(0o755)
    assert await changed(known, path)


async def test_a_file_that_cannot_be_read_counts(tmp_path: Path) -> None:
    known = made_long_ago()
    assert await changed(known, tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    assert await changed(known, tmp_path / "pipe")


async def test_large_file_is_compared_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_SIZE", 3)
    path = tmp_path / "large"
    path.write_text("1234")
    known = made_long_ago()
    await learn(known, tmp_path)
    assert not await changed(known, path)
    os.utime(path, (1, 1))
    assert await changed(known, path)


async def test_large_files_are_not_read_and_a_new_size_counts(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    with path.open("wb") as file:
        file.truncate(2 * 1024 * 1024)
    small = tmp_path / "a.py"
    small.write_text("1")
    known = made_long_ago()
    read = read_bytes()
    await learn(known, tmp_path)
    assert read_bytes() - read < 64 * 1024
    assert not await changed(known, path)
    os.truncate(path, 3 * 1024 * 1024)
    assert await changed(known, path)
    assert not await changed(known, path)
    small.touch()
    assert not await changed(known, small)


async def test_bytes_read_at_the_start_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_READ", 10)
    paths = [tmp_path / name for name in "abcd"]
    for path in paths:
        path.write_text("1234")
        os.utime(path, (1, 1))
    known = made_long_ago()
    await learn(known, tmp_path)
    for path in paths:
        path.touch()
    counted = [await changed(known, path) for path in paths]
    assert sorted(counted) == [False, False, True, True], "two files were read, and two were recognized by their times"
    for path in paths:
        path.touch()
    assert not any([await changed(known, path) for path in paths]), "not all files have been read"


def read_bytes() -> int:
    """Return the number of bytes that this process has read so far, as reported by Linux."""
    return int(Path("/proc/self/io").read_text().split()[1])


async def test_only_what_counts_is_read(tmp_path: Path) -> None:
    for name in ("a.py", "b.txt", "node_modules/c.py", "src/__pycache__/d.py", "src/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    known = made_long_ago()
    await learn(known, tmp_path, lambda path: path.suffix == ".py")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in files:
        path.touch()
    assert {path.name for path in files if not await changed(known, path)} == {"a.py", "e.py"}


async def test_remembered_files_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_FILES", 3)
    monkeypatch.setattr(contents, "BATCH", 2)
    paths = [tmp_path / name for name in "abcde"]
    for path in paths:
        path.write_text(path.name)
    known = made_long_ago()
    assert [number async for number in known.learn([tmp_path], lambda paths: paths)] == [2]
    await known.changed(dict.fromkeys(paths, "modified"))
    for path in paths[:2]:
        assert path in await Contents(until=0).changed({path: "modified"})
    assert [path for path in reversed(paths) if not await changed(known, path)] == list(reversed(paths[-3:]))
