"""The journal, its queue and its lock: committed writes are kept, errors are isolated, and damage is reported."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.errors import JournalError
from lifecycle.journal import QUEUES, Journal, Queue, Schema
from lifecycle.journal.database import FileLock
from lifecycle.journal.queues import CachedCounts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lifecycle.testing import Clock

NOTES = Schema("notes", (("CREATE TABLE notes (text TEXT UNIQUE)",),))


def note(text: str) -> Callable[[sqlite3.Connection], None]:
    def write(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO notes VALUES (?)", (text,))

    return write


def notes(db: sqlite3.Connection) -> list[str]:
    return [text for (text,) in db.execute("SELECT text FROM notes ORDER BY rowid")]


def on_disk(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return notes(db)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


class Held:
    """A call that keeps the writer thread busy until it is released, so that other calls wait for one transaction."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, _db: sqlite3.Connection) -> None:
        self.begun.set()
        assert self.go_on.wait(30)


async def held(journal: Journal) -> tuple[Held, asyncio.Task[None]]:
    hold = Held()
    task = asyncio.create_task(journal.run(hold))
    assert await asyncio.to_thread(hold.begun.wait, 30)
    return hold, task


# -- transactions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
async def test_a_returned_write_is_on_disk(path: Path, durable: bool) -> None:
    async with Journal(path, NOTES, durable=durable) as journal:
        await journal.run(note("one"))
        assert on_disk(path) == ["one"]
        assert await journal.run(lambda db: db.execute("PRAGMA synchronous").fetchone()) == (2 if durable else 1,)
    assert on_disk(path) == ["one"]


async def test_waiting_functions_are_committed_together_and_in_order(path: Path) -> None:
    commits: list[str] = []
    async with Journal(path, NOTES) as journal:
        hold, task = await held(journal)
        await_all = asyncio.gather(*(journal.run(note(str(number))) for number in range(100)))
        await asyncio.sleep(0)
        spy = journal.run(lambda db: db.set_trace_callback(commits.append))
        waiting = asyncio.gather(await_all, spy)
        await asyncio.sleep(0)
        hold.go_on.set()
        await asyncio.gather(task, waiting)
        assert await journal.run(notes) == [str(number) for number in range(100)]
        await journal.run(lambda db: db.set_trace_callback(None))
    # One commit contains the hundred calls and the call that installs the spy. The other commit belongs to the read.
    assert len([text for text in commits if text.startswith("COMMIT")]) == 2


