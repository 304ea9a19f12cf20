"""Who has a store open is seen by the others, rings, and is missed when he is gone."""

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
    """Each call is another who opens the store."""
    with ExitStack() as stack:

        def join() -> Presence:
            owners = stack.enter_context(closing(FilePresence(tmp_path / "owners")))
            owners.open()
            return owners

        yield join


def heard(owners: Presence, news: str) -> asyncio.Event:
    event = asyncio.Event()
    owners.listen(news, event.set)
    return event


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(LIMIT):
        await event.wait()


async def test_who_is_there_lives_and_others_do_not(join: Callable[[], Presence]) -> None:
    first, second = join(), join()
    assert first.alive(second.token)
    assert second.alive(first.token)
    assert first.alive(first.token)
    assert not first.alive("1-nobody")


async def test_a_ring_is_heard_by_all_who_listen_to_it_and_by_nobody_else(join: Callable[[], Presence]) -> None:
    first, second, third = join(), join(), join()
    news = [heard(each, "jobs") for each in (first, second, third)]
    other = heard(second, "end of a")
    await asyncio.sleep(0)
    await _known(first, 2)
    first.notify("jobs")
    for event in news:
        await soon(event)
    assert not other.is_set()
    third.notify("end of a")
    await soon(other)


async def _known(owners: Presence, others: int) -> None:
    """Until it has heard that so many others came."""
    async with asyncio.timeout(LIMIT):
        while f"among {others + 1}" not in repr(owners):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("news", ["end of \n\\x", "end of ü 名", "end of %41"])
async def test_news_come_as_they_were_rung(join: Callable[[], Presence], news: str) -> None:
    first, second = join(), join()
    await _known(first, 1)
    event = heard(second, news)
    first.notify(news)
    await soon(event)


async def test_who_does_not_listen_any_more_hears_nothing(join: Callable[[], Presence]) -> None:
    owners = join()
    calls: list[str] = []
    silence = owners.listen("jobs", lambda: calls.append("a"))
    owners.listen("jobs", lambda: calls.append("b"))
    silence()
    owners.notify("jobs")
    assert calls == ["b"]


async def test_who_goes_is_missed_at_once(join: Callable[[], Presence]) -> None:
    first, second = join(), join()
    gone = heard(second, GONE)
    await _known(first, 1)
    token = first.token
    first.close()
    await soon(gone)
    assert second.losses == 1
    assert not second.alive(token)
    assert first.token == ""


async def test_an_owner_whose_file_was_deleted_makes_it_again(
    join: Callable[[], Presence], tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = join(), join()
    (tmp_path / "owners" / first.token).unlink()
    assert not second.alive(first.token)
    await clock.advance(6.0)
    assert second.alive(first.token)
    assert "was deleted while this process had it" in caplog.text
    news = heard(first, "jobs")
    while not news.is_set():
        second.notify("jobs")
        await asyncio.sleep(0.001)


async def test_who_comes_back_is_another(join: Callable[[], Presence]) -> None:
    first, second = join(), join()
    before = first.token
    first.close()
    first.open()
    assert first.token != before
    assert second.alive(first.token)
    assert not second.alive(before)


async def test_what_the_dead_left_is_swept_away(join: Callable[[], Presence], tmp_path: Path) -> None:
    (tmp_path / "owners").mkdir()
    os.mkfifo(tmp_path / "owners" / "1-dead")
    (tmp_path / "owners" / "2-dead").touch()
    owners = join()
    assert not owners.alive("2-dead")
    assert [path.name for path in (tmp_path / "owners").iterdir()] == [owners.token]
    assert owners.losses == 1


async def test_where_there_are_no_fifos_the_lock_alone_tells(join: Callable[[], Presence], tmp_path: Path) -> None:
    (tmp_path / "owners").mkdir()
    lock = FileLock(tmp_path / "owners" / "1-plain")
    lock.take()
    owners = join()
    assert owners.alive("1-plain")
    owners.notify("jobs")
    assert (tmp_path / "owners" / "1-plain").read_bytes() == b""
    lock.release()
    assert not owners.alive("1-plain")


async def test_nonsense_in_the_bell_harms_nobody(join: Callable[[], Presence], tmp_path: Path) -> None:
    first, second = join(), join()
    await _known(first, 1)
    news = heard(first, "jobs")
    bell = os.open(tmp_path / "owners" / first.token, os.O_WRONLY | os.O_NONBLOCK)
    for nonsense in (b"\xff\\x\n\n", b"\0" * 10_000, b"\\N{nope}\n", b"new\n"):
        os.write(bell, nonsense)
        await asyncio.sleep(0)
    os.write(bell, b"\n")
    os.close(bell)
    second.notify("jobs")
    await soon(news)


async def test_who_rings_never_waits_for_who_is_too_busy_to_hear(join: Callable[[], Presence]) -> None:
    first, second = join(), join()
    await _known(first, 1)
    for number in range(10_000):
        first.notify(f"end of a job with a long name, the number of which is {number}")
    news = heard(second, "jobs")
    while not news.is_set():
        first.notify("jobs")
        await asyncio.sleep(0.001)


async def test_alone_one_hears_oneself() -> None:
    owners = Presence()
    owners.open()
    news = heard(owners, "jobs")
    owners.notify("jobs")
    assert news.is_set()
    assert owners.token == ""
    owners.close()


def test_a_lock_is_held_by_who_took_it_and_asking_is_not_taking(tmp_path: Path) -> None:
    lock, asking = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert not asking.is_held()
    assert not (tmp_path / "lock").exists()
    lock.take()
    assert asking.is_held()
    lock.release()
    assert not asking.is_held()
    assert lock.take()
    lock.release()
