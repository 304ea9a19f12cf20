"""`lifecycle inbox` shows, replays and drops messages, without control characters."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli import main
from lifecycle.cli.output import FAILED, USAGE
from lifecycle.events import WebhookEvent
from lifecycle.journal import QUEUES
from lifecycle.journal.database import Database, FileLock
from lifecycle.sources._inbox_store import WEBHOOKS, lock_path, packed

if TYPE_CHECKING:
    from pathlib import Path

EVENT = WebhookEvent(
    "POST",
    "/deploy",
    {"x-hub-signature-256": "sha256=abc", "authorization": "Bearer hush", "x-thing": "one\x1b[2J"},
    {"ref": "main", "access_token": "hush"},
    b"line one\n\x1b]0;owned\x07 caf\xc3\xa9",
    "id-1",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with six messages: waiting, in delivery, failed, two dead letters, and an unreadable one."""
    path = tmp_path / "app.db"
    database = Database(str(path), (QUEUES,), durable=False)
    database.open()
    database.close()
    with closing(sqlite3.connect(path)) as db, db:
        for _ in range(5):
            WEBHOOKS.accept(db, packed(EVENT), now=0)
        WEBHOOKS.accept(db, b"what?", now=0)
        db.execute("UPDATE lifecycle_queue SET leased = 9e999 WHERE id = 2")
        WEBHOOKS.retry(db, 3, due=9e9, error="OSError: not\nyet")
        WEBHOOKS.discard(db, 4, error="LookupError: " + "x" * 200)
        WEBHOOKS.discard(db, 5, error="LookupError: no")
    return path


def states(file: Path) -> dict[int, bool]:
    with closing(sqlite3.connect(file)) as db:
        return {entry.id: entry.dead for entry in WEBHOOKS.entries(db)}


