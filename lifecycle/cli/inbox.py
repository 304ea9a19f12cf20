"""`lifecycle inbox`: list, replay and remove the messages in an inbox file, even while a receiver is using the file.

When requests are printed, control characters are removed and secrets are masked.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from lifecycle._masking import HIDDEN, is_secret, masked
from lifecycle._text import plural, printable, shorten
from lifecycle.cli.files import check_file
from lifecycle.cli.output import DONE, CliError, UsageError, ago, columns, local_time, print_result, stderr_console
from lifecycle.errors import JournalError
from lifecycle.journal import QUEUES
from lifecycle.journal.database import Database, FileLock
from lifecycle.sources._inbox_store import WEBHOOKS, lock_path, unpacked

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    from lifecycle.events import WebhookEvent
    from lifecycle.journal import Entry
    from lifecycle.journal.database import Work

__all__ = ["inbox"]

_COLUMNS = ("id", "state", "attempts", "accepted", "topic", "error")


def inbox(subcommand: str, file: Path, ids: Sequence[str]) -> int:
    """Run a subcommand on the messages with these numbers, or on all dead letters if ``ids`` is ``["dead"]``.

    Raises:
        UsageError: if the file is not an inbox, or an id is not a number.
        CliError: if a message does not exist or is currently being delivered.
    """
    with _opened(file) as carry_out:
        _SUBCOMMANDS[subcommand](carry_out, ids)
    return DONE


@contextmanager
def _opened(file: Path) -> Generator[Callable[[Work], Any]]:
    """Open the file, and yield a function that runs statements in a transaction."""
    check_file(file, QUEUES, lacks="is not an inbox", given_to="Inbox")
    database = Database(str(file), (QUEUES,), durable=True)

    def carry_out(work: Work) -> Any:
        [(result, error)] = database.carry_out([work])
        if error is not None:
            raise error
        return result

    try:
        database.open()
        _release(file, carry_out)
        yield carry_out
    except JournalError as error:
        raise CliError(str(error)) from error
    finally:
        database.close()


def _release(file: Path, carry_out: Callable[[Work], Any]) -> None:
    """Release messages that are still claimed by a receiver that is no longer running."""
    path = lock_path(file)
    if not os.path.exists(path):  # noqa: PTH110  # a string
        return
    lock = FileLock(path)
    if lock.take():
        try:
            carry_out(WEBHOOKS.release_all)
        finally:
            lock.release()


# -- subcommands ---------------------------------------------------------------------------------------------------


def _list(carry_out: Callable[[Work], Any], _letters: Sequence[str]) -> None:
    """Print one line per message, oldest first."""
    entries: list[Entry] = carry_out(WEBHOOKS.entries)
    rows = [_COLUMNS, *map(_row, entries)]
    if entries:
        print_result(sys.stdout, columns(rows))
    else:
        stderr_console().info("the inbox contains no messages")


def _show(carry_out: Callable[[Work], Any], ids: Sequence[str]) -> None:
    """Print the full details of each message."""
    for number in _numbers(carry_out, ids):
        entry: Entry | None = carry_out(partial(WEBHOOKS.get, number=number))
        if entry is None:
            raise CliError(f"message {number} no longer exists")
        print_result(sys.stdout, _described(entry))


def _replay(carry_out: Callable[[Work], Any], ids: Sequence[str]) -> None:
    """Schedule messages for another delivery, within a second or when the receiver next starts."""
    numbers = _numbers(carry_out, ids)
    for number in numbers:
        if not carry_out(partial(WEBHOOKS.revive, number=number)):
            raise CliError(f"cannot replay message {number}: it is being delivered, or no longer exists")
    stderr_console().info(f"{plural(len(numbers), 'message')} will be delivered again")


def _drop(carry_out: Callable[[Work], Any], ids: Sequence[str]) -> None:
    """Remove messages. Deliveries that are already in progress still finish."""
    numbers = _numbers(carry_out, ids)

    def remove(db: sqlite3.Connection) -> list[int]:
        taken = [entry.id for entry in WEBHOOKS.entries(db) if entry.id in numbers and entry.leased > time.time()]
        WEBHOOKS.done(db, *numbers)
        return taken

    taken: list[int] = carry_out(remove)
    stderr_console().info(f"{plural(len(numbers), 'message')} removed")
    if taken:
        shown = ", ".join(map(str, taken))
        stderr_console().info(
            f"already being delivered: {shown}; a removed message is not delivered again after a crash"
        )


_SUBCOMMANDS: dict[str, Callable[[Callable[[Work], Any], Sequence[str]], None]] = {
    "list": _list,
    "show": _show,
    "replay": _replay,
    "drop": _drop,
}


def _numbers(carry_out: Callable[[Work], Any], ids: Sequence[str]) -> list[int]:
    """Return the numbers of the messages with these ids.

    Raises:
        UsageError: if an id is not a number.
        CliError: if a message does not exist.
    """
    entries: list[Entry] = carry_out(WEBHOOKS.entries)
    if list(ids) == ["dead"]:
        return [entry.id for entry in entries if entry.dead]
    if wrong := [text for text in ids if not (text.isascii() and text.isdigit())]:
        raise UsageError(f"{wrong[0]!r} is not a message id; pass ids listed by `lifecycle inbox list`, or 'dead'")
    numbers = sorted({int(text) for text in ids})
    if missing := set(numbers) - {entry.id for entry in entries}:
        raise CliError(f"message {min(missing)} does not exist; `lifecycle inbox list` shows the messages")
    return numbers


# -- formatting -------------------------------------------------------------------------------------------------


def _row(entry: Entry) -> tuple[str, ...]:
    event = _event(entry)
    topic = "(cannot be read)" if event is None else event.topic
    cells = (
        str(entry.id),
        _state(entry),
        str(entry.attempts),
        ago(entry.accepted),
        topic,
        shorten(masked(entry.error)),
    )
    return tuple(printable(cell) for cell in cells)


def _state(entry: Entry) -> str:
    if entry.dead:
        return "dead"
    if entry.leased > time.time():
        return "delivering"
    return "failed" if entry.failures else "waiting"


def _described(entry: Entry) -> str:
    event = _event(entry)
    known = [
        ("message", str(entry.id)),
        ("state", _state(entry)),
        ("accepted", f"{local_time(entry.accepted)}, {ago(entry.accepted)} ago"),
        ("attempts", f"{entry.attempts}, of which {entry.failures} failed"),
        ("error", masked(entry.error) or "none"),
    ]
    text = "".join(f"{name:<10}{printable(value)}\n" for name, value in known)
    return text + (_request(event) if event is not None else "(the request cannot be read)\n") + "\n"


def _request(event: WebhookEvent) -> str:
    query = "&".join(f"{name}={_shown(name, value)}" for name, value in event.query.items())
    lines = [
        f"id        {event.id}",
        f"request   {event.method} {event.path}{masked(f'?{query}') if query else ''}",
        *(f"  {name}: {_shown(name, value)}" for name, value in event.headers.items()),
    ]
    body = printable(masked(event.text()), "\n\t")
    return "".join(f"{printable(line)}\n" for line in lines) + (f"\n{body}\n" if body else "")


def _shown(name: str, value: str) -> str:
    return HIDDEN if is_secret(name) else masked(value)


def _event(entry: Entry) -> WebhookEvent | None:
    try:
        return unpacked(entry.body)
    except ValueError:
        return None
