"""The file of an event log: one line per event, limited in size, with and without disk errors."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import Event, Router
from lifecycle.observe import EventLog
from lifecycle.observe.eventlog.files import LineFile
from lifecycle.testing import Clock, running

if TYPE_CHECKING:
    from pathlib import Path


async def nothing(_event: Event) -> None:
    pass


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


async def filled(log: EventLog, *topics: str) -> None:
    router = Router()
    router.handle("**", nothing, debounce=0.1 if "merged" in topics else None)
    async with log, running(router):
        for topic in topics:
            await router.emit(Event(topic))


async def test_each_event_is_a_line_once_it_has_ended(clock: Clock, tmp_path: Path) -> None:
    log = EventLog(1, path=tmp_path / "events.jsonl")
    await filled(log, "a", "b", "😀\n")
    assert [(line["topic"], line["what"]) for line in lines(tmp_path / "events.jsonl")] == [
        ("a", "handled"),
        ("b", "handled"),
        ("😀\n", "handled"),
    ]
    assert lines(tmp_path / "events.jsonl")[-1] == log.entries()[-1].to_dict()


async def test_merged_events_are_there_before_their_call(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    await filled(EventLog(path=path), "merged", "merged")
    assert [line["what"] for line in lines(path)] == ["merged", "merged", "handled"]


async def test_events_that_have_not_ended_stay_as_they_were(clock: Clock, tmp_path: Path) -> None:
    router = Router()
    router.handle("**", nothing)
    async with EventLog(path=tmp_path / "events.jsonl"):
        await router.emit(Event("a"))
    assert [line["what"] for line in lines(tmp_path / "events.jsonl")] == ["queued"]


async def test_a_file_is_continued_after_a_torn_line(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    await filled(EventLog(path=path), "a")
    with path.open("a") as file:
        file.write('{"id": 1, "top')
    await filled(EventLog(path=path), "b")
    kept = path.read_text().splitlines()
    assert [json.loads(kept[0])["topic"], kept[1], json.loads(kept[2])["topic"]] == ["a", '{"id": 1, "top', "b"]


async def test_only_its_owner_can_read_it(clock: Clock, tmp_path: Path) -> None:
    await filled(EventLog(path=tmp_path / "events.jsonl"), "a")
    assert (tmp_path / "events.jsonl").stat().st_mode & 0o777 == 0o600


async def test_a_full_file_is_rotated(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    await filled(EventLog(path=path, max_bytes=1000, backups=2), *(f"a/{number:02}" for number in range(20)))
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["events.jsonl", "events.jsonl.1", "events.jsonl.2"]
    assert all(each.stat().st_size <= 1000 for each in files)
    kept = [line["topic"] for each in reversed(files) for line in lines(each)]
    assert kept == [f"a/{number:02}" for number in range(20)][-len(kept) :]


def test_without_older_files_the_log_is_truncated(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "lines", 10, 0)
    file.open()
    file.write([b"12345\n", b"1234\n", b"longer than a file may be\n", b"x\n"])
    file.close()
    assert (tmp_path / "lines").read_text() == "x\n"
    assert [each.name for each in tmp_path.iterdir()] == ["lines"]
    assert file.written == 4


async def test_a_disk_that_is_full_costs_lines_and_one_message(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(path="/dev/full")
    await filled(log, "a")
    await filled(log, "b", "c")
    assert log.state().lost == 2
    assert [entry.topic for entry in log.entries()] == ["a", "b", "c"]
    messages = [record.message for record in caplog.records if "missing" in record.message]
    assert len(messages) == 2, "expected one message each time the log was open"
    assert "/dev/full" in messages[0]
    assert "No space left" in messages[0]


async def test_a_file_that_cannot_be_renamed_costs_lines(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.jsonl"
    (tmp_path / "events.jsonl.1").mkdir()
    (tmp_path / "events.jsonl.1" / "in the way").touch()
    log = EventLog(path=path, max_bytes=300, backups=1)
    await filled(log, *("a" * 5))
    assert [line["topic"] for line in lines(path)] == ["a"]
    assert log.state().lost == 4
    assert "events are missing" in caplog.text


async def test_events_that_the_disk_cannot_take_are_lost_and_counted(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lifecycle.observe.eventlog.files._WAITING", 3)
    path = tmp_path / "events.jsonl"
    log, router = EventLog(path=path), Router()
    async with log:
        for _ in range(10):
            with pytest.raises(Exception, match="no route"):
                await router.emit(Event("a"))
    assert (len(lines(path)), log.state().lost) == (3, 7)
    assert "too slow" in caplog.text


@pytest.mark.parametrize("name", ["nowhere/events.jsonl", "."])
async def test_a_file_that_cannot_be_opened_is_an_error_at_once(clock: Clock, tmp_path: Path, name: str) -> None:
    log = EventLog(path=tmp_path / name)
    with pytest.raises(OSError, match=r"nowhere|directory"):
        await log.__aenter__()
    assert log.state().kept == 0


async def test_a_pipe_without_a_reader_is_an_error_at_once(clock: Clock, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        await EventLog(path=tmp_path / "pipe").__aenter__()
