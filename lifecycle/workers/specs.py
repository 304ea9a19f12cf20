"""The settings of supervisors and their children, and the rules that follow from them.

This module only computes. Settings are checked before anything starts, `verdict` and `affected` are truth tables, and
`Budget` takes the time as an argument.
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
from lifecycle._durations import duration, store_seconds
from lifecycle._util import name_of
from lifecycle.backoff import Backoff, Intensity
from lifecycle.errors import DoNotRestart, RestartLimitReached, StopTree, WorkerFailed
from lifecycle.workers.model import Status
from lifecycle.workers.probes import parse_probe
from lifecycle.workers.process import ProcessWorker
from lifecycle.workers.tasks import Gate, TaskWorker, required_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

    from lifecycle._durations import DurationField, OptionalDurationField
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
        """Accept ``"on-failure"`` as ``"on_failure"``."""
        return cls(value.replace("-", "_")) if isinstance(value, str) and "-" in value else None


class Restart(_Choice):
    """When a supervisor restarts a child that has ended."""

    #: After any end (OTP: permanent).
    ALWAYS = "always"
    #: After it ended as FAILED or KILLED (OTP: transient).
    ON_FAILURE = "on_failure"
    #: Never (OTP: temporary).
    NEVER = "never"


class FirstStart(_Choice):
    """A supervisor's reaction to a child that cannot start while the supervisor itself is starting."""

    #: The supervisor fails to start.
    FAIL = "fail"
    #: The supervisor starts without the child, and starts the child again after its backoff.
    RETRY = "retry"


class Strategy(_Choice):
    """Which children are restarted when one child has to be restarted."""

    #: Only the child itself.
    ONE_FOR_ONE = "one_for_one"
    #: All children. They are stopped first, then started in order.
    ONE_FOR_ALL = "one_for_all"
    #: The child and those that were started after it.
    REST_FOR_ONE = "rest_for_one"


class AutoShutdown(_Choice):
    """Whether a supervisor ends when its significant children have ended and will not be restarted."""

    #: The supervisor keeps running.
    NEVER = "never"
    #: The supervisor ends when the first of them has ended.
    ANY_SIGNIFICANT = "any_significant"
    #: The supervisor ends when the last of them has ended.
    ALL_SIGNIFICANT = "all_significant"


class OnLimit(_Choice):
    """A supervisor's reaction when its restart budget is used up."""

    #: Stop the children and end as FAILED, so that the parent may restart the whole supervisor.
    ESCALATE = "escalate"
    #: Delay the restart until the budget allows it.
    PAUSE = "pause"


class StopOrder(_Choice):
    """The order in which a supervisor stops its children."""

    #: One child after the other, in reverse order of their starts.
    REVERSE = "reverse"
    #: All children at the same time.
    PARALLEL = "parallel"


class _Gated(Protocol):
    # Without the overloads, pyright takes `lambda name=name: make(name)` for a function with a gate argument.
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
    """The description of a `Supervisor`'s child.

    Args:
        name: The child's name, unique among its siblings.
        child: An async function that takes no arguments or a `Gate` (run by a `TaskWorker`), a list of arguments (run
            by a `ProcessWorker`), or a function that returns a new worker for each start. The last is called in the
            event loop, so it must return quickly or return an awaitable.
        restart: When to restart the child: ``"always"``, ``"on_failure"`` or ``"never"``.
        backoff: The delays before restarts, and the restart limit above which the child is no longer restarted.
        first_start: The reaction if the child cannot start while the supervisor itself is starting. With ``"fail"``,
            the supervisor fails to start. With ``"retry"``, the supervisor starts without the child and retries after
            each delay of ``backoff`` until the child has run once. These retries do not count towards the supervisor's
            ``intensity``.
        stop_timeout: Seconds that the child has to end after a stop. By default, its worker's own timeout.
        significant: Whether the end of the child can end the supervisor; see ``auto_shutdown`` of `Supervisor`.
        env, cwd, user, output, ready, start_timeout: Settings of the process. They require a list of arguments as the
            child; see `ProcessWorker`.
        probe: A health check in addition to the worker's own ``probe()``. ``"port:N"``: the child accepts connections
            on this local port. ``"http://…"`` or ``"https://…"``: a request to this URL returns a status below 400.
            ``"cmd:COMMAND"``: this command exits with status 0. The command is not interpreted by a shell. It runs with
            the environment, the directory and the user of the process, and its output is discarded.
        probe_interval: Seconds between two probes, with a random variation of 10 %. The default is 10 if ``probe`` is
            set. Otherwise, the child is not probed.
        probe_timeout: The maximum duration of a probe, in seconds. A probe that takes longer fails.
        failures: The number of consecutive failed probes after which the child is unhealthy.
        restart_unhealthy: Whether to restart an unhealthy child. If not, its health is only reported.

    Raises:
        ValueError, TypeError: if a setting is invalid. The message names the setting.
    """

    name: str
    child: _Target
    _: KW_ONLY
    restart: Restart | Literal["always", "on_failure", "on-failure", "never"] = Restart.ALWAYS
    backoff: Backoff = field(default_factory=Backoff)
    first_start: FirstStart | Literal["fail", "retry"] = FirstStart.FAIL
    stop_timeout: OptionalDurationField = duration(None)
    significant: bool = False
    env: Mapping[str, str] | None = field(default=None, repr=False)
    cwd: str | os.PathLike[str] | None = None
    user: str | int | None = None
    output: Output | None = None
    ready: str | None = None
    start_timeout: OptionalDurationField = duration(None)
    probe: str | None = None
    probe_interval: OptionalDurationField = duration(None)
    probe_timeout: DurationField = duration(5.0)
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
        """The kind of worker, as far as it is known before the worker is created."""
        if self.is_command:
            return ProcessWorker.kind
        return TaskWorker.kind if is_async(self.child) else "worker"

    def make(self) -> object:
        """Create a worker for the child. If the child's function returns something else, return that unchanged."""
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
            raise TypeError(f"backoff of {self.name!r} must be a Backoff, such as Backoff(1.0), got {self.backoff!r}")
        store_seconds(self, "stop_timeout", least=0, optional=True)
        store_seconds(self, "start_timeout", "probe_interval", optional=True)
        store_seconds(self, "probe_timeout")
        if self.failures < 1:
            raise ValueError(f"failures of {self.name!r} must be 1 or more, got {self.failures!r}")

    def _check_sense(self) -> None:
        if self.significant and self.restart == Restart.ALWAYS:
            raise ValueError(
                f"{self.name!r} is significant but always restarted, so its end can never end the supervisor; "
                "give restart='on_failure' or 'never'"
            )
        if self.restart_unhealthy and self.probe_interval is None:
            raise ValueError(f"restart_unhealthy of {self.name!r} needs probe_interval, or its health is not probed")
        if self.restart_unhealthy and self.restart == Restart.NEVER:
            raise ValueError(f"restart_unhealthy of {self.name!r} contradicts restart='never'; give 'on_failure'")

    def _check_child(self) -> None:
        child: object = self.child
        if inspect.iscoroutine(child):
            child.close()
            raise TypeError(f"the child {self.name!r} is a coroutine; give the function itself, without parentheses")
        if isinstance(child, str) or not (callable(child) or isinstance(child, Sequence)):
            raise TypeError(f"the child {self.name!r} must be {_ACCEPTED}, got {child!r}")
        if self.is_command or is_async(child):
            # The constructor of the worker checks the remaining settings.
            self.make()
        elif callable(child) and required_arguments(child) != 0:
            raise TypeError(f"{name_of(child)}, which creates {self.name!r}, must not require arguments")
        if self.probe is not None:
            parse_probe(self.probe, self.name)
        if not self.is_command and (given := next(iter(self._of_process()), None)):
            raise ValueError(
                f"{given} of {self.name!r} requires a list of arguments as the child; pass it to the worker instead"
            )


