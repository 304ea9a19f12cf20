"""What a supervisor is told of a child: inert data, checked before anything starts."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from lifecycle._async import is_async
from lifecycle._util import name_of
from lifecycle.backoff import Backoff
from lifecycle.workers.base import check_number
from lifecycle.workers.process import ProcessWorker
from lifecycle.workers.tasks import Gate, TaskWorker, required_arguments

if TYPE_CHECKING:
    from lifecycle.workers.base import Worker

_E = TypeVar("_E", bound=StrEnum)

__all__ = ["AutoShutdown", "OnLimit", "Restart", "Spec", "StopOrder", "Strategy", "chosen"]


class Restart(StrEnum):
    """When a child that ended is started again."""

    #: However it ended (OTP's permanent).
    ALWAYS = "always"
    #: When it ended FAILED or KILLED (OTP's transient).
    ON_FAILURE = "on_failure"
    #: Never (OTP's temporary).
    NEVER = "never"


class Strategy(StrEnum):
    """Who is started again with a child that is."""

    #: Nobody else.
    ONE_FOR_ONE = "one_for_one"
    #: All its siblings: they are stopped, then all are started in order.
    ONE_FOR_ALL = "one_for_all"
    #: The siblings that come after it.
    REST_FOR_ONE = "rest_for_one"


class AutoShutdown(StrEnum):
    """Whether a supervisor ends by itself when significant children have ended and are not started again."""

    #: It stays.
    NEVER = "never"
    #: It ends with the first of them.
    ANY_SIGNIFICANT = "any_significant"
    #: It ends with the last of them.
    ALL_SIGNIFICANT = "all_significant"


class OnLimit(StrEnum):
    """What a supervisor does when its budget of restarts is spent."""

    #: It stops its children and ends FAILED, so that its parent may start all of it again.
    ESCALATE = "escalate"
    #: It waits with the restart until the budget allows it.
    PAUSE = "pause"


class StopOrder(StrEnum):
    """How a supervisor stops its children."""

    #: The last started first, one after the other.
    REVERSE = "reverse"
    #: All at once.
    PARALLEL = "parallel"


Child: TypeAlias = (
    Callable[[], Coroutine[Any, Any, object]]
    | Callable[[Gate], Coroutine[Any, Any, object]]
    | Sequence[str | os.PathLike[str]]
    | Callable[[], "Worker | Awaitable[Worker]"]
)


@dataclass(frozen=True, slots=True)
class Spec:
    """A child of a supervisor.

    Args:
        name: what it is called; no sibling has the same.
        child: an async function, of no argument or of a `Gate`, which becomes a `TaskWorker`; a list of arguments,
            which becomes a `ProcessWorker`; or a function that returns a worker, a new one for each start. Such a
            function is called in the loop, so it must be quick, or return an awaitable.
        restart: when it is started again.
        backoff: how long to wait before that, and when to give up.
        stop_timeout: seconds that it has to end when it is stopped; by default what its worker has.
        significant: whether its end may be the end of the supervisor; see ``auto_shutdown`` there.
        ready: for a list of arguments, when the process counts as started; see `ProcessWorker`.
        probe_interval: seconds between two questions after its health (a tenth more or less, at random); by default
            it is not asked. A worker is asked by ``await probe()``; one of yours may know more than that it runs.
        probe_timeout: seconds that it has to answer; no answer is a bad one.
        failures: how many bad answers in a row make it unhealthy.
        restart_unhealthy: whether it is stopped and started again then; otherwise it is only shown.

    Raises:
        ValueError, TypeError: for settings that cannot work; the message names them.
    """

    name: str
    child: Child
    _: KW_ONLY
    restart: Restart | Literal["always", "on_failure", "never"] = Restart.ALWAYS
    backoff: Backoff = field(default_factory=Backoff)
    stop_timeout: float | None = None
    significant: bool = False
    ready: str | None = None
    probe_interval: float | None = None
    probe_timeout: float = 5.0
    failures: int = 3
    restart_unhealthy: bool = False

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ValueError(f"{self.name!r} is no name of a child; give one that people recognise")
        object.__setattr__(self, "restart", chosen(Restart, self.restart, "restart"))
        self._check_figures()
        self._check_sense()
        self._check_child()

    @property
    def is_command(self) -> bool:
        """Whether the child is a list of arguments."""
        return not callable(self.child)

    @property
    def kind(self) -> str:
        """What its worker will be, as far as that is known before it is made."""
        if self.is_command:
            return ProcessWorker.kind
        return TaskWorker.kind if is_async(self.child) else "worker"

    def make(self) -> object:
        """A new worker for it, or what its function returns in place of one."""
        if not callable(self.child):
            return ProcessWorker(self.name, *self.child, ready=self.ready, **self._grace())
        if is_async(self.child):
            return TaskWorker(self.name, cast("Any", self.child), **self._grace())
        return cast("Callable[[], object]", self.child)()

    def _grace(self) -> dict[str, Any]:
        return {} if self.stop_timeout is None else {"stop_timeout": self.stop_timeout}

    def _check_figures(self) -> None:
        if not isinstance(self.backoff, Backoff):
            raise TypeError(f"backoff={self.backoff!r} of {self.name!r} is no Backoff; give Backoff(initial=…)")
        for name, least in (("stop_timeout", 0.0), ("probe_interval", _ABOVE_0), ("probe_timeout", _ABOVE_0)):
            value = getattr(self, name)
            if value is None:
                continue
            check_number(name, value, of=self.name)
            if not value >= least:
                raise ValueError(f"{name}={value!r} of {self.name!r} is no number of seconds that can work")
        if self.failures < 1:
            raise ValueError(
                f"failures={self.failures!r} of {self.name!r} would restart it in good health; give 1 or more"
            )

    def _check_sense(self) -> None:
        if self.significant and self.restart == Restart.ALWAYS:
            raise ValueError(
                f"{self.name!r} is significant and always restarted, so its end can never be the end of its "
                "supervisor; give restart='on_failure' or 'never'"
            )
        if self.restart_unhealthy and self.probe_interval is None:
            raise ValueError(f"restart_unhealthy of {self.name!r} needs probe_interval: nobody asks after its health")
        if self.restart_unhealthy and self.restart == Restart.NEVER:
            raise ValueError(f"{self.name!r} is never restarted and restart_unhealthy; give restart='on_failure'")

    def _check_child(self) -> None:
        child: object = self.child
        if inspect.iscoroutine(child):
            child.close()
            raise TypeError(
                f"the child of {self.name!r} is a call already made; give the function, without parentheses"
            )
        if isinstance(child, str) or not (callable(child) or isinstance(child, Sequence)):
            raise TypeError(f"{child!r} is no child for {self.name!r}: give {_ACCEPTED}")
        if self.is_command or is_async(child):
            self.make()
        elif callable(child) and required_arguments(child) != 0:
            raise TypeError(f"{name_of(child)} cannot make {self.name!r}: it has to be called without arguments")
        if self.ready is not None and not self.is_command:
            raise ValueError(f"ready={self.ready!r} of {self.name!r} is for a list of arguments; give it to the worker")


_ABOVE_0 = 1e-9
_ACCEPTED = (
    "an async function, a list of arguments (a string is none), or a function that returns a new worker "
    "(a worker itself lives only once)"
)


def chosen(kind: type[_E], value: str, name: str) -> _E:
    """The member of the enum ``kind`` that ``value`` names.

    Raises:
        ValueError: naming the members.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(str(member)) for member in kind)
        raise ValueError(f"{name}={value!r} is unknown; give one of {known}") from None
