"""The settings of supervisors and their children, and the rules that follow from them.

Everything in this module is pure. Settings are checked before anything starts, `verdict` and `affected` are truth
tables, and `Budget` takes the time as an argument.
"""

from __future__ import annotations

import inspect
import math
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Any, Final, Literal, Never, Protocol, TypeAlias, TypeVar, cast, overload

from lifecycle._async import is_async
from lifecycle._util import name_of
from lifecycle.backoff import Backoff, Intensity
from lifecycle.errors import DoNotRestart, RestartLimitReached, StopTree, WorkerFailed
from lifecycle.workers.base import check_number
from lifecycle.workers.model import Status
from lifecycle.workers.probes import parse_probe
from lifecycle.workers.process import ProcessWorker
from lifecycle.workers.tasks import Gate, TaskWorker, required_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

    from lifecycle.workers.base import Worker
    from lifecycle.workers.model import Exit
    from lifecycle.workers.stdio import Output

__all__ = [
    "CONTROL_EXCEPTIONS",
    "AutoShutdown",
    "Budget",
    "FirstStart",
    "OnLimit",
    "Restart",
    "Spec",
    "StopOrder",
    "Strategy",
    "Verdict",
    "affected",
    "cause_of",
    "chosen",
    "ends_with",
    "verdict",
]

_E = TypeVar("_E", bound=StrEnum)
_T = TypeVar("_T")


class _Choice(StrEnum):
    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Read ``"on-failure"`` as ``"on_failure"``."""
        return cls(value.replace("-", "_")) if isinstance(value, str) and "-" in value else None


class Restart(_Choice):
    """When a supervisor restarts a child that has ended."""

    #: After any end (OTP: permanent).
    ALWAYS = "always"
    #: After it ended FAILED or KILLED (OTP: transient).
    ON_FAILURE = "on_failure"
    #: Never (OTP: temporary).
    NEVER = "never"


class FirstStart(_Choice):
    """The reaction to a child that cannot start when its supervisor starts."""

    #: The start of the supervisor fails.
    FAIL = "fail"
    #: The child is started again after its backoff. The supervisor starts without it.
    RETRY = "retry"


class Strategy(_Choice):
    """Which children are restarted together with a child."""

    #: Only the child itself.
    ONE_FOR_ONE = "one_for_one"
    #: All children: they are stopped, then started in order.
    ONE_FOR_ALL = "one_for_all"
    #: The child and those after it.
    REST_FOR_ONE = "rest_for_one"


class AutoShutdown(_Choice):
    """Whether a supervisor ends after its significant children have ended and are not restarted."""

    #: The supervisor keeps running.
    NEVER = "never"
    #: The supervisor ends after the first of them.
    ANY_SIGNIFICANT = "any_significant"
    #: The supervisor ends after the last of them.
    ALL_SIGNIFICANT = "all_significant"


class OnLimit(_Choice):
    """A supervisor's reaction when its restart budget is used up."""

    #: Stop the children and end FAILED, so that the parent may restart the whole supervisor.
    ESCALATE = "escalate"
    #: Delay the restart until the budget allows it.
    PAUSE = "pause"


class StopOrder(_Choice):
    """The order in which a supervisor stops its children."""

    #: One child after the other, in reverse start order.
    REVERSE = "reverse"
    #: All at the same time.
    PARALLEL = "parallel"


class _Gated(Protocol):
    # The overload keeps pyright from taking `lambda name=name: make(name)` for a function of a gate.
    @overload
    def __call__(self, gate: Never, /) -> Coroutine[Any, Any, object]: ...
    @overload
    def __call__(self, gate: Gate, /) -> Coroutine[Any, Any, object]: ...


_Target: TypeAlias = (
    Callable[[], Coroutine[Any, Any, object]]
    | _Gated
    | Sequence[str | os.PathLike[str]]
    | Callable[[], "Worker | Awaitable[Worker]"]
)


