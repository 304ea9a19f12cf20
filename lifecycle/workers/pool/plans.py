"""What a pool was told, checked when it is made, and how a member is made of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from lifecycle.backoff import Intensity
from lifecycle.workers.pool.codecs import codec
from lifecycle.workers.pool.links import Link, setup_frame
from lifecycle.workers.pool.members import Member
from lifecycle.workers.pool.orders import Order
from lifecycle.workers.pool.rosters import check_size
from lifecycle.workers.pool.settings import Heartbeat, Process, Recycle, Sessions
from lifecycle.workers.pool.targets import function_name, read_target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lifecycle.workers.pool.codecs import Codec
    from lifecycle.workers.pool.recoveries import Recovery
    from lifecycle.workers.pool.targets import Target

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a pool.

    Raises:
        TypeError, ValueError: for settings that cannot work; the message names them.
    """

    name: str
    target: Target
    size: tuple[int, int]
    init: tuple[Any, ...]
    queue: int
    deadline: float
    concurrency: int
    codec: Codec
    recycle: Recycle
    sessions: Sessions
    heartbeat: Heartbeat
    process: Process
    intensity: Intensity

    def __post_init__(self) -> None:
        check_size(self.name, *self.size)
        _check_deadline(self.name, self.deadline)
        for what, least in (("queue", 0), ("concurrency", 1)):
            given = getattr(self, what)
            if isinstance(given, bool) or not isinstance(given, int):
                raise TypeError(f"{what}={given!r} of {self.name!r} is no whole number; give {least} or more")
            if given < least:
                raise ValueError(f"{what}={given!r} of {self.name!r} is too little; give {least} or more")
        for what, kind in _RECORDS.items():
            if not isinstance(given := getattr(self, what), kind):
                raise TypeError(f"{what}={given!r} of {self.name!r} is no {kind.__name__}; give one")
        # What cannot be sent is refused here and now, not by each member.
        try:
            setup_frame(self.codec, self._setup)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"init={self.init!r:.200} of {self.name!r} cannot be sent: {error}") from error

    @classmethod
    def read(cls, name: str, target: Any, *, codec_name: str | None, size: Any, init: Any, **settings: Any) -> Plan:
        """The plan of what users wrote."""
        if isinstance(init, str) or not isinstance(init, Iterable):
            raise TypeError(f"init={init!r} of {name!r} are no arguments; give a tuple of them")
        low, high = _pair(name, size)
        arguments: list[Any] = [*init]
        read = read_target(name, target)
        # A program in another language has no pickles.
        default = "msgpack" if read.name is None else "pickle"
        return cls(
            name,
            read,
            size=(low, high),
            init=tuple(arguments),
            codec=codec(default if codec_name is None else codec_name),
            **settings,
        )

    def with_env(self, env: Mapping[str, str]) -> Plan:
        """The same with ``env`` in the environment of members, over what they would have there."""
        return replace(self, process=replace(self.process, env={**(self.process.env or {}), **env})) if env else self

    def order(
        self,
        function: str | Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        session: str | None = None,
        deadline: float | None = None,
        patient: bool = False,
    ) -> Order:
        """A call as users wrote it.

        Raises:
            TypeError, ValueError: for what no member could be asked.
        """
        if deadline is None:
            deadline = self.deadline
        else:
            _check_deadline(self.name, deadline)
        if session is not None and not isinstance(session, str):
            raise TypeError(f"session={session!r} is no text; give the session's name")
        name = function_name(function)
        return Order(name, args, kwargs, session=session, deadline=deadline, patient=patient)

    def member(self, name: str, recovery: Recovery, *, pool: Any, generation: int) -> Member:
        """A member of ``pool``, not started yet; ``recovery`` hears of what befalls it."""

        def broke(error: Exception) -> None:
            recovery.broke(member, error)

        def hung_up() -> None:
            recovery.hung_up(member)

        link = Link(name, self.codec, self._setup, broken=broke, ended=hung_up)
        member = Member(name, self, link, pool=pool, generation=generation)
        return member

    @property
    def _setup(self) -> dict[str, Any]:
        return self.target.setup(self.init, concurrency=self.concurrency)


_RECORDS = {
    "recycle": Recycle,
    "sessions": Sessions,
    "heartbeat": Heartbeat,
    "process": Process,
    "intensity": Intensity,
}


def _pair(name: str, size: Any) -> Sequence[Any]:
    pair = cast("Sequence[Any]", size)
    if not isinstance(size, tuple | list) or len(pair) != 2:  # noqa: PLR2004  # a pair
        raise TypeError(f"size={size!r} of {name!r} is no pair; give the least and the most members, as (1, 4)")
    return pair


def _check_deadline(name: str, deadline: float) -> None:
    """Raise for what is no deadline of a call of the pool ``name``."""
    if isinstance(deadline, bool) or not isinstance(deadline, int | float):
        raise TypeError(f"deadline={deadline!r} of {name!r} is no number of seconds; give more than 0, or math.inf")
    if not deadline > 0:
        raise ValueError(f"deadline={deadline!r} of {name!r} leaves no time; give more than 0 seconds, or math.inf")
