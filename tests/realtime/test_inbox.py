"""The inbox with real sockets, a real router and real files: no message accepted with 202 is lost."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import sqlite3
import time
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from lifecycle import Backoff, Dropped, NotHandled, Router, SuspendHandler, WebhookEvent, delivery
from lifecycle.cli import main
from lifecycle.errors import Refused, SourceFailed
from lifecycle.journal.database import FileLock
from lifecycle.sources import GitHub, Inbox, Limits, Slack, Stripe, WebhookSource
from lifecycle.sources._inbox_store import WEBHOOKS, packed, unpacked
from lifecycle.testing import Recorder, running
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from lifecycle.journal import Entry

SECRET = b"It's a Secret to Everybody"
SOON = Backoff(initial=0.01, maximum=0.02, jitter=0.0)


class Receiver:
    """A running router with an inbox, and a client."""

    def __init__(self, path: Path, client: aiohttp.ClientSession, **options: Any) -> None:
        rest = {name: options.pop(name) for name in ("verify", "limits") if name in options}
        self.path = path
        self.router = Router(buffer=1, drain_timeout=options.pop("drain_timeout", 30.0))
        self.source = WebhookSource(port=0, inbox=Inbox(path, **{"backoff": SOON, **options}), **rest)
        self.router.add_source(self.source)
        self.seen: list[tuple[str, int]] = []
        self._client = client

    async def send(self, body: str, identity: str = "", path: str = "/deploy") -> int:
        signature = "sha256=" + hmac.new(SECRET, body.encode(), hashlib.sha256).hexdigest()
        headers = {"X-Hub-Signature-256": signature, "X-GitHub-Delivery": identity}
        async with self._client.post(self.source.url + path, data=body.encode(), headers=headers) as answer:
            self.headers = answer.headers
            return answer.status

    def note(self, event: WebhookEvent) -> None:
        self.seen.append((event.text(), delivery().attempt))

    async def until_empty(self) -> None:
        await until(lambda: not entries(self.path))


@asynccontextmanager
async def receiving(path: Path, handle: Any = None, *, route: str = "webhook/**", **options: Any) -> Any:
    """Start a receiver. ``handle`` is called with the receiver and the event."""
    handle_options = {name: options.pop(name) for name in ("busy", "debounce") if name in options}
    async with aiohttp.ClientSession() as client:
        receiver = Receiver(path, client, verify=GitHub(SECRET), **options)

        async def handler(event: WebhookEvent) -> None:
            receiver.note(event)
            if handle is not None:
                await handle(receiver, event)

        receiver.router.handle(route, handler, **handle_options)
        async with running(receiver.router):
            yield receiver


def entries(path: Path) -> list[Entry]:
    with closing(sqlite3.connect(path)) as db:
        return WEBHOOKS.entries(db)


def accept(path: Path, *bodies: str) -> None:
    """Store messages as a receiver would have left them if it had crashed after it accepted and leased them."""
    with closing(sqlite3.connect(path)) as db, db:
        for body in bodies:
            event = WebhookEvent("POST", "/deploy", {}, {}, body.encode(), body)
            WEBHOOKS.accept(db, packed(event), now=0, leased=float("inf"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


async def prepared(path: Path) -> None:
    """Create an inbox file with empty tables."""
    async with receiving(path):
        pass


# -- accepted messages ---------------------------------------------------------------------------------------------


async def test_a_request_is_on_disk_from_its_answer_until_it_is_handled(path: Path) -> None:
    go_on = asyncio.Event()

    async def handle(_receiver: Receiver, _event: WebhookEvent) -> None:
        await go_on.wait()

    async with receiving(path, handle) as receiver:
        assert await receiver.send("one") == 202
        [entry] = entries(path)
        assert unpacked(entry.body).text() == "one"
        go_on.set()
        await receiver.until_empty()
    assert receiver.seen == [("one", 1)]


def test_an_event_is_restored_as_it_was() -> None:
    headers = {"x-odd": "caf\udce9 ü", "a": ""}
    event = WebhookEvent("PUT", "/a b/ü", headers, {"x": "\n", "y": ""}, b"\x00\n\xff", "id\n")
    assert unpacked(packed(event)) == event


async def test_events_are_delivered_in_the_order_in_which_they_were_accepted(path: Path) -> None:
    async with receiving(path, limits=Limits(pending=1000)) as receiver:
        for number in range(30):
            assert await receiver.send(str(number)) == 202
        await receiver.until_empty()
    assert receiver.seen == [(str(number), 1) for number in range(30)]


async def test_senders_do_not_wait_for_a_full_lane_and_too_many_get_429(path: Path) -> None:
    """The handler has one message, and two wait in the lane. The source has one, and three wait in the inbox."""
    go_on = asyncio.Event()

    async def handle(_receiver: Receiver, _event: WebhookEvent) -> None:
        await go_on.wait()

    async with receiving(path, handle, limits=Limits(pending=3)) as receiver:
        statuses = [await receiver.send(str(number)) for number in range(12)]
        taken = statuses.count(202)
        assert 4 <= taken < 12
        assert statuses.count(429) == 12 - taken
        assert statuses[-1] == 429
        assert receiver.headers["Retry-After"] == "1"
        go_on.set()
        await receiver.until_empty()
    assert len(receiver.seen) == taken


async def test_a_debounced_event_is_done_when_the_merged_call_has_ended(path: Path) -> None:
    async with receiving(path, debounce=60.0) as receiver:
        for number in range(3):
            assert await receiver.send(str(number)) == 202
        assert len(entries(path)) == 3
        assert not receiver.seen
    # After the source had finished, the router flushed the window while it drained.
    assert receiver.seen == [("2", 1)]
    assert entries(path) == []


async def test_a_full_disk_is_answered_with_503_and_survived(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with receiving(path, limits=Limits(body=10_000_000)) as receiver:
        journal = receiver.source._inbox._store._journal
        await journal.run(lambda db: db.execute("PRAGMA max_page_count = 20").fetchone())
        assert await receiver.send("x" * 1_000_000) == 503
        assert receiver.headers["Retry-After"] == "1"
        assert await receiver.send("x" * 1_000_000) == 503
        assert await receiver.send("small") == 202
        await journal.run(lambda db: db.execute("PRAGMA max_page_count = 100000").fetchone())
        assert await receiver.send("x" * 1_000_000) == 202
        await receiver.until_empty()
    assert [body[:5] for body, _ in receiver.seen] == ["small", "xxxxx"]
    assert caplog.text.count("the disk is full") == 1


async def test_results_are_written_once_the_file_can_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lifecycle.journal.database._PATIENCE", 0.05)
    monkeypatch.setattr("lifecycle.sources.inbox._PAUSE", 0.01)
    go_on = asyncio.Event()

    async def handle(_receiver: Receiver, _event: WebhookEvent) -> None:
        await go_on.wait()

    async with receiving(path, handle) as receiver:
        assert await receiver.send("one") == 202
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            go_on.set()
            await until(lambda: caplog.records)
            assert await receiver.send("two") == 503
        await receiver.until_empty()
    assert receiver.seen == [("one", 1)]


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be one" * 100])
async def test_a_file_that_is_not_an_inbox_fails_the_start(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    router = Router()
    router.add_source(WebhookSource(port=0, inbox=Inbox(path)))
    with pytest.raises(SourceFailed, match="not an SQLite database"):
        await router.run()


# -- failures ------------------------------------------------------------------------------------------------------


async def test_a_failed_event_is_retried_and_then_a_dead_letter(path: Path) -> None:
    async def handle(_receiver: Receiver, event: WebhookEvent) -> None:
        if event.text() == "bad":
            raise LookupError("no such thing")

    async with receiving(path, handle, max_attempts=3) as receiver:
        for body in ("bad", "good"):
            assert await receiver.send(body) == 202
        await until(lambda: [entry.dead for entry in entries(path)] == [True])
    [dead] = entries(path)
    assert (dead.failures, dead.error) == (3, "LookupError: no such thing")
    assert [each for each in receiver.seen if each[0] == "bad"] == [("bad", 1), ("bad", 2), ("bad", 3)]
    assert ("good", 1) in receiver.seen
    async with receiving(path) as receiver:
        assert await receiver.send("later") == 202
        await until(lambda: receiver.seen)
    assert receiver.seen == [("later", 1)]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("no \udcff"), r"ValueError: no \udcff"), (Mute(), "Mute: (its message cannot be read: RuntimeError)")],
)
async def test_the_result_is_stored_for_any_error_of_the_handler(path: Path, error: Exception, text: str) -> None:
    async def handle(_receiver: Receiver, _event: WebhookEvent) -> None:
        raise error

    async with receiving(path, handle, max_attempts=2) as receiver:
        assert await receiver.send("one") == 202
        await until(lambda: [entry.dead for entry in entries(path)] == [True])
    assert entries(path)[0].error == text


async def test_an_id_with_invalid_characters_is_remembered(path: Path) -> None:
    """The id can contain any characters, because a custom verifier may return a header's text."""

    def verify(headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        return headers["x-id"]

    source, router, seen = WebhookSource(port=0, verify=verify, inbox=Inbox(path)), Router(), []
    router.add_source(source)
    router.handle("webhook", lambda event: seen.append(event.id))
    async with running(router):
        for identity in (b"\xff", b"\xff", b"\xfe"):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(source.url.rpartition(":")[2]))
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nX-Id: " + identity + b"\r\n\r\n")
            assert (await reader.readline()).split()[1] == b"202"
            writer.close()
            await writer.wait_closed()
        await until(lambda: len(seen) == 2)
    assert seen == ["\udcff", "\udcfe"]


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_retry_is_on_time_although_the_clock_is_set(
    path: Path, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the delay depended on the system clock, setting that clock back would extend the delay."""
    real = time.time

    async def fail_once(receiver: Receiver, _: WebhookEvent) -> None:
        if len(receiver.seen) == 1:
            raise OSError("not yet")

    async with receiving(path, fail_once, backoff=Backoff(initial=0.5, maximum=0.5, jitter=0.0)) as receiver:
        began = asyncio.get_running_loop().time()
        assert await receiver.send("one") == 202
        await until(lambda: [entry.failures for entry in entries(path)] == [1])
        monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
        await until(lambda: len(receiver.seen) == 2)
        assert asyncio.get_running_loop().time() - began >= 0.5
        await receiver.until_empty()


async def test_an_event_that_fails_once_is_handled_by_the_retry(path: Path) -> None:
    async def handle(receiver: Receiver, _event: WebhookEvent) -> None:
        if len(receiver.seen) < 3:
            raise OSError("not yet")

    async with receiving(path, handle) as receiver:
        assert await receiver.send("one") == 202
        await until(lambda: len(receiver.seen) == 3)
        await receiver.until_empty()
    assert receiver.seen == [("one", 1), ("one", 2), ("one", 3)]


@pytest.mark.parametrize(("options", "attempts"), [({}, 1), ({"retry_after": 1}, 3)])
async def test_a_refused_message_is_retried_only_if_that_can_help(path: Path, options: Any, attempts: int) -> None:
    async def handle(_receiver: Receiver, _event: WebhookEvent) -> None:
        raise Refused(409, "not now", **options)

    async with receiving(path, handle, max_attempts=3) as receiver:
        assert await receiver.send("one") == 202
        await until(lambda: [entry.dead for entry in entries(path)] == [True])
    assert len(receiver.seen) == attempts
    assert entries(path)[0].error == "Refused: 409, not now"


async def test_an_event_without_a_route_is_a_dead_letter_at_once(path: Path) -> None:
    async with receiving(path, route="webhook/deploy") as receiver:
        assert await receiver.send("lost", path="/depoly") == 202
        await until(lambda: [entry.dead for entry in entries(path)] == [True])
    assert "no route matches 'webhook/depoly'" in entries(path)[0].error

    async def passes(_receiver: Receiver, _event: WebhookEvent) -> None:
        raise NotHandled("not mine")

    async with receiving(path, passes) as receiver:
        assert await receiver.send("passed on") == 202
        await until(lambda: len(entries(path)) == 2 and entries(path)[1].dead)


async def test_an_event_dropped_by_its_route_is_done(path: Path) -> None:
    async def handle(_receiver: Receiver, _event: WebhookEvent) -> None:
        raise Dropped("too old")

    async with receiving(path, handle) as receiver:
        assert await receiver.send("one") == 202
        await until(lambda: receiver.seen)
        await receiver.until_empty()


# -- crashes, stops and starts -------------------------------------------------------------------------------------


async def test_messages_left_by_a_crash_come_first_in_order_as_another_attempt(path: Path) -> None:
    await prepared(path)
    accept(path, "a", "b", "c")
    go_on = asyncio.Event()

    async def handle(_receiver: Receiver, _event: WebhookEvent) -> None:
        await go_on.wait()

    async with receiving(path, handle) as receiver:
        assert await receiver.send("new") == 202
        go_on.set()
        await receiver.until_empty()
    assert receiver.seen == [("a", 2), ("b", 2), ("c", 2), ("new", 1)]


async def test_more_messages_than_one_batch_come_in_order(path: Path) -> None:
    await prepared(path)
    accept(path, *map(str, range(120)))
    async with receiving(path) as receiver:
        assert await receiver.send("new") == 202
        await receiver.until_empty()
    assert receiver.seen == [*((str(number), 2) for number in range(120)), ("new", 1)]


@pytest.mark.usefixtures("every_loop")
async def test_a_debounced_call_has_the_attempt(path: Path) -> None:
    await prepared(path)
    accept(path, "a", "b")
    async with receiving(path, debounce=0.01) as receiver:
        await receiver.until_empty()
    assert receiver.seen == [("b", 2)]


@pytest.mark.usefixtures("every_loop")
async def test_debounced_messages_are_handled_after_the_loop_was_blocked(path: Path) -> None:
    """The debounce timer is set again for a time in the past. uvloop then returns a handle without a time."""
    async with receiving(path, debounce=0.5) as receiver:
        assert await receiver.send("first") == 202
        await asyncio.sleep(0.01)
        assert await receiver.send("last") == 202
        time.sleep(0.6)  # blocks the loop on purpose
        await receiver.until_empty()
    assert receiver.seen[-1] == ("last", 1)


async def test_an_unreadable_message_is_a_dead_letter_and_delays_no_other(path: Path) -> None:
    await prepared(path)
    with closing(sqlite3.connect(path)) as db, db:
        WEBHOOKS.accept(db, b"{", now=0)
        WEBHOOKS.accept(db, b'["too", "few"]\n', now=0)
        WEBHOOKS.accept(db, b"[1, 2, 3, 4, 5]\n", now=0)
        WEBHOOKS.accept(db, b"[" * 100_000, now=0)
    accept(path, "fine")
    async with receiving(path) as receiver:
        await until(lambda: receiver.seen and [entry.dead for entry in entries(path)] == [True] * 4)
    assert receiver.seen == [("fine", 2)]


async def test_cancelling_the_router_leaves_the_rest_for_the_next_start(path: Path) -> None:
    started = asyncio.Event()

    async def never(_receiver: Receiver, _event: WebhookEvent) -> None:
        started.set()
        await asyncio.Event().wait()

    async with aiohttp.ClientSession() as client:
        receiver = Receiver(path, client, verify=GitHub(SECRET))

        async def handler(event: WebhookEvent) -> None:
            await never(receiver, event)

        receiver.router.handle("webhook/**", handler)
        run = asyncio.create_task(receiver.router.run())
        await receiver.router.wait_running()
        for number in range(8):
            assert await receiver.send(str(number)) == 202
        await started.wait()
        run.cancel()
        await asyncio.wait([run])
    assert len(entries(path)) == 8
    assert not any(entry.dead or entry.failures for entry in entries(path))
    async with receiving(path) as after:
        await after.until_empty()
    assert [body for body, _ in after.seen] == [str(number) for number in range(8)]
    attempts = [attempt for _, attempt in after.seen]
    # Only the message that was being handled has used an attempt. Queued messages have not.
    assert attempts == [2, *[1] * 7]


async def test_events_that_stay_in_the_inbox_are_not_logged_as_dropped(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(_receiver: Receiver, _event: WebhookEvent) -> None:
        await asyncio.Event().wait()

    async with receiving(path, never, drain_timeout=0.1) as receiver:
        for number in range(3):
            assert await receiver.send(str(number), path=f"/{number}") == 202
        # One message is being handled, one is queued, and one waits for space in the lane.
        await until(lambda: receiver.seen and receiver.router.lanes()[0].waiting == 1)
    assert caplog.messages == [
        (
            "router 'router' did not finish its events within Router(drain_timeout=0.1) seconds: "
            "cancelled 1 running handler (webhook/0); "
            "kept 3 events (webhook/0, webhook/1, webhook/2) in the inbox or stream for the next start"
        )
    ]
    assert [entry.attempts for entry in entries(path)] == [1, 0, 0]


async def test_a_draining_router_stores_results_after_the_end_of_its_source(path: Path) -> None:
    go_on = asyncio.Event()

    async def handle(_receiver: Receiver, _event: WebhookEvent) -> None:
        await go_on.wait()

    async with receiving(path, handle) as receiver:
        for number in range(2):
            assert await receiver.send(str(number)) == 202
        await until(lambda: receiver.seen)
        receiver.router.stop()
        await until(lambda: not receiver.router.sources()[0].running)
        go_on.set()
    assert entries(path) == []
    assert [body for body, _ in receiver.seen] == ["0", "1"]


async def test_a_stopping_receiver_accepts_no_more_while_it_delivers(path: Path) -> None:
    go_on = asyncio.Event()

    async def handle(_receiver: Receiver, _event: WebhookEvent) -> None:
        await go_on.wait()

    async with receiving(path, handle) as receiver:
        for number in range(5):
            assert await receiver.send(str(number)) == 202
        await until(lambda: receiver.seen)
        receiver.source.close()
        assert await receiver.send("late") == 503
        assert receiver.headers["Retry-After"] == "1"
        go_on.set()
    assert {body for body, _ in receiver.seen} | {unpacked(entry.body).text() for entry in entries(path)} == set(
        "01234"
    )


async def test_a_removed_source_can_be_added_again(path: Path) -> None:
    async with receiving(path) as receiver:
        assert await receiver.send("one") == 202
        await receiver.until_empty()
        receiver.router.remove_source(receiver.source)
        await until(lambda: receiver.source.url.endswith(":0"))
        receiver.router.add_source(receiver.source)
        await until(lambda: not receiver.source.url.endswith(":0"))
        assert await receiver.send("two") == 202
        await receiver.until_empty()
    assert receiver.seen == [("one", 1), ("two", 1)]


async def test_a_cancelled_source_leaves_every_message_to_the_next_run(path: Path) -> None:
    """The lane is full: one message is being passed to the router, and others wait in the file or in memory."""
    await prepared(path)
    accept(path, "a", "b", "c", "d")
    go_on = asyncio.Event()

    async def handle(_receiver: Receiver, _event: WebhookEvent) -> None:
        await go_on.wait()

    async with receiving(path, handle) as receiver:
        assert await receiver.send("new") == 202
        await until(lambda: receiver.seen)
        # A router cancels a source in this way if it does not finish in time.
        [runner] = receiver.router._lifespan.sources
        runner.cancel()
        await until(lambda: not runner.running)
        receiver.router.remove_source(receiver.source)
        receiver.router.add_source(receiver.source)
        await until(lambda: not receiver.source.url.endswith(":0"))
        go_on.set()
        await receiver.until_empty()
    assert [body for body, _ in receiver.seen] == ["a", "b", "c", "d", "new"]


async def test_a_source_without_a_router_stores_results_on_settle(path: Path) -> None:
    source, router = WebhookSource(port=0, inbox=Inbox(path)), Router()
    router.handle("webhook", seen := Recorder())
    async with running(router), source, aiohttp.ClientSession() as client:
        run = asyncio.create_task(source.run(router.emit))
        async with client.post(source.url) as answer:
            assert answer.status == 202
        await until(lambda: seen.events)
        source.close()
        await run
    await source.settle()
    assert entries(path) == []


async def test_a_port_that_is_taken_closes_the_file(path: Path) -> None:
    async with receiving(path) as receiver:
        port = int(receiver.source.url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use by another program"):
            await WebhookSource(port=port, inbox=Inbox(path.with_name("other.db"))).__aenter__()


# -- another process -----------------------------------------------------------------------------------------------


async def test_a_second_receiver_accepts_and_delivers_when_the_first_has_ended(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The test holds the lock in place of another process, and delivers no messages."""
    await prepared(path)
    accept(path, "theirs")
    first = FileLock(f"{path}-lock")
    assert first.take()
    async with receiving(path) as second:
        assert await second.send("ours") == 202
        await until(lambda: "another process is delivering" in caplog.text)
        assert second.seen == []
        first.release()
        await second.until_empty()
        assert await second.send("later") == 202
        await second.until_empty()
    assert second.seen == [("theirs", 2), ("ours", 1), ("later", 1)]


async def test_an_inbox_whose_file_was_deleted_accepts_nothing_more(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving(path) as receiver:
        assert await receiver.send("one") == 202
        await receiver.until_empty()
        for each in path.parent.glob("app.db*"):
            each.unlink()
        assert await receiver.send("two") == 503
    assert "was deleted or replaced while it was open" in caplog.text


async def test_an_inbox_whose_lock_was_deleted_takes_it_again_unless_another_receiver_has_it(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving(path) as receiver:
        lock = path.with_name("app.db-lock")
        lock.unlink()
        await until(lambda: FileLock(lock).is_held())
        assert await receiver.send("one") == 202
        await receiver.until_empty()
        other = FileLock(path.with_name("other-lock"))
        assert other.take()
        path.with_name("other-lock").replace(lock)
        await until(lambda: "another process is delivering" in caplog.text)
        assert await receiver.send("two") == 202
        assert [text for text, _ in receiver.seen] == ["one"]
        other.release()
        await receiver.until_empty()
    assert [text for text, _ in receiver.seen] == ["one", "two"]
    assert caplog.text.count("was deleted, so another process may have delivered") == 2


async def test_a_receiver_that_never_gets_the_lock_leaves_its_messages(path: Path) -> None:
    await prepared(path)
    first = FileLock(f"{path}-lock")
    assert first.take()
    async with receiving(path) as second:
        assert await second.send("ours") == 202
    first.release()
    assert [entry.attempts for entry in entries(path)] == [0]


async def test_messages_of_another_process_are_found(path: Path) -> None:
    async with receiving(path) as receiver:
        with closing(sqlite3.connect(path)) as db, db:
            WEBHOOKS.accept(db, packed(WebhookEvent("POST", "/deploy", {}, {}, b"from outside", "1")), now=0)
        await until(lambda: receiver.seen)
        await receiver.until_empty()
    assert receiver.seen == [("from outside", 1)]


async def test_a_dead_letter_is_replayed_while_the_receiver_runs(path: Path) -> None:
    broken = True

    async def handle(_receiver: Receiver, _event: WebhookEvent) -> None:
        if broken:
            raise LookupError("a mistake of ours")

    async with receiving(path, handle, max_attempts=1) as receiver:
        assert await receiver.send("one") == 202
        await until(lambda: [entry.dead for entry in entries(path)] == [True])
        broken = False
        assert await asyncio.to_thread(main, ["inbox", "replay", str(path), "dead"]) == 0
        await receiver.until_empty()
    assert receiver.seen == [("one", 1), ("one", 2)]


async def test_a_suspended_receiver_answers_503_and_keeps_its_messages(path: Path) -> None:
    await prepared(path)
    suspending = SuspendHandler()
    async with receiving(path) as receiver:
        suspending.manage(receiver.source)
        await suspending.suspend()
        accept(path, "left")
        assert await receiver.send("refused") == 503
        assert receiver.headers["Retry-After"] == "1"
        with closing(sqlite3.connect(path)) as db, db:
            WEBHOOKS.release_all(db)
        assert receiver.seen == []
        await suspending.resume()
        assert await receiver.send("taken") == 202
        await receiver.until_empty()
        assert {body for body, _ in receiver.seen} == {"left", "taken"}
        await suspending.suspend()
    assert entries(path) == []


async def test_a_source_can_be_suspended_before_it_starts(path: Path) -> None:
    await prepared(path)
    accept(path, "left")
    async with aiohttp.ClientSession() as client:
        receiver = Receiver(path, client, verify=GitHub(SECRET))
        receiver.source.suspend()
        receiver.router.handle("webhook/deploy", receiver.note)
        async with running(receiver.router):
            assert await receiver.send("refused") == 503
            receiver.source.resume()
            await receiver.until_empty()
    assert receiver.seen == [("left", 2)]


# -- repeated messages ---------------------------------------------------------------------------------------------


async def test_a_repeated_id_gets_the_same_answer_and_is_delivered_once(path: Path) -> None:
    async with receiving(path) as receiver:
        assert [await receiver.send("one", "id-1") for _ in range(3)] == [202] * 3
        assert [await receiver.send("no id") for _ in range(2)] == [202] * 2
        assert await receiver.send("other path", "id-1", "/other") == 202
        await receiver.until_empty()
    async with receiving(path) as after:
        assert await after.send("one", "id-1") == 202
        assert await after.send("new", "id-2") == 202
        await until(lambda: after.seen)
        await after.until_empty()
    assert [body for body, _ in receiver.seen] == ["one", "no id", "no id", "other path"]
    assert [body for body, _ in after.seen] == ["new"]


async def test_an_id_is_forgotten_after_dedupe_seconds(path: Path) -> None:
    async with receiving(path, dedupe=0.05) as receiver:
        assert await receiver.send("one", "id-1") == 202
        forgotten = time.time() + 0.05
        await until(lambda: time.time() > forgotten)
        assert await receiver.send("one", "id-1") == 202
        await until(lambda: len(receiver.seen) == 2)
    async with receiving(path, dedupe=0) as receiver:
        assert [await receiver.send("one", "id-1") for _ in range(2)] == [202] * 2
        await until(lambda: len(receiver.seen) == 2)


async def test_a_request_that_could_not_be_stored_can_be_repeated(path: Path) -> None:
    async with receiving(path, limits=Limits(body=10_000_000)) as receiver:
        journal = receiver.source._inbox._store._journal
        await journal.run(lambda db: db.execute("PRAGMA max_page_count = 20").fetchone())
        assert await receiver.send("x" * 1_000_000, "id-1") == 503
        await journal.run(lambda db: db.execute("PRAGMA max_page_count = 100000").fetchone())
        assert await receiver.send("x" * 1_000_000, "id-1") == 202
        await until(lambda: receiver.seen)


@asynccontextmanager
async def without_inbox(handle: Any, **options: Any) -> AsyncGenerator[Any]:
    async with aiohttp.ClientSession() as client:
        source, router = WebhookSource(port=0, verify=GitHub(SECRET), **options), Router(buffer=1)
        router.add_source(source)
        router.handle("webhook/deploy", handle)

        async def send(body: str, identity: str, path: str = "/deploy") -> int:
            signature = "sha256=" + hmac.new(SECRET, body.encode(), hashlib.sha256).hexdigest()
            headers = {"X-Hub-Signature-256": signature, "X-GitHub-Delivery": identity}
            async with client.post(source.url + path, data=body.encode(), headers=headers) as answer:
                return answer.status

        async with running(router):
            yield send


async def test_without_an_inbox_ids_are_remembered_in_memory() -> None:
    async with without_inbox(seen := Recorder()) as send:
        assert [await send("one", "id-1") for _ in range(3)] == [202] * 3
        assert [await send("lost", "id-2", "/depoly") for _ in range(2)] == [404] * 2
        assert await send("two", "id-2") == 202
        await until(lambda: len(seen.events) == 2)
    async with without_inbox(seen := Recorder(), dedupe=0) as send:
        assert [await send("one", "id-1") for _ in range(3)] == [202] * 3
        await until(lambda: len(seen.events) == 3)


@pytest.mark.parametrize("scheme", [Stripe("hush"), Slack("hush")])
@pytest.mark.parametrize("durable", [False, True])
async def test_a_replay_key_is_accepted_once(scheme: Stripe | Slack, durable: bool, path: Path) -> None:
    source, router, seen = WebhookSource(port=0, verify=scheme, inbox=Inbox(path) if durable else None), Router(), []
    router.add_source(source)
    router.handle("webhook", lambda event: seen.append(event.text()))
    captured = scheme.sign(b"pay", now=time.time() - 2)
    async with running(router), aiohttp.ClientSession() as client:
        for headers in (captured, captured, scheme.sign(b"pay", now=time.time())):
            async with client.post(source.url, data=b"pay", headers=headers) as answer:
                assert answer.status == 202
        await until(lambda: len(seen) == 2)
    assert seen == ["pay", "pay"]


async def test_a_repetition_waits_for_the_first_and_replaces_it_on_disconnect() -> None:
    """The lane is full, so the last message and its repetitions wait. All requests are accepted."""
    go_on, seen = asyncio.Event(), Recorder()

    async def slow(event: WebhookEvent) -> None:
        await go_on.wait()
        seen(event)

    async with without_inbox(slow) as send, asyncio.TaskGroup() as group:
        assert [await send(each, each) for each in ("1", "2")] == [202] * 2
        waiting = [group.create_task(send("3", "3")) for _ in range(3)]
        go_on.set()
        assert [await each for each in waiting] == [202] * 3
        await until(lambda: len(seen.events) == 3)


async def test_refused_requests_are_logged_without_their_content(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "lifecycle")
    async with receiving(path) as receiver:
        assert await receiver.send("a body of ours", "id-1") == 202
        await receiver.until_empty()
    assert "a body of ours" not in caplog.text
    assert "sha256=" not in caplog.text
