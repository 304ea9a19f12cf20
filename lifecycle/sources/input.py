"""`InputSource`: lines from stdin, or from any other file, as commands."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections import deque
from typing import TYPE_CHECKING

from lifecycle.errors import LaneFull
from lifecycle.events import EndOfInputEvent, LineEvent, ShutdownEvent, TerminateEvent, Topical, UnknownCommandEvent
from lifecycle.sources._input.chunks import Stream, is_terminal, open_chunks
from lifecycle.sources._input.lines import Lines
from lifecycle.sources._input.vocabulary import Vocabulary, Words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lifecycle.control.commands import Commands
    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.types import Emit

__all__ = ["InputSource"]

_log = logging.getLogger("lifecycle.sources")

#: After one of these, nothing that was piped in is meant for this run.
_ENDS = (ShutdownEvent, TerminateEvent)


class InputSource:
    """Reads lines and emits what they stand for, then `EndOfInputEvent`; it blocks neither the loop nor the exit.

    ``commands`` says which words are commands: a registry, names, or a mapping from names to events, to functions
    from the arguments to an event, or to None (a `CommandEvent`). Not given, they are those of the router that this
    source is added to, and the lifecycle's own (``suspend``, ``resume``, ``reload``, ``terminate``, ``quit`` and
    their short forms, which take no arguments). Any other line becomes what ``fallback(line)`` returns (None: nothing),
    or an `UnknownCommandEvent`. Blank lines mean nothing. With ``raw`` every line is a `LineEvent`, blank ones too.

    ``stream`` is a text or binary file; None is stdin, and no stdin at all is one that is empty. Where it is no
    terminal, the next line is read when what the last one caused was handled, and lines that have come when the
    source is cancelled are still emitted (data first), up to one that ends the program. At a terminal lines do not
    wait for each other, and what was not read before the cancellation is not obeyed (strict).

    A line may have 1,048,576 bytes; a longer one is discarded and logged. What is no UTF-8 is replaced.

    Raises:
        ValueError: when ``raw`` comes with ``commands`` or ``fallback``, which it would never ask.
        TypeError: for commands that are none.
    """

    def __init__(
        self,
        *,
        commands: Words | None = None,
        raw: bool = False,
        fallback: Callable[[str], Topical | None] | None = None,
        stream: Stream | None = None,
    ) -> None:
        if raw and not (commands is None and fallback is None):
            raise ValueError("InputSource(raw=True) makes every line a LineEvent; leave out commands= and fallback=")
        self.name = "input"
        self._vocabulary = Vocabulary(commands)
        self._raw = raw
        self._fallback = fallback
        self._stream = stream
        # Whether the lines that have come are dropped when the source is cancelled.
        self._discards = False
        #: Lines that have come so far, of whatever kind.
        self.lines: int = 0

    def __repr__(self) -> str:
        return f"<InputSource: {self.lines} lines so far>"

    @property
    def is_terminal(self) -> bool:
        """Whether a person may be typing."""
        return is_terminal(sys.stdin if self._stream is None else self._stream)

    def use_commands(self, commands: Commands) -> None:
        """Know these commands too, unless some were given explicitly; a router calls this with its own."""
        self._vocabulary.use(commands)

    async def run(self, emit: Emit) -> None:
        """Emit until the input ends."""
        strict = self.is_terminal
        self._discards = strict
        lines, chunks, left = Lines(), open_chunks(self._stream), deque[str]()
        try:
            while chunk := await chunks.read():
                left.extend(lines.feed(chunk))
                await self._emit_each(left, emit, wait=not strict)
        except asyncio.CancelledError:
            if not self._discards:
                left.extend(lines.feed(chunks.read_nowait()))
                await self._hand_over(left, emit)
            raise
        finally:
            chunks.close()
        left.extend(lines.finish())
        await self._emit_each(left, emit, wait=not strict)
        await emit(EndOfInputEvent())

    def discard_rest(self) -> None:
        """When the source is cancelled, drop the lines that have come and were not emitted."""
        self._discards = True

    async def take(self, lines: Iterable[str], emit: Emit) -> None:
        """Emit what ``lines`` stand for; they do not wait for each other."""
        await self._emit_each(deque(lines), emit, wait=False)

    async def _emit_each(self, left: deque[str], emit: Emit, *, wait: bool) -> None:
        """Take the lines out and emit what they stand for; with ``wait`` each after the one before it was handled."""
        while left:
            event = self._next_of(left)
            if event is None:
                continue
            delivery = await emit(event)
            if wait and inspect.isawaitable(delivery):  # a test's own emit may return nothing
                await _handled(delivery)

    async def _hand_over(self, left: deque[str], emit: Emit) -> None:
        """Emit the lines that have come when the source is cancelled, without waiting for room or for handlers."""
        while left and not self._discards:
            event = self._next_of(left)
            if event is not None:
                # A router that drains takes an event beyond the limit of a full lane when its emit is cancelled.
                try:
                    async with asyncio.timeout(0):
                        await emit(event)
                except TimeoutError:
                    continue
                except LaneFull as error:
                    _log.warning("%d lines of input are dropped: %s", len(left) + 1, error)
                    return

    def _next_of(self, left: deque[str]) -> Topical | None:
        self.lines += 1
        event = self._event(left.popleft())
        self._discards |= isinstance(event, _ENDS)
        return event

    def _event(self, line: str) -> Topical | None:
        """What ``line`` stands for; a user's function that fails costs this line only."""
        if self._raw:
            return LineEvent(line)
        try:
            event = self._vocabulary.parse(line)
            if self._fallback is not None and isinstance(event, UnknownCommandEvent):
                return self._fallback(line)
        except Exception:  # noqa: BLE001  # whatever a user's function raises
            _log.exception("the line %.80r could not be made an event", line)
            return None
        return event


async def _handled(delivery: Delivery) -> None:
    """Wait until the event was handled, one way or another; the router has told who has to know of errors."""
    task = asyncio.current_task()
    assert task is not None
    try:
        await delivery
    except asyncio.CancelledError:
        if task.cancelling():
            raise
    except Exception as error:  # noqa: BLE001  # handlers raise what they like, and it has been logged
        _log.debug("a line led to %r", error)
