"""In a member: one call, from its first line to its outcome.

A call is *open* while `Cancelled` may be raised in it, and closed while the runtime's own code runs: a frame is never
cut in half, and nothing is raised where nobody expects it. The engines differ in how they interrupt a call that is
open.
"""

from __future__ import annotations

from _queue import SimpleQueue
from time import monotonic

from lifecycle._util import message_of
from lifecycle.workers.pool.child.targets import is_async

# Checkers know the name; see lifecycle._lazy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from lifecycle.workers.pool.child.channel import Channel

__all__ = ["Call", "Cancelled", "described", "perform", "refuse_generator", "send_outcome"]

#: The modules of a member's own; nobody wants to see them in a traceback of theirs.
_OURS = "lifecycle.workers.pool.child."


class Cancelled(BaseException):
    """Raised in the function of a call that is not wanted any more; no ``except Exception`` catches it."""


class Call:
    """One call, asked for and not answered yet.

    Args:
        number: its id.
        function: what is to be called.
        args: with what.
        kwargs: with what else.
        window: how many chunks may be on their way; 0 for a call that is answered by one value.
    """

    __slots__ = (
        "args",
        "began",
        "cancelled",
        "credits",
        "function",
        "kwargs",
        "number",
        "open",
        "traceparent",
        "window",
    )

    def __init__(
        self, number: int, function: str, args: list[Any], kwargs: dict[str, Any], window: int
    ) -> None:  # a frame's items, in their order
        self.number: int = number
        self.function: str = function
        self.args: list[Any] = args
        self.kwargs: dict[str, Any] = kwargs
        self.window: int = window
        self.began: float | None = None
        self.cancelled: bool = False
        self.open: bool = False
        # The span that it is done under, as W3C writes it.
        self.traceparent: str = ""
        # What is granted besides the first window. A SimpleQueue waits where a signal wakes it.
        self.credits: SimpleQueue[int] = SimpleQueue()

    @property
    def age(self) -> float:
        """Seconds since it began; 0 before."""
        return 0.0 if self.began is None else monotonic() - self.began

    def enter(self) -> None:
        """Let it be interrupted from here on."""
        self.open = True
        if self.cancelled:
            raise Cancelled

    def leave(self) -> None:
        """Let it not be interrupted any more; any number of times."""
        self.open = False


def perform(call: Call, find: Callable[[str], Any], channel: Channel) -> list[Any]:
    """Run ``call`` and stream what it streams: the frame that answers it."""
    if not call.traceparent:
        return _perform(call, find, channel)
    from lifecycle.workers.pool.child.traces import under  # few programs are traced

    with under(call.traceparent):
        return _perform(call, find, channel)


def _perform(call: Call, find: Callable[[str], Any], channel: Channel) -> list[Any]:
    call.began = monotonic()
    try:
        try:
            call.enter()
            value = _plain(find(call.function))(*channel.unseal(call.args), **channel.unseal(call.kwargs))
            if call.window:
                _stream(call, value, channel)
                value = None
            else:
                refuse_generator(call, value)
        finally:
            call.leave()
    except Cancelled:
        # It may have been raised on the way into leave().
        call.leave()
        return ["error", call.number, "Cancelled", "the call was taken back", "", True]
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is the outcome
        return described(call.number, error)
    return ["end", call.number] if call.window else ["result", call.number, value]


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, if it is no async one.

    Raises:
        TypeError: if it is: there is no loop for it.
    """
    if is_async(function):
        raise TypeError(f"{function!r} is async, and the target of this pool is not; it has no loop for it")
    return function


def refuse_generator(call: Call, value: object) -> None:
    """Raise TypeError for a generator whose one result is wanted."""
    if hasattr(value, "gi_frame") or hasattr(value, "ag_frame"):
        raise TypeError(f"{call.function!r} is a generator; what it yields is had with stream()")


def _stream(call: Call, items: Iterable[Any], channel: Channel) -> None:
    granted = call.window
    iterator = iter(items)
    try:
        for item in iterator:
            while not granted:
                granted += call.credits.get()
                call.enter()
            granted -= 1
            call.leave()
            channel.send(["chunk", call.number, channel.seal(item)])
            call.enter()
    finally:
        if (close := getattr(iterator, "close", None)) is not None:
            close()


def send_outcome(channel: Channel, call: Call, frame: list[Any]) -> None:
    """Answer ``call``; if its result cannot be sent, by an error that says so."""
    try:
        if frame[0] == "result":
            frame[2] = channel.seal(frame[2])
        channel.send(frame)
    except (TypeError, ValueError) as error:
        message = f"{call.function!r} returned what cannot be sent: {error}"
        channel.send(["error", call.number, type(error).__name__, _sound(message[:10_000]), "", False])


def described(number: int, error: BaseException) -> list[Any]:
    """The frame that tells of ``error``."""
    import traceback  # many a member never has an error

    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(kind, error, trace))
    return ["error", number, name, _sound(message_of(error)), _sound(text), False]


def _sound(text: str) -> str:
    """``text`` as what every codec can carry."""
    return text.encode(errors="replace").decode()
