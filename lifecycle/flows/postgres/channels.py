"""`Channel`: a connection to a PostgreSQL server that hears notifications and sends some, without anybody waiting.

It needs neither a thread nor a task: the loop says when there is something to read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from lifecycle.flows.postgres.connectors import Row

__all__ = ["Channel"]

#: Seconds that news wait for others to come along: each notification takes a lock that all of the server share.
_GATHER = 0.005
#: Bytes of one notification, of which the server takes 8000; and news that wait at most: more of them are lost.
_LONGEST, _MOST = 7900, 1000


class Channel:
    """Has each line that comes over the channel ``name`` heard, and calls ``lost`` when the connection is gone."""

    def __init__(
        self,
        db: psycopg.Connection[Row],
        name: str,
        *,
        hear: Callable[[str], None],
        lost: Callable[[], None],
    ) -> None:
        self._db, self._name, self._hear, self._lost = db, name, hear, lost
        self._loop = asyncio.get_running_loop()
        # What was not sent yet, in order; when it will be; and whether the server still works on what was.
        self._news: dict[bytes, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False
        self._over = False
        self._file = db.fileno()
        self._loop.add_reader(self._file, self._readable)

    def tell(self, line: str) -> None:
        """Have others hear it soon; what comes along with many others may be lost."""
        if len(self._news) < _MOST and len(line) < _LONGEST:
            self._news[line.encode()] = None
        if self._timer is None and not self._busy:
            self._timer = self._loop.call_later(_GATHER, self._send)

    def _send(self) -> None:
        self._timer = None
        if self._news and not self._busy:
            values = [self._name.encode(), _together(self._news)]
            self._busy = self._guarded(lambda: self._post(values))

    def _post(self, values: list[bytes]) -> None:
        self._db.pgconn.send_query_params(b"SELECT pg_notify($1, $2)", values)
        self._db.pgconn.flush()

    def _readable(self) -> None:
        if self._guarded(self._read) and not self._busy and self._news and self._timer is None:
            self._timer = self._loop.call_later(_GATHER, self._send)

    def _read(self) -> None:
        pg = self._db.pgconn
        pg.consume_input()
        while self._busy and not pg.is_busy():
            self._busy = pg.get_result() is not None
        while (told := pg.notifies()) is not None:
            for line in told.extra.decode().split("\n"):
                self._hear(line)

    def _guarded(self, use: Callable[[], None]) -> bool:
        """Do it; False where the connection is gone."""
        import psycopg

        try:
            use()
        except psycopg.Error:
            # Once: it may be noticed again by who is about to let go.
            if not self._over:
                self._forget()
                self._db.close()
                self._lost()
            return False
        return True

    def let_go(self) -> psycopg.Connection[Row]:
        """The connection, which is not listened to any more; what is left was sent."""
        if self._timer is not None:
            self._timer.cancel()
            self._send()
        self._forget()
        return self._db

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Not by the connection's own word for it: one that is lost has none.
        self._loop.remove_reader(self._file)
        self._over = True


def _together(news: dict[bytes, None]) -> bytes:
    """As many of them as go into one notification, which they leave."""
    lines: list[bytes] = []
    room = _LONGEST
    while news and room >= len(first := next(iter(news))):
        room -= len(first) + 1
        lines.append(first)
        del news[first]
    return b"\n".join(lines)