#: The default probe interval of a child with a ``probe``, in seconds.
_PROBE_INTERVAL = 10.0
#: The settings that are passed on to the worker of a process.
_OF_PROCESSES = ("env", "cwd", "user", "output", "ready", "start_timeout")
_ACCEPTED = (
    "an async function, a list of arguments (not a string), or a function that returns a new worker "
    "(not a worker, which runs only once)"
)


def chosen(kind: type[_E], value: str, name: str) -> _E:
    """Return the member of the enum ``kind`` with the value ``value``. The error message names the setting ``name``.

    Raises:
        ValueError: if the enum has no such member. The message lists all members.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(str(member)) for member in kind)
        raise ValueError(f"{name} must be one of {known}, got {value!r}") from None


# -- the consequences of an end ----------------------------------------------------------------------------------------

#: The exceptions that a child can raise to control its supervisor.
CONTROL_EXCEPTIONS: Final = (DoNotRestart, StopTree, SystemExit, KeyboardInterrupt)


class Verdict(Enum):
    """A supervisor's reaction to the end of a child."""

    #: Restart the child, and the siblings that the supervisor's strategy includes.
    RESTART = auto()
    #: Do not restart the child.
    LEAVE = auto()
    #: End the supervisor and every supervisor above it.
    ESCALATE = auto()


def verdict(restart: Restart | str, ended: Exit) -> Verdict:
    """Return a supervisor's reaction to the exit ``ended`` of a child with the policy ``restart``."""
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
    """Return the children that are restarted together with ``trigger``, in their start order."""
    match strategy:
        case Strategy.ONE_FOR_ONE:
            return [trigger]
        case Strategy.ONE_FOR_ALL:
            return children
        case Strategy.REST_FOR_ONE:
            return children[children.index(trigger) :]


def ends_with(auto_shutdown: AutoShutdown, *, significant: bool, others: Iterable[Any]) -> bool:
    """Return whether a supervisor ends because a child has ended and is not restarted.

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

#: The maximum number of errors in the exception group that a supervisor raises when it gives up.
_MAX_ERRORS: Final = 100


class Budget:
    """The restarts that the supervisor or pool ``name`` has left, and the errors that caused the previous restarts.

    Without an ``intensity``, restarts are unlimited. `spend` raises when the budget is used up. With ``pauses``, it
    returns the time from which the restart is allowed instead.
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
        """Count one restart of ``child`` because of ``error``. Return the time from which the restart is allowed.

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
    """Return ``error`` in a form that an exception group accepts. An unrequested cancellation is wrapped."""
    if isinstance(error, Exception):
        return error
    wrapped = WorkerFailed(f"{child!r} was cancelled, but not by its supervisor")
    wrapped.__cause__ = error
    return wrapped


def _allowed_at(intensity: Intensity, restarts: Sequence[float], now: float) -> float:
    """Return when the budget allows one more restart. ``restarts`` are newest first, and may be in the future."""
    if len(restarts) < intensity.limit:
        return now
    # A restart whose age equals the window still counts.
    return max(now, math.nextafter(restarts[intensity.limit - 1] + intensity.within, math.inf))