@dataclass(frozen=True, slots=True)
class Spec:
    """Description of a child of a `Supervisor`.

    Args:
        name: Name of the child, unique among its siblings.
        child: An async function without arguments or with a `Gate` (for a `TaskWorker`), a list of arguments (for a
            `ProcessWorker`), or a function that returns a new worker for each start. This function is called in the
            loop, so it must return quickly, or return an awaitable.
        restart: When to restart the child: ``"always"``, ``"on_failure"`` or ``"never"``.
        backoff: Delays before restarts, and the limit above which the child is not restarted.
        first_start: Reaction if the child cannot start when its supervisor starts. ``"fail"`` fails the start of the
            supervisor. ``"retry"`` starts the supervisor without the child, and starts the child again after each
            ``backoff`` until it has run once. These starts do not count for the ``intensity`` of the supervisor.
        stop_timeout: Seconds that the child has to end after a stop. By default, the value of its worker.
        significant: Whether the end of the child can end the supervisor; see ``auto_shutdown`` of `Supervisor`.
        env, cwd, user, output, ready, start_timeout: Settings of the process, only for a list of arguments; see
            `ProcessWorker`.
        probe: Health check in addition to the worker's own ``probe()``. ``"port:N"``: it accepts connections on this
            local port. ``"http://…"`` or ``"https://…"``: this URL is answered with a status below 400.
            ``"cmd:COMMAND"``: this command, which no shell reads, exits with status 0. It has the environment, the
            directory and the user of the process, and its output is discarded.
        probe_interval: Seconds between two probes, varied at random by a tenth. By default 10 with a ``probe``;
            otherwise the child is not probed.
        probe_timeout: Maximum seconds per probe. A probe without an answer fails.
        failures: Consecutive failed probes after which the child is unhealthy.
        restart_unhealthy: Restart an unhealthy child. Otherwise, its health is only shown.

    Raises:
        ValueError, TypeError: if a setting cannot work. The message names it.
    """

    name: str
    child: _Target
    _: KW_ONLY
    restart: Restart | Literal["always", "on_failure", "on-failure", "never"] = Restart.ALWAYS
    backoff: Backoff = field(default_factory=Backoff)
    first_start: FirstStart | Literal["fail", "retry"] = FirstStart.FAIL
    stop_timeout: float | None = None
    significant: bool = False
    env: Mapping[str, str] | None = field(default=None, repr=False)
    cwd: str | os.PathLike[str] | None = None
    user: str | int | None = None
    output: Output | None = None
    ready: str | None = None
    start_timeout: float | None = None
    probe: str | None = None
    probe_interval: float | None = None
    probe_timeout: float = 5.0
    failures: int = 3
    restart_unhealthy: bool = False

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ValueError(f"a child's name must be a non-empty string, got {self.name!r}")
        object.__setattr__(self, "restart", chosen(Restart, self.restart, "restart"))
        object.__setattr__(self, "first_start", chosen(FirstStart, self.first_start, "first_start"))
        if self.probe is not None and self.probe_interval is None:
            object.__setattr__(self, "probe_interval", _PROBE_INTERVAL)
        self._check_figures()
        self._check_sense()
        self._check_child()

    @property
    def is_command(self) -> bool:
        """True if the child is a list of arguments."""
        return not callable(self.child)

    @property
    def kind(self) -> str:
        """Kind of the worker, as far as it is known before the worker is created."""
        if self.is_command:
            return ProcessWorker.kind
        return TaskWorker.kind if is_async(self.child) else "worker"

    def make(self) -> object:
        """Create a worker for the child. If its function returns something else, return that."""
        if not callable(self.child):
            return ProcessWorker(self.name, *self.child, **self._of_process(), **self._grace())
        if is_async(self.child):
            return TaskWorker(self.name, cast("Any", self.child), **self._grace())
        return cast("Callable[[], object]", self.child)()

    def _of_process(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in _OF_PROCESSES}
        return {name: value for name, value in given.items() if value is not None}

    def _grace(self) -> dict[str, Any]:
        return {} if self.stop_timeout is None else {"stop_timeout": self.stop_timeout}

    def _check_figures(self) -> None:
        if not isinstance(self.backoff, Backoff):
            raise TypeError(f"backoff={self.backoff!r} of {self.name!r} is not a Backoff; give Backoff(initial=…)")
        for name, least in (("stop_timeout", 0.0), ("probe_interval", _ABOVE_0), ("probe_timeout", _ABOVE_0)):
            value = getattr(self, name)
            if value is None:
                continue
            check_number(name, value, of=self.name)
            if not value >= least:
                allowed = "0 or more" if least == 0 else "above 0"
                raise ValueError(f"{name}={value!r} of {self.name!r} must be {allowed} seconds")
        if self.failures < 1:
            raise ValueError(f"failures={self.failures!r} of {self.name!r} must be 1 or more")

    def _check_sense(self) -> None:
        if self.significant and self.restart == Restart.ALWAYS:
            raise ValueError(
                f"{self.name!r} is significant but always restarted, so the supervisor can never end with it; "
                "give restart='on_failure' or 'never'"
            )
        if self.restart_unhealthy and self.probe_interval is None:
            raise ValueError(f"restart_unhealthy of {self.name!r} needs probe_interval: its health is not probed")
        if self.restart_unhealthy and self.restart == Restart.NEVER:
            raise ValueError(f"restart_unhealthy of {self.name!r} contradicts restart='never'; give 'on_failure'")

    def _check_child(self) -> None:
        child: object = self.child
        if inspect.iscoroutine(child):
            child.close()
            raise TypeError(f"the child {self.name!r} is a coroutine; give the function, without parentheses")
        if isinstance(child, str) or not (callable(child) or isinstance(child, Sequence)):
            raise TypeError(f"the child {self.name!r} must be {_ACCEPTED}, got {child!r}")
        if self.is_command or is_async(child):
            # Create a worker and discard it, because its constructor checks the rest.
            self.make()
        elif callable(child) and required_arguments(child) != 0:
            raise TypeError(f"{name_of(child)} cannot create {self.name!r}: it must have no required arguments")
        if self.probe is not None:
            parse_probe(self.probe, self.name)
        if not self.is_command and (given := next(iter(self._of_process()), None)):
            raise ValueError(f"{given} of {self.name!r} needs a list of arguments as the child; give it to the worker")


