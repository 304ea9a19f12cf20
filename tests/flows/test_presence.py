"""Presence: processes with an open store see each other, notify each other, and detect when one exits."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from lifecycle.flows import Presence
from lifecycle.flows.stores.presence import GONE, FilePresence
from lifecycle.journal.database import FileLock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from lifecycle.testing import Clock

LIMIT = 20.0


@pytest.fixture
async def join(tmp_path: Path) -> AsyncIterator[Callable[[], Presence]]:
    """Return a function that opens the store as a different process would."""
    with ExitStack() as stack:

        def join() -> Presence:
            presence = stack.enter_context(closing(FilePresence(tmp_path / "owners")))
            presence.open()
            return presence

        yield join


def notified(presence: Presence, news: str) -> asyncio.Event:
    event = asyncio.Event()
    presence.listen(news, event.set)
    return event


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(LIMIT):
        await event.wait()


async def test_present_processes_are_alive_and_others_are_not(join: Callable[[], FilePresence]) -> None:
    first, second = join(), join()
    assert first.alive(second.token)
    assert second.alive(first.token)
    assert first.alive(first.token)
    assert not first.alive("1-00000000dead")


async def test_notifications_reach_all_their_listeners_and_no_others(join: Callable[[], FilePresence]) -> None:
    first, second, third = join(), join(), join()
    news = [notified(each, "jobs") for each in (first, second, third)]
    other = notified(second, "end of a")
    await asyncio.sleep(0)
    await _known(first, 2)
    first.notify("jobs")
    for event in news:
        await soon(event)
    assert not other.is_set()
    third.notify("end of a")
    await soon(other)


async def _known(presence: Presence, others: int) -> None:
    """Wait until ``presence`` is connected to ``others`` other processes."""
    async with asyncio.timeout(LIMIT):
        while f"among {others + 1}" not in repr(presence):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("news", ["end of \n\\x", "end of ü 名", "end of %41"])
async def test_notifications_arrive_unchanged(join: Callable[[], FilePresence], news: str) -> None:
    first, second = join(), join()
    await _known(first, 1)
    event = notified(second, news)
    first.notify(news)
    await soon(event)


async def test_a_removed_listener_gets_no_notifications(join: Callable[[], FilePresence]) -> None:
    presence = join()
    calls: list[str] = []
    silence = presence.listen("jobs", lambda: calls.append("a"))
    presence.listen("jobs", lambda: calls.append("b"))
    silence()
    presence.notify("jobs")
    assert calls == ["b"]


async def test_a_process_that_leaves_is_missed_at_once(join: Callable[[], FilePresence]) -> None:
    first, second = join(), join()
    gone = notified(second, GONE)
    await _known(first, 1)
    token = first.token
    first.close()
    await soon(gone)
    assert second.losses == 1
    assert not second.alive(token)
    assert first.token == ""


async def test_a_process_whose_file_was_deleted_creates_it_again(
    join: Callable[[], FilePresence], tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = join(), join()
    (tmp_path / "owners" / first.token).unlink()
    assert not second.alive(first.token)
    await clock.advance(6.0)
    assert second.alive(first.token)
    assert "was deleted while this process used it" in caplog.text
    news = notified(first, "jobs")
    while not news.is_set():
        second.notify("jobs")
        await asyncio.sleep(0.001)


async def test_a_process_that_returns_has_a_new_name(join: Callable[[], FilePresence]) -> None:
    first, second = join(), join()
    before = first.token
    first.close()
    first.open()
    assert first.token != before
    assert second.alive(first.token)
    assert not second.alive(before)


async def test_files_of_dead_processes_are_deleted(join: Callable[[], FilePresence], tmp_path: Path) -> None:
    (tmp_path / "owners").mkdir()
    os.mkfifo(tmp_path / "owners" / "1-00000000dead")
    (tmp_path / "owners" / "2-00000000dead").touch()
    presence = join()
    assert not presence.alive("2-00000000dead")
    assert [path.name for path in (tmp_path / "owners").iterdir()] == [presence.token]
    assert presence.losses == 1


@pytest.mark.parametrize(
    "token", ["VICTIM", "../victim", "..", ".", "1-dead", "01-00000000dead", "1-00000000DEAD", "\0"]
)
async def test_only_names_made_by_the_library_are_looked_up(
    join: Callable[[], FilePresence], tmp_path: Path, token: str
) -> None:
    (victim := tmp_path / "victim").write_text("a private key")
    presence = join()
    for name in ("1-dead", "01-00000000dead", "1-00000000DEAD"):
        (tmp_path / "owners" / name).touch()
    files = sorted((tmp_path / "owners").iterdir())
    assert not presence.alive(token.replace("VICTIM", str(victim)))
    join()
    assert victim.read_text() == "a private key"
    assert set(files) < set((tmp_path / "owners").iterdir())


async def test_files_that_no_process_made_are_left_alone(join: Callable[[], FilePresence], tmp_path: Path) -> None:
    (owners := tmp_path / "owners").mkdir()
    (tmp_path / "victim").touch()
    (owners / "1-000000000001").symlink_to(tmp_path / "victim")
    (owners / "1-000000000002").mkdir()
    presence = join()
    assert not presence.alive("1-000000000001")
    assert not presence.alive("1-000000000002")
    assert {path.name for path in owners.iterdir()} == {"1-000000000001", "1-000000000002", presence.token}


async def test_without_fifos_the_lock_shows_which_processes_live(
    join: Callable[[], FilePresence], tmp_path: Path
) -> None:
    (tmp_path / "owners").mkdir()
    lock = FileLock(tmp_path / "owners" / "1-0000000f11e0")
    lock.take()
    presence = join()
    assert presence.alive("1-0000000f11e0")
    presence.notify("jobs")
    assert (tmp_path / "owners" / "1-0000000f11e0").read_bytes() == b""
    lock.release()
    assert not presence.alive("1-0000000f11e0")


async def test_nonsense_in_the_fifo_is_harmless(join: Callable[[], FilePresence], tmp_path: Path) -> None:
    first, second = join(), join()
    await _known(first, 1)
    news = notified(first, "jobs")
    bell = os.open(tmp_path / "owners" / first.token, os.O_WRONLY | os.O_NONBLOCK)
    for nonsense in (b"\xff\\x\n\n", b"\0" * 10_000, b"\\N{nope}\n", b"new\n"):
        os.write(bell, nonsense)
        await asyncio.sleep(0)
    os.write(bell, b"\n")
    os.close(bell)
    second.notify("jobs")
    await soon(news)


async def test_notify_never_waits_for_a_busy_process(join: Callable[[], FilePresence]) -> None:
    first, second = join(), join()
    await _known(first, 1)
    for number in range(10_000):
        first.notify(f"end of a job with a long name, the number of which is {number}")
    news = notified(second, "jobs")
    while not news.is_set():
        first.notify("jobs")
        await asyncio.sleep(0.001)


async def test_a_single_process_receives_its_own_notifications() -> None:
    presence = Presence()
    presence.open()
    news = notified(presence, "jobs")
    presence.notify("jobs")
    assert news.is_set()
    assert presence.token == ""
    presence.close()


def test_asking_for_a_lock_does_not_take_it(tmp_path: Path) -> None:
    lock, asking = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert not asking.is_held()
    assert not (tmp_path / "lock").exists()
    lock.take()
    assert asking.is_held()
    lock.release()
    assert not asking.is_held()
    assert lock.take()
    lock.release()