async def test_on_a_slow_disk_callers_that_were_served_join_the_next_transaction(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit is considered slow. The next commit waits long enough for all four callers to return."""
    monkeypatch.setattr("lifecycle.journal.writer._SLOW", 0.0)
    monkeypatch.setattr("lifecycle.journal.writer._PART", 1000.0)
    commits: list[str] = []

    async def write(journal: Journal, name: str) -> None:
        for number in range(5):
            await journal.run(note(f"{name} {number}"))

    async with Journal(path, NOTES) as journal:
        await journal.run(lambda db: db.set_trace_callback(commits.append))
        await asyncio.gather(*(write(journal, name) for name in "abcd"))
        last = asyncio.create_task(journal.run(note("alone")))
        await asyncio.sleep(0)
    await last
    # The first commit belongs to the call that sets the callback. A single write at the end is not delayed when the
    # journal closes.
    assert len([text for text in commits if text.startswith("COMMIT")]) == 1 + 5 + 1
    assert len(on_disk(path)) == 21


async def test_an_error_affects_only_its_own_writer(path: Path) -> None:
    def half(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO notes VALUES ('half')")
        raise LookupError("and no more")

    async with Journal(path, NOTES) as journal:
        hold, task = await held(journal)
        group = asyncio.gather(
            *map(journal.run, [note("a"), half, note("b"), note("a"), note("c")]), return_exceptions=True
        )
        await asyncio.sleep(0)
        hold.go_on.set()
        await task
        first, error, second, twice, third = await group
        assert (first, second, third) == (None, None, None)
        assert isinstance(error, LookupError)
        assert isinstance(twice, sqlite3.IntegrityError)
        assert await journal.run(notes) == ["a", "b", "c"]
        with pytest.raises(LookupError):
            await journal.run(half)
        assert await journal.run(notes) == ["a", "b", "c"]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "END", "BEGIN", "COMMIT -- journal "])
async def test_a_function_cannot_end_the_common_transaction(path: Path, end: str) -> None:
    def ends(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO notes VALUES ('lost')")
        db.execute(end)

    async with Journal(path, NOTES) as journal:
        for _ in range(2):
            hold, task = await held(journal)
            group = asyncio.gather(*map(journal.run, [note(f"a{_}"), ends, note(f"b{_}")]), return_exceptions=True)
            await asyncio.sleep(0)
            hold.go_on.set()
            await task
            first, error, second = await group
            assert (first, second) == (None, None)
            assert isinstance(error, JournalError)
            assert "must not begin or end a transaction" in str(error)
        with pytest.raises(JournalError):
            await journal.run(lambda db: db.executescript("INSERT INTO notes VALUES ('lost')"))
        assert await journal.run(notes) == ["a0", "b0", "a1", "b1"]


async def test_a_statement_that_ends_the_transaction_loses_no_other_write(path: Path) -> None:
    def rolls_back(db: sqlite3.Connection) -> None:
        db.execute("INSERT OR ROLLBACK INTO notes VALUES ('a')")

    async with Journal(path, NOTES) as journal:
        hold, task = await held(journal)
        group = asyncio.gather(*map(journal.run, [note("a"), rolls_back, note("b")]), return_exceptions=True)
        await asyncio.sleep(0)
        hold.go_on.set()
        await task
        first, error, second = await group
        assert (first, type(error), second) == (None, sqlite3.IntegrityError, None)
        assert await journal.run(notes) == ["a", "b"]


async def test_any_error_is_raised_and_the_thread_continues(path: Path) -> None:
    async with Journal(path, NOTES) as journal:
        for error, seen in ((SystemExit(3), SystemExit), (StopIteration(1), RuntimeError), (ValueError(), ValueError)):

            def fails(_db: sqlite3.Connection, error: BaseException = error) -> None:
                raise error

            outcome = await asyncio.gather(_caught(journal, fails))
            assert isinstance(outcome[0], seen)
        assert await journal.run(notes) == []


async def _caught(journal: Journal, fn: Any) -> BaseException | None:
    try:
        await journal.run(fn)
    except BaseException as error:  # noqa: BLE001  # SystemExit would end the loop
        return error
    return None


# -- cancelled and late callers ------------------------------------------------------------------------------------


async def test_a_caller_that_is_cancelled_while_it_waits_writes_nothing_and_stops_no_other(path: Path) -> None:
    async with Journal(path, NOTES) as journal:
        hold, task = await held(journal)
        gone, stays = asyncio.create_task(journal.run(note("gone"))), asyncio.create_task(journal.run(note("stays")))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        hold.go_on.set()
        await asyncio.gather(task, stays)
        assert gone.cancelled()
        assert await journal.run(notes) == ["stays"]


async def test_a_transaction_of_a_cancelled_caller_completes(path: Path) -> None:
    async with Journal(path, NOTES) as journal:
        hold = Held()

        def work(db: sqlite3.Connection) -> None:
            note("begun")(db)
            hold(db)

        task = asyncio.create_task(journal.run(work))
        assert await asyncio.to_thread(hold.begun.wait, 30)
        task.cancel()
        await asyncio.wait([task])
        hold.go_on.set()
        assert await journal.run(notes) == ["begun"]


async def test_closing_waits_for_submitted_writes_and_refuses_new_ones(path: Path) -> None:
    journal = Journal(path, NOTES)
    async with journal:
        hold, task = await held(journal)
        waiting = asyncio.create_task(journal.run(note("waits")))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.01, hold.go_on.set)
    await asyncio.gather(task, waiting)
    assert on_disk(path) == ["waits"]
    with pytest.raises(JournalError, match="not open"):
        await journal.run(notes)
    async with journal:
        assert await journal.run(notes) == ["waits"]


async def test_a_cancelled_close_ends_when_the_file_is_closed(path: Path) -> None:
    journal = Journal(path, NOTES)
    await journal.__aenter__()
    hold, task = await held(journal)
    closes = asyncio.create_task(journal.__aexit__(None, None, None))
    for _ in range(2):
        await asyncio.sleep(0)
        closes.cancel()
    await asyncio.sleep(0)
    assert not closes.done()
    hold.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await closes
    assert f"journal {path}" not in {thread.name for thread in threading.enumerate()}
    await task
    await journal.__aexit__(None, None, None)


async def test_writers_beyond_the_capacity_are_all_served(path: Path) -> None:
    async with Journal(path, NOTES, durable=False) as journal:
        await asyncio.gather(*(journal.run(note(str(number))) for number in range(3000)))
        assert len(await journal.run(notes)) == 3000


async def test_the_loop_continues_while_the_thread_is_blocked(path: Path) -> None:
    async with Journal(path, NOTES) as journal:
        hold, task = await held(journal)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not task.done()
        hold.go_on.set()
        await task


async def test_virtual_time_stops_while_a_journal_works(clock: Any, path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(1), Journal(path, NOTES) as journal:
        for number in range(10):
            await journal.run(note(str(number)))
    assert loop.time() == 0


def test_a_process_ends_although_its_journal_is_stuck(path: Path) -> None:
    code = f"""
import asyncio, threading
from lifecycle.journal import Journal
async def main():
    journal = await Journal({str(path)!r}).__aenter__()
    begun = threading.Event()
    journal_task = asyncio.create_task(journal.run(lambda db: (begun.set(), threading.Event().wait())))
    await asyncio.to_thread(begun.wait)
asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0


# -- problematic files ---------------------------------------------------------------------------------------------


async def test_a_full_disk_is_reported_and_survived(path: Path) -> None:
    def big(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO notes VALUES (?)", ("x" * 100_000,))

    async with Journal(path, NOTES) as journal:
        await journal.run(lambda db: db.execute("PRAGMA max_page_count = 10").fetchone())
        hold, task = await held(journal)
        group = asyncio.gather(*map(journal.run, [note("a"), big, note("b")]), return_exceptions=True)
        await asyncio.sleep(0)
        hold.go_on.set()
        await task
        first, error, second = await group
        assert (first, second) == (None, None)
        assert isinstance(error, JournalError)
        assert "the disk is full" in str(error)
        assert str(path) in str(error)
        await journal.run(lambda db: db.execute("PRAGMA max_page_count = 100000").fetchone())
        await journal.run(big)
        assert len(await journal.run(notes)) == 3


async def test_a_lock_of_another_process_is_waited_for_and_then_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifecycle.journal.database._PATIENCE", 0.1)
    async with Journal(path, NOTES) as journal:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            results = await asyncio.gather(
                *(journal.run(note(str(number))) for number in range(3)), return_exceptions=True
            )
            assert all(isinstance(each, JournalError) and "locked" in str(each) for each in results)
            other.execute("ROLLBACK")
        await journal.run(note("later"))
        assert await journal.run(notes) == ["later"]


async def test_a_read_waits_for_no_writer_and_sees_what_was_committed(path: Path) -> None:
    async with Journal(path, NOTES) as journal:
        await journal.run(note("one"))
        hold, holding = await held(journal)
        with closing(sqlite3.connect(path)) as other:
            assert await journal.read(notes) == ["one"]
            hold.go_on.set()
            await holding
            other.execute("BEGIN IMMEDIATE")
            assert await journal.read(notes) == ["one"]
        await journal.run(note("two"))
        assert await journal.read(notes) == ["one", "two"]


async def test_a_read_that_writes_raises(path: Path) -> None:
    async with Journal(path, NOTES) as journal:
        with pytest.raises(JournalError, match="it cannot be written"):
            await journal.read(note("one"))
        with pytest.raises(ZeroDivisionError):
            await journal.read(lambda _: 1 / 0)
        assert await journal.read(notes) == []
    with pytest.raises(JournalError, match="is not open"):
        await journal.read(notes)


async def test_a_memory_journal_can_be_read() -> None:
    async with Journal(":memory:", NOTES) as journal:
        await journal.run(note("one"))
        assert await journal.read(notes) == ["one"]


async def test_closing_waits_for_a_read_that_is_under_way(path: Path) -> None:
    async with Journal(path, NOTES) as journal:
        hold = Held()
        reading = asyncio.create_task(journal.read(hold))
        await asyncio.to_thread(hold.begun.wait, 30)
        leaving = asyncio.create_task(journal.__aexit__(None, None, None))
        await asyncio.sleep(0)
        assert not leaving.done()
        hold.go_on.set()
        await leaving
        await reading


async def test_two_journals_on_one_file_take_turns(path: Path) -> None:
    async with Journal(path, NOTES) as one, Journal(path, NOTES) as two:
        await asyncio.gather(
            *(journal.run(note(f"{number} {id(journal)}")) for number in range(50) for journal in (one, two))
        )
        assert len(await one.run(notes)) == 100


async def _refused(path: Path, *schemas: Schema) -> str:
    with pytest.raises(JournalError) as refused:
        await Journal(path, *schemas).__aenter__()
    return str(refused.value)


async def test_a_file_that_is_not_a_database_is_refused_and_unchanged(path: Path) -> None:
    path.write_text("once upon a time, " * 1000)
    assert "not an SQLite database" in await _refused(path)
    assert path.read_text().startswith("once upon a time")


async def test_a_damaged_file_is_named(path: Path) -> None:
    async with Journal(path, NOTES) as journal:
        await journal.run(lambda db: db.executemany("INSERT INTO notes VALUES (?)", [(str(n),) for n in range(5000)]))
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    async with Journal(path) as journal:
        with pytest.raises(JournalError, match="damaged"):
            await journal.run(notes)
        assert await journal.run(lambda _db: 1) == 1


async def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    assert "check that its directory exists" in await _refused(tmp_path / "nowhere" / "app.db")
    assert "cannot be opened" in await _refused(tmp_path)


async def test_a_read_only_file_is_reported(path: Path) -> None:
    async with Journal(path, NOTES):
        pass
    if os.geteuid() == 0:
        # Root can write to every file. SQLite reports the same error for a file that is opened read-only.
        connect = sqlite3.connect
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite3, "connect", lambda path, **rest: connect(f"file:{path}?mode=ro", uri=True, **rest))
            assert "cannot be written" in await _refused(path, Schema("more", (("CREATE TABLE more (a)",),)))
        return
    path.chmod(0o400)
    assert "cannot be written" in await _refused(path, NOTES)


def _delete(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def _replace(path: Path) -> None:
    other = path.with_name("other.db")
    other.write_bytes(path.read_bytes())
    other.replace(path)


@pytest.mark.parametrize("harm", [_delete, _replace, lambda path: path.with_name("app.db-wal").unlink()])
async def test_a_write_into_a_file_that_was_deleted_or_replaced_fails(path: Path, harm: Callable[[Path], None]) -> None:
    async with Journal(path, NOTES) as journal:
        await journal.run(note("before"))
        harm(path)
        for _ in range(2):
            with pytest.raises(JournalError, match="was deleted or replaced while it was open"):
                await journal.run(note("after"))


@pytest.mark.parametrize("share", [0, 0.5])
async def test_a_write_after_the_log_was_truncated_fails(
    path: Path, caplog: pytest.LogCaptureFixture, share: float
) -> None:
    log = path.with_name("app.db-wal")
    async with Journal(path, NOTES) as journal:
        for text in ("a", "b", "c"):
            await journal.run(note(text))
        os.truncate(log, int(log.stat().st_size * share))
        for text in ("d", "e"):
            with pytest.raises(JournalError, match=r"app\.db-wal was truncated by another program while it was open"):
                await journal.run(note(text))
    assert caplog.text.count("was truncated by another program") == 1


@pytest.mark.parametrize("mode", ["TRUNCATE", "RESTART", "FULL"])
async def test_the_log_may_be_written_back_by_another_program(path: Path, mode: str) -> None:
    async with Journal(path, NOTES) as journal, Journal(path, NOTES) as other:
        for text in ("a", "b", "c"):
            await journal.run(note(text))
            with closing(sqlite3.connect(path)) as db:
                assert db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()[0] == 0
            await other.run(note(text * 2))
    assert on_disk(path) == ["a", "aa", "b", "bb", "c", "cc"]


async def test_a_deleted_file_is_reported_also_when_nothing_is_written(
    path: Path, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with Journal(path, NOTES):
        await clock.advance(60.0)
        assert caplog.text == ""
        _delete(path)
        await clock.advance(6.0)
        assert caplog.text.count("was deleted or replaced while it was open") == 1


async def test_a_program_that_changes_its_directory_keeps_its_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    async with Journal("app.db", NOTES) as journal:
        monkeypatch.chdir("/")
        await journal.run(note("one"))
    assert on_disk(path) == ["one"]


async def test_a_new_file_is_private(path: Path) -> None:
    async with Journal(path, NOTES):
        assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()} == {0o600}


async def test_a_journal_cannot_be_opened_twice_or_used_in_a_fork(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Journal(path, NOTES) as journal:
        with pytest.raises(JournalError, match="already open"):
            await journal.__aenter__()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(JournalError, match="forked"):
                await journal.run(notes)


async def test_a_journal_can_be_in_memory() -> None:
    async with Journal(":memory:", NOTES) as journal:
        await journal.run(note("one"))
        assert await journal.run(notes) == ["one"]


# -- versions ------------------------------------------------------------------------------------------------------


async def test_tables_are_migrated_forward_and_never_back(path: Path) -> None:
    newer = Schema("notes", (*NOTES.steps, ("ALTER TABLE notes ADD COLUMN author TEXT DEFAULT 'me'",)))
    other = Schema("other", (("CREATE TABLE other (a)",),))
    async with Journal(path, NOTES) as journal:
        await journal.run(note("old"))
    for _ in range(2):
        async with Journal(path, newer, other) as journal:
            assert await journal.run(lambda db: db.execute("SELECT * FROM notes").fetchall()) == [("old", "me")]
    assert "have version 2, but this program supports versions up to 1" in await _refused(path, NOTES)


async def test_a_step_that_fails_changes_nothing(path: Path) -> None:
    broken = Schema("notes", (*NOTES.steps, ("ALTER TABLE notes ADD COLUMN b", "NONSENSE")))
    async with Journal(path, NOTES) as journal:
        await journal.run(note("old"))
    with pytest.raises(sqlite3.OperationalError):
        await Journal(path, broken).__aenter__()
    async with Journal(path, NOTES) as journal:
        assert await journal.run(lambda db: db.execute("SELECT * FROM notes").fetchall()) == [("old",)]


# -- the queue -----------------------------------------------------------------------------------------------------


@pytest.fixture
def db() -> Any:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in QUEUES.steps[0]:
            connection.execute(statement)
        yield connection


def test_entries_are_leased_in_the_order_in_which_they_were_accepted_and_once(db: sqlite3.Connection) -> None:
    queue = Queue("q")
    ids = [queue.accept(db, body, now=0) for body in (b"a", b"b", b"c")]
    first = queue.lease(db, now=1, until=10, limit=2)
    assert [(entry.id, entry.body, entry.attempts) for entry in first] == [(ids[0], b"a", 1), (ids[1], b"b", 1)]
    assert [entry.body for entry in queue.lease(db, now=1, until=20, limit=5)] == [b"c"]
    assert queue.lease(db, now=1) == []
    assert queue.next_due(db, now=1) == 10
    assert [(entry.body, entry.attempts) for entry in queue.lease(db, now=10, limit=5)] == [(b"a", 2), (b"b", 2)]


def test_queues_of_different_names_do_not_see_each_other(db: sqlite3.Connection) -> None:
    one, two = Queue("one"), Queue("two")
    number = one.accept(db, b"a", now=0, key="k", remember=10)
    assert number is not None
    assert two.lease(db, now=0) == []
    assert two.accept(db, b"b", now=0, key="k", remember=10) is not None
    two.done(db, number)
    assert not two.revive(db, number)
    assert two.get(db, number) is None
    assert one.get(db, number) is not None


def test_a_key_is_remembered_for_the_given_time(db: sqlite3.Connection) -> None:
    queue = Queue("q")
    assert queue.accept(db, b"a", now=0, key="k", remember=10) == 1
    queue.done(db, 1)
    assert queue.accept(db, b"a", now=9, key="k", remember=10) is None
    queue.forget(db, now=9)
    assert queue.accept(db, b"a", now=9.5, key="k", remember=10) is None
    assert queue.accept(db, b"a", now=10, key="k", remember=10) == 2
    assert queue.accept(db, b"a", now=10, key="", remember=10) == 3
    assert queue.accept(db, b"a", now=10, key="k", remember=0) == 4


def test_failures_are_retried_later_and_become_dead_letters(db: sqlite3.Connection) -> None:
    queue = Queue("q")
    queue.accept(db, b"a", now=0, leased=100)
    queue.retry(db, 1, due=5, error="no luck")
    assert queue.next_due(db, now=0) == 5
    assert queue.lease(db, now=4) == []
    [entry] = queue.lease(db, now=5)
    assert (entry.attempts, entry.failures, entry.error, entry.dead) == (2, 1, "no luck", False)
    assert not queue.revive(db, 1)
    queue.discard(db, 1, error="no luck again")
    assert queue.lease(db, now=1000) == []
    [dead] = queue.entries(db)
    assert (dead.failures, dead.error, dead.dead) == (2, "no luck again", True)
    assert queue.revive(db, 1)
    [entry] = queue.lease(db, now=5)
    assert (entry.attempts, entry.failures) == (3, 0)
    queue.done(db, 1)
    assert queue.entries(db) == []


def test_leases_of_a_dead_owner_end_and_unused_ones_do_not_count_as_attempts(db: sqlite3.Connection) -> None:
    queue = Queue("q")
    for body in (b"a", b"b"):
        queue.accept(db, body, now=0, leased=float("inf"))
    queue.release(db, 1)
    assert [entry.attempts for entry in queue.entries(db)] == [0, 1]
    queue.release_all(db)
    assert [entry.attempts for entry in queue.lease(db, now=1, limit=2)] == [1, 2]


# -- the lock ------------------------------------------------------------------------------------------------------


def test_the_lock_is_exclusive_and_released_by_death(tmp_path: Path) -> None:
    code = (
        "import sys; from lifecycle.journal.database import FileLock; lock = FileLock(sys.argv[1]); "
        "print(lock.take(), flush=True); sys.stdin.read()"
    )
    mine, same = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    argv = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert not mine.take()
        other.kill()
        other.wait(30)
    assert mine.take()
    assert mine.take()
    assert not same.take()
    mine.release()
    assert same.take()
    same.release()
    same.release()


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE lifecycle_schemas SET version = 'x'",
        "UPDATE lifecycle_schemas SET version = -1",
        "ALTER TABLE lifecycle_schemas RENAME COLUMN version TO other",
        "DELETE FROM lifecycle_schemas",
    ],
)
async def test_a_damaged_table_of_schemas_is_reported(path: Path, harm: str) -> None:
    async with Journal(path, NOTES):
        pass
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(harm)
    message = await _refused(path, NOTES)
    assert "damaged" in message or "another program's table or index" in message


async def test_a_step_that_needs_missing_tables_is_reported(path: Path) -> None:
    async with Journal(path, NOTES):
        pass
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE notes")
    later = Schema("notes", (*NOTES.steps, ("ALTER TABLE notes ADD COLUMN at REAL",)))
    assert "cannot be migrated: no such table: notes" in await _refused(path, later)


async def count() -> dict[str, int]:
    return {"waiting": 1}


async def fail() -> dict[str, int]:
    raise OSError("locked")


async def test_counts_closed_at_once_are_right_after_reopening(clock: Clock) -> None:
    counts = CachedCounts(count, lambda: None)
    counts.open()
    await counts.close()
    assert counts.figures == {}
    counts.open()
    await clock.advance(2)
    assert counts.figures == {"waiting": 1}
    await counts.close()


async def test_counts_that_are_opened_while_another_user_closes_them_are_counted(clock: Clock) -> None:
    counts = CachedCounts(count, lambda: None)
    counts.open()
    await asyncio.sleep(0)
    closing = asyncio.create_task(counts.close())
    await asyncio.sleep(0)
    counts.figures = {}
    counts.open()
    await closing
    await clock.advance(2)
    assert counts.figures == {"waiting": 1}
    await counts.close()


async def test_a_count_that_fails_keeps_the_last_counts_until_the_next_change(clock: Clock) -> None:
    counts = CachedCounts(fail, lambda: None)
    counts.open()
    await clock.advance(5)
    assert (counts.figures, len(asyncio.all_tasks())) == ({}, 1)
    counts.renew()
    assert len(asyncio.all_tasks()) == 2
    await counts.close()
    assert len(asyncio.all_tasks()) == 1
