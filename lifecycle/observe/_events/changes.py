"""What changed last, for any number of readers who each go their own pace."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lifecycle._async import Condition
from lifecycle.control.patterns import DEEP

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from lifecycle.control.patterns import Pattern
    from lifecycle.observe._events.entries import Entry
    from lifecycle.observe._events.records import Record

__all__ = ["Changes", "Following"]


class Changes:
    """The last changes, numbered; kept as long as somebody reads, and once for all readers."""

    __slots__ = ("_changed", "_kept", "_readers", "count", "is_over", "is_read")

    def __init__(self) -> None:
        #: How many there were.
        self.count: int = 0
        # What changed in the last of them: a record that changed again since stands further behind too.
        self._kept: deque[Record] = deque()
        self._readers: list[Following] = []
        self._changed = Condition()
        #: Whether anybody wants to know.
        self.is_read: bool = False
        #: Whether there will be no more.
        self.is_over: bool = False

    def __len__(self) -> int:
        """How many readers there are."""
        return len(self._readers)

    def note(self, record: Record) -> None:
        """``record`` has changed; only called while somebody reads."""
        self.count += 1
        record.change = self.count
        self._kept.append(record)
        self._changed.notify_all()

    async def wait(self) -> None:
        """Until there is something to look at."""
        await self._changed.wait()

    def get(self, number: int) -> Record | None:
        """The record that changed then; None where it has changed again since."""
        record = self._kept[number - self.count - 1]
        return record if record.change == number else None

    def join(self, reader: Following, maxsize: int) -> None:
        """Keep changes for ``reader`` too."""
        self._readers.append(reader)
        longest = max(maxsize, self._kept.maxlen or 0)
        if longest != self._kept.maxlen:
            self._kept = deque(self._kept, longest)
        self.is_read = True

    def leave(self, reader: Following) -> None:
        """``reader`` reads no more."""
        if reader in self._readers:
            self._readers.remove(reader)
        if not self._readers:
            self.is_read = False
            self._kept = deque()
        self._changed.notify_all()

    def end(self) -> None:
        """Nothing will change any more."""
        self.is_over = True
        self._changed.notify_all()


class Following:
    """Entries as they change, from `EventLog.follow`; one that changed several times since the last look comes once.

    At most ``maxsize`` changes wait; then the oldest are dropped and counted in ``dropped``.
    """

    def __init__(self, changes: Changes, pattern: Pattern, maxsize: int) -> None:
        #: Changes that it came too late for, whatever their topics.
        self.dropped: int = 0
        self._changes = changes
        self._pattern = None if pattern.segments == (DEEP,) else pattern
        self._maxsize = maxsize
        # The last change that it has looked at; None before it is entered.
        self._seen: int | None = None
        self._left = False

    async def __aenter__(self) -> Self:
        """Begin to follow."""
        self._seen = self._changes.count
        self._changes.join(self, self._maxsize)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Follow no more."""
        self._left = True
        self._changes.leave(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry:
        if self._seen is None:
            raise RuntimeError("nothing is followed yet; write `async with log.follow(…) as entries`")
        while not self._left:
            record = self._next(self._seen)
            if record is not None:
                return record.entry()
            if self._changes.is_over:
                break
            await self._changes.wait()
        raise StopAsyncIteration

    def ready(self) -> list[Entry]:
        """What could be had without waiting: each entry once, as it is now."""
        found: list[Entry] = []
        while self._seen is not None and not self._left and (record := self._next(self._seen)) is not None:
            found.append(record.entry())
        return found

    def _next(self, seen: int) -> Record | None:
        """The next that has not changed again since and is wanted."""
        count = self._changes.count
        late = count - self._maxsize - seen
        if late > 0:
            self.dropped += late
            seen += late
        found = None
        while seen < count and found is None:
            seen += 1
            found = self._changes.get(seen)
            if found is not None and self._pattern is not None and not self._pattern.matches(found.topic_now()):
                found = None
        self._seen = seen
        return found