_ABOVE_0 = 1e-9
#: Seconds between two probes of a child with a ``probe``.
_PROBE_INTERVAL = 10.0
#: The settings of a process that are passed to its worker.
_OF_PROCESSES = ("env", "cwd", "user", "output", "ready", "start_timeout")
_ACCEPTED = (
    "an async function, a list of arguments (not a string), or a function that returns a new worker "
    "(not a worker, which runs only once)"
)


def chosen(kind: type[_E], value: str, name: str) -> _E:
    """Return the member of the enum ``kind`` with the value ``value``. ``name`` is the setting for the message.

    Raises:
        ValueError: if there is no such member. The message lists all members.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(str(member)) for member in kind)
        raise ValueError(f"{name}={value!r} is unknown; give one of {known}") from None


# -- the consequences of an end ----------------------------------------------------------------------------------------

#: The exceptions with which a child controls its supervisor.
CONTROL_EXCEPTIONS: Final = (DoNotRestart, StopTree, SystemExit, KeyboardInterrupt)


class Verdict(Enum):
    """The consequence of the end of a child."""

    #: Restart the child, and the siblings that the strategy of its supervisor includes.
    RESTART = auto()
    #: Leave the child ended.
    LEAVE = auto()
    #: End the supervisor and all of its parents up to the root.
    ESCALATE = auto()


def verdict(restart: Restart | str, ended: Exit) -> Verdict:
    """Return the consequence of the exit ``ended`` of a child."""
    error = cause_of(ended.error)
    match restart, error, ended.status:
        case _, StopTree() | SystemExit() | KeyboardInterrupt(), _:
            return Verdict.ESCALATE
        case _, DoNotRestart(), _:
            return Verdict.LEAVE
        case Restart.ALWAYS, _, _:
            return Verdict.RESTART
        case Restart.ON_FAILURE, _, Status.FAILED | Status.KILLED:
            return Verdict.RESTART
        case _:
            return Verdict.LEAVE


def cause_of(error: BaseException | None) -> BaseException | None:
    """Return the control exception that a child raised, even if its worker wrapped it. Otherwise, return ``error``."""
    inner = None if error is None else error.__cause__
    wrapped = isinstance(inner, CONTROL_EXCEPTIONS) and not isinstance(error, CONTROL_EXCEPTIONS)
    return inner if wrapped else error


def affected(strategy: Strategy, children: Sequence[_T], trigger: _T) -> Sequence[_T]:
    """Return the children to stop in reverse order and restart in order when ``trigger`` is restarted."""
    match strategy:
        case Strategy.ONE_FOR_ONE:
            return [trigger]
        case Strategy.ONE_FOR_ALL:
            return children
        case Strategy.REST_FOR_ONE:
            return children[children.index(trigger) :]


def ends_with(auto_shutdown: AutoShutdown, *, significant: bool, others: Iterable[Any]) -> bool:
    """Return whether a supervisor ends with a child that is not restarted.

    ``others`` are the significant children that are still running.
    """
    match auto_shutdown:
        case AutoShutdown.NEVER:
            return False
        case AutoShutdown.ANY_SIGNIFICANT:
            return significant
        case AutoShutdown.ALL_SIGNIFICANT:
            return significant and not any(True for _ in others)


# -- the budget of restarts --------------------------------------------------------------------------------------------

#: Maximum errors kept for the exception group that a supervisor raises when it gives up.
_MAX_ERRORS: Final = 100


class Budget:
    """The remaining restarts of the supervisor or pool ``name``, and the errors behind the previous ones.

    Without an ``intensity``, restarts are unlimited. When the budget is used up, `spend` raises. With ``pauses``,
    `spend` instead returns the time from which the restart is allowed.
    """

    def __init__(self, name: str, intensity: Intensity | None, *, pauses: bool = False) -> None:
        self._name = name
        self._intensity = intensity
        self._pauses = pauses
        # Newest first. With ``pauses``, some are in the future.
        self._restarts: deque[float] = deque()
        kept = 0 if intensity is None else min(intensity.limit + 1, _MAX_ERRORS)
        self._errors: deque[Exception] = deque(maxlen=kept)

    def spend(self, now: float, child: str, error: BaseException) -> float:
        """Count one restart of ``child`` because of ``error``. Return the time from which it is allowed.

        Raises:
            RestartLimitReached: if the budget is used up and does not pause.
        """
        if self._intensity is None:
            return now
        self._errors.append(_as_exception(child, error))
        if self._pauses:
            at = _allowed_at(self._intensity, self._restarts, now)
            self._restarts = self._intensity.add(self._restarts, at)
            return at
        self._restarts = self._intensity.add(self._restarts, now)
        if self._intensity.exceeded(self._restarts):
            raise self._used_up(self._intensity, child)
        return now

    def _used_up(self, intensity: Intensity, child: str) -> RestartLimitReached:
        restarts = f"{intensity.limit} restart{'s'[: intensity.limit != 1]}"
        limit = RestartLimitReached(
            f"{self._name!r} gives up: more than {restarts} within {intensity.within:g} s, "
            f"the last of {child!r}: {self._errors[-1]}"
        )
        limit.__cause__ = ExceptionGroup(f"the last errors of the children of {self._name!r}", list(self._errors))
        return limit


def _as_exception(child: str, error: BaseException) -> Exception:
    """Return ``error`` in a form that fits into an exception group. An unrequested cancellation is wrapped."""
    if isinstance(error, Exception):
        return error
    wrapped = WorkerFailed(f"{child!r} was cancelled, but not by its supervisor")
    wrapped.__cause__ = error
    return wrapped


def _allowed_at(intensity: Intensity, restarts: Sequence[float], now: float) -> float:
    """Return when the budget allows one more restart. ``restarts`` are newest first, and may be in the future."""
    if len(restarts) < intensity.limit:
        return now
    # A restart still counts if it is exactly as old as the window is long.
    return max(now, math.nextafter(restarts[intensity.limit - 1] + intensity.within, math.inf))