def test_list_shows_the_state_of_each_message(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inbox", "list", str(file)]) == 0
    out = capsys.readouterr().out
    head, *rows = out.splitlines()
    assert head.split() == ["id", "state", "attempts", "accepted", "topic", "error"]
    assert [row.split()[1] for row in rows] == ["waiting", "delivering", "failed", "dead", "dead", "waiting"]
    assert "webhook/deploy" in rows[0]
    assert r"OSError: not\nyet" in rows[2]
    assert rows[3].endswith("…")
    assert "(cannot be read)" in rows[5]


def test_message_is_shown_without_secrets_and_control_characters(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inbox", "show", str(file), "1", "6"]) == 0
    out = capsys.readouterr().out
    for text in (
        "id        id-1",
        "request   POST /deploy?ref=main&access_token=***",
        "x-hub-signature-256: ***",
        "authorization: ***",
        r"x-thing: one\x1b[2J",
        "line one\n\\x1b]0;owned\\x07 café\n",
        "cannot be read",
    ):
        assert text in out
    assert "hush" not in out
    assert "\x1b" not in out


def test_requests_and_their_errors_mask_the_same_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "app.db"
    database = Database(str(path), (QUEUES,), durable=False)
    database.open()
    database.close()
    headers = {"x-passphrase": "hush", "x-credential": "hush", "author": "bob", "keyboard": "us"}
    event = WebhookEvent("POST", "/", headers, {"key": "hush", "otp": "hush"}, b'{"pwd": "hush", "user": "bob"}', "i")
    with closing(sqlite3.connect(path)) as db, db:
        WEBHOOKS.accept(db, packed(event), now=0)
        WEBHOOKS.discard(db, 1, error="OSError: postgres://bob:hush@db is away")
    assert main(["inbox", "list", str(path)]) == 0
    assert main(["inbox", "show", str(path), "1"]) == 0
    out = capsys.readouterr().out
    assert "hush" not in out
    for text in ("author: bob", "keyboard: us", '"user": "bob"', "postgres://bob:***@db is away"):
        assert text in out


def test_dead_letters_are_replayed_and_dropped(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inbox", "replay", str(file), "4"]) == 0
    assert "1 message will be delivered again" in capsys.readouterr().err
    assert states(file) == {1: False, 2: False, 3: False, 4: False, 5: True, 6: False}
    assert main(["inbox", "drop", str(file), "dead"]) == 0
    assert main(["inbox", "drop", str(file), "1", "6", "6"]) == 0
    assert "2 messages removed" in capsys.readouterr().err
    assert states(file) == {2: False, 3: False, 4: False}


def test_replayed_message_has_new_attempts(file: Path) -> None:
    assert main(["inbox", "replay", str(file), "3"]) == 0
    with closing(sqlite3.connect(file)) as db:
        entry = WEBHOOKS.get(db, 3)
    assert entry is not None
    assert (entry.failures, entry.due) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "status", "expected_text"),
    [
        (["show", "{}", "77"], FAILED, "message 77 does not exist"),
        (["drop", "{}", "1", "77"], FAILED, "message 77 does not exist"),
        (["drop", "{}", "one"], USAGE, "'one' is not a message id"),
        (["drop", "{}", "²"], USAGE, "is not a message id"),
        (["replay", "{}", "2"], FAILED, "is being delivered"),
        (["list", "{}.not"], USAGE, "no such file"),
        (["drop", "{}.not", "1"], USAGE, "no such file"),
        (["list", "{}/.."], USAGE, "no such file"),
    ],
)
def test_impossible_requests_are_reported_and_change_nothing(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, expected_text: str
) -> None:
    before = states(file)
    assert main(["inbox", *(each.format(file) for each in arguments)]) == status
    assert expected_text in capsys.readouterr().err
    assert states(file) == before
    assert not file.with_name("app.db.not").exists()


@pytest.mark.parametrize("content", [b"", b"some text"])
def test_another_file_is_left_as_it_is(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.db"
    other.write_bytes(content)
    assert main(["inbox", "list", str(other)]) == USAGE
    assert other.read_bytes() == content
    with closing(sqlite3.connect(tmp_path / "notes.db")) as db, db:
        db.execute("CREATE TABLE notes (text)")
    assert main(["inbox", "list", str(tmp_path / "notes.db")]) == USAGE
    assert "is not an inbox" in capsys.readouterr().err


def test_inbox_of_a_newer_version_is_not_changed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE lifecycle_schemas SET version = 9")
    assert main(["inbox", "list", str(file)]) == FAILED
    assert "have version 9, but this program supports versions up to 1" in capsys.readouterr().err


def test_damaged_inbox_is_reported_as_damaged(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    assert main(["inbox", "list", str(file)]) == FAILED
    assert "it is damaged" in capsys.readouterr().err


def test_messages_of_a_dead_receiver_wait_and_can_be_replayed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The receiver was killed, so its lock is free, regardless of the state in the file."""
    file.with_name("app.db-lock").touch()
    assert main(["inbox", "list", str(file)]) == 0
    assert "delivering" not in capsys.readouterr().out
    assert main(["inbox", "replay", str(file), "2"]) == 0


def test_messages_of_a_receiver_are_known_by_any_path_of_the_file(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Releasing a running receiver's messages would deliver them twice."""
    link = file.with_name("link.db")
    link.symlink_to(file)
    receiver = FileLock(lock_path(link))
    assert receiver.take()
    try:
        for name in (file, link):
            assert main(["inbox", "replay", str(name), "2"]) == FAILED
        assert main(["inbox", "drop", str(link), "1", "2"]) == 0
    finally:
        receiver.release()
    assert "already being delivered: 2" in capsys.readouterr().err


def test_empty_inbox_is_reported(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inbox", "drop", str(file), "1", "2", "3", "4", "5", "6"]) == 0
    assert main(["inbox", "list", str(file)]) == 0
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "the inbox contains no messages" in seen.err


def test_command_after_dashes_is_refused_there(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inbox", "list", str(file), "--", "ls"]) == USAGE
    for arguments in ([], ["list"], ["show", str(file)], ["burn", str(file)]):
        with pytest.raises(SystemExit) as ended:
            main(["inbox", *arguments])
        assert ended.value.code == USAGE
    capsys.readouterr()
