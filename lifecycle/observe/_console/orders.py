"""What a program is told from outside: a command line or an event goes to a router, and its outcome comes back.

Where no router runs, the words that steer the program are carried out all the same.
"""

from __future__ import annotations

import asyncio
import difflib
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._masking import masked
from lifecycle._steering.actions import is_made_for, routers_of
from lifecycle._steering.answers import Answer, asker
from lifecycle._steering.lent_commands import LentCommands
from lifecycle._util import reason_of
from lifecycle.control import Router
from lifecycle.control.commands import split
from lifecycle.control.deliveries import current
from lifecycle.errors import Dropped, InvalidTopic, LifecycleError
from lifecycle.events import CommandEvent, Event, UnknownCommandEvent

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

    from lifecycle.control import Command, Delivery
    from lifecycle.events import Topical
    from lifecycle.runtime import Lifetime

__all__ = ["Orders", "Outcome", "TooMany", "Verdict"]

#: Orders that may be under way at once.
_MOST = 200

#: Words that are taken when so many are under way, and as many more: what hangs does not keep the program alive.
_ENDING = ("stop", "terminate")

#: What the words that steer a program come to, where it wants to carry them out by itself.
_HOMES = {
    "suspend": "lifecycle/suspend",
    "resume": "lifecycle/resume",
    "reload": "lifecycle/reload",
    "stop": "lifecycle/shutdown",
    "terminate": "lifecycle/terminate",
}


class TooMany(LifecycleError):
    """As many orders, or readers, are there as may be."""


class Verdict(StrEnum):
    """How an order ended."""

    HANDLED = "handled"
    FAILED = "failed"
    #: It was given up, or refused.
    DROPPED = "dropped"
    #: No router knows the command.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an order."""

    outcome: Verdict
    #: The id of the event's delivery; None where it went to no router.
    delivery: int | None = None
    error: str | None = None
    #: What the command had to say, for instance `status`.
    answer: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As `json.dumps` takes it."""
        return asdict(self)


class Orders:
    """Gives orders to the routers under ``lifetime`` and waits for what becomes of them."""

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime
        self._tasks: set[asyncio.Task[Outcome]] = set()
        # By the ids of the deliveries that are awaited.
        self._answers: dict[int, Answer] = {}
        # Never run: what it is given is dispatched, for a program without a router.
        self._desk = Router("program")
        LentCommands.of(self._desk, lifetime)

    # -- who has what ----------------------------------------------------------------------------------------------

    def routers(self) -> tuple[Router, ...]:
        """Those that run now, or the one that stands in for them."""
        return routers_of(self._lifetime) or (self._desk,)

    def router_for(self, word: str) -> Router | None:
        """Which of them has the command: the one that registered it, then one that the program lets carry it out."""
        known = [each for each in self.routers() if word in each.commands]
        return min(known, key=lambda router: _distance(router, word), default=None)

    def command_of(self, word: str) -> Command | None:
        """The command of that name or alias."""
        router = self.router_for(word)
        return None if router is None else router.commands.get(word)

    # -- orders ----------------------------------------------------------------------------------------------------

    async def command(self, line: str) -> Outcome:
        """Carry out what was typed; who is cancelled here cancels nothing.

        Raises:
            ValueError: for a blank line.
            TooMany: when too many orders are under way.
        """
        words = split(line)
        if not words:
            raise ValueError("the line is blank; give a command, such as 'status'")
        router = self.router_for(words[0])
        if router is None:
            return Outcome(Verdict.UNKNOWN, error=self._unknown(words[0]))
        try:
            event = router.commands.parse(line)
        except Exception as error:  # noqa: BLE001  # of a function of the program's
            return Outcome(Verdict.FAILED, error=masked(reason_of(error)))
        assert event is not None, "it has a first word"
        if isinstance(event, UnknownCommandEvent):
            told = f"{words[0][:_SHOWN]!r} takes no arguments; give it alone"
            return Outcome(Verdict.UNKNOWN, error=told)
        if not router.commands.owns(words[0]) and not isinstance(event, CommandEvent):
            router = self._taker(event.topic)
        return await self._give(self._carry_out(router, event), 2 * _MOST if words[0] in _ENDING else _MOST)

    async def emit(self, topic: str, data: object) -> Outcome:
        """Send an event to the router that has a route for it, or else the first, and wait for its end.

        Raises:
            TooMany: when too many orders are under way.
        """
        return await self._give(self._carry_out(self._taker(topic), Event(topic, data)))

    async def aclose(self) -> None:
        """Wait for nothing any more; what routers have goes on."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _taker(self, topic: str) -> Router:
        """Who has a route for the topic; somebody who takes everything comes after that, and then the first."""
        return min(self.routers(), key=lambda router: _reluctance(router, topic))

    async def _give(self, work: Coroutine[Any, Any, Outcome], most: int = _MOST) -> Outcome:
        if len(self._tasks) >= most:
            work.close()
            raise TooMany(f"{most} orders are under way; wait for one of them to end")
        task = asyncio.create_task(work, name="an order from outside")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _carry_out(self, router: Router, event: Topical) -> Outcome:
        # Nothing that is handled anywhere caused it.
        current.set(None)
        answer = Answer(None)
        try:
            if router is self._desk:
                asker.set(answer)
                await router.dispatch(event)
            else:
                answer.delivery = await router.emit(event)
                with self._awaiting(answer.delivery, answer):
                    await answer.delivery
        except Exception as error:  # noqa: BLE001  # whatever a handler raises is the outcome
            return _ended_badly(error, answer)
        return Outcome(Verdict.HANDLED, _id(answer), answer=answer.text)

    @contextmanager
    def _awaiting(self, delivery: Delivery, answer: Answer) -> Generator[None]:
        """While somebody waits, handlers are told whom to answer."""
        if not self._answers:
            hooks.handler_started.connect(self._started)
        self._answers[delivery.id] = answer
        try:
            yield
        finally:
            del self._answers[delivery.id]
            if not self._answers:
                hooks.handler_started.disconnect(self._started)

    def _started(self, _router: object, *, delivery: Delivery, **_: object) -> None:
        answer = self._answers.get(delivery.id)
        if answer is not None:
            asker.set(answer)

    def _unknown(self, word: str) -> str:
        words = {each for router in self.routers() for each in router.commands.words()}
        names = {each.name for router in self.routers() for each in router.commands}
        near = difflib.get_close_matches(word[:_SHOWN], sorted(words), 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there is {', '.join(sorted(names))}"
        return f"unknown command {word[:_SHOWN]!r}{hint}"


_SHOWN = 60


def _distance(router: Router, word: str) -> int:
    if router.commands.owns(word):
        return 0
    home = _HOMES.get(word)
    return 1 if home is not None and is_made_for(router, home) else 2


def _reluctance(router: Router, topic: str) -> int:
    with suppress(InvalidTopic):
        patterns = [route.pattern for route in router.explain(topic)]
        return 2 if not patterns else 1 if patterns[0] == "**" else 0
    return 2


def _ended_badly(error: Exception, answer: Answer) -> Outcome:
    verdict = Verdict.DROPPED if isinstance(error, Dropped) else Verdict.FAILED
    text = reason_of(error)
    return Outcome(verdict, _id(answer), masked(text), None if answer.text == text else answer.text)


def _id(answer: Answer) -> int | None:
    return None if answer.delivery is None else answer.delivery.id
