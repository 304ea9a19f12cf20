"""Settings for supervisors and their children, and the rules that apply them.

Nothing in this module does I/O or reads the clock. Settings are checked before anything starts. `verdict` and
`affected` are pure functions, and `Budget` takes the current time as an argument.
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
    """When a supervisor restarts a child that has ended. Each policy has an equivalent in Erlang/OTP."""

    #: Always, however it ended (OTP: permanent).
    ALWAYS = "always"
    #: If it ended as FAILED or KILLED (OTP: transient).
    ON_FAILURE = "on_failure"
    #: Never (OTP: temporary).
    NEVER = "never"


class FirstStart(_Choice):
    """How a supervisor reacts if a child cannot start while the supervisor itself is starting."""

    #: The supervisor fails to start.
    FAIL = "fail"
    #: The supervisor starts without the child, and retries the child after its backoff.
    RETRY = "retry"


class Strategy(_Choice):
    """Which children to restart when one of them needs a restart."""

    #: Only the child itself.
    ONE_FOR_ONE = "one_for_one"
    #: All children. First, all of them are stopped, and then they are started in order.
    ONE_FOR_ALL = "one_for_all"
    #: The child and all children started after it.
    REST_FOR_ONE = "rest_for_one"


class AutoShutdown(_Choice):
    """When a supervisor ends because its significant children have ended and will not be restarted."""

    #: Never; the supervisor keeps running.
    NEVER = "never"
    #: When any of them has ended.
    ANY_SIGNIFICANT = "any_significant"
    #: When all of them have ended.
    ALL_SIGNIFICANT = "all_significant"


class OnLimit(_Choice):
    """How a supervisor reacts when it exceeds its restart limit."""

    #: Stop the children and end as FAILED, so that a parent supervisor can restart the whole supervisor.
    ESCALATE = "escalate"
    #: Delay the restart until it is within the limit.
    PAUSE = "pause"


class StopOrder(_Choice):
    """The order in which a supervisor stops its children."""

    #: One child at a time, in reverse start order.
    REVERSE = "reverse"
    #: All children at the same time.
    PARALLEL = "parallel"


class _Gated(Protocol):
    # Without the overloads, pyright mistakes `lambda name=name: make(name)` for a function that takes a gate.
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
    """Describes a child of a `Supervisor`.

    Args:
        name: The child's name, unique among its siblings.
        child: One of the following: an async function that takes either no arguments or a `Gate` (run by a
            `TaskWorker`), a command as a list of arguments (run by a `ProcessWorker`), or a function that returns a new
            worker. Such a function is called in the event loop each time the child is started, so it must return
            quickly or return an awaitable.
        restart: When to restart the child: ``"always"``, ``"on_failure"`` or ``"never"``.
        backoff: How long to wait before each restart, and how many restarts to allow before giving up on the child.
        first_start: How the supervisor reacts if the child cannot start while the supervisor itself is starting. With
            ``"fail"``, the supervisor fails to start. With ``"retry"``, the supervisor starts without the child, and
            keeps trying to start it until it succeeds, with the delays set by ``backoff``. These attempts do not count
            towards the supervisor's ``intensity``.
        stop_timeout: Seconds to wait after a stop request before killing the child. Defaults to its worker's own
            timeout.
        significant: Whether the supervisor may end because this child has ended; see ``auto_shutdown`` in `Supervisor`.
        env, cwd, user, output, ready, start_timeout: Process settings, which are only allowed if ``child`` is a
            command; see `ProcessWorker`.
        probe: A health check in addition to the worker's own ``probe()``. ``"port:N"`` checks that the child accepts
            connections on this local port. ``"http://…"`` or ``"https://…"`` checks that a request to this URL returns
            a status below 400. ``"cmd:COMMAND"`` checks that this command exits with status 0. The command is not
            passed through a shell. It runs with the same environment, working directory and user as the process, and
            its output is discarded.
        probe_interval: Seconds between probes, randomly varied by up to 10 %. Defaults to 10 if ``probe`` is set.
            Otherwise, the child is not probed by default.
        probe_timeout: Seconds to wait for a probe before it fails.
        failures: The number of consecutive failed probes after which the child is considered unhealthy.
        restart_unhealthy: Whether to restart the child when it becomes unhealthy. By default, its health is only
            reported.

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
    output: Output | Literal["inherit"] | None = None
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
        """True if the child is a command."""
        return not callable(self.child)

    @property
    def kind(self) -> str:
        """The kind of worker, if known before the worker is created."""
        if self.is_command:
            return ProcessWorker.kind
        return TaskWorker.kind if is_async(self.child) else "worker"

    def make(self) -> object:
        """Create a worker for the child. If the function returns anything else, return that unchanged."""
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
            raise TypeError(f"{self.name!r}: backoff must be a Backoff, such as Backoff(1.0), got {self.backoff!r}")
        store_seconds(self, "stop_timeout", least=0, optional=True)
        store_seconds(self, "start_timeout", "probe_interval", optional=True)
        store_seconds(self, "probe_timeout")
        if self.failures < 1:
            raise ValueError(f"{self.name!r}: failures must be 1 or more, got {self.failures!r}")

    def _check_sense(self) -> None:
        if self.significant and self.restart == Restart.ALWAYS:
            raise ValueError(
                f"{self.name!r} is significant but always restarted, so it can never end the supervisor; "
                "use restart='on_failure' or restart='never'"
            )
        if self.restart_unhealthy and self.probe_interval is None:
            raise ValueError(f"{self.name!r}: restart_unhealthy requires probe or probe_interval")
        if self.restart_unhealthy and self.restart == Restart.NEVER:
            raise ValueError(f"{self.name!r}: restart_unhealthy conflicts with restart='never'; use 'on_failure'")

    def _check_child(self) -> None:
        child: object = self.child
        if inspect.iscoroutine(child):
            child.close()
            raise TypeError(f"the child {self.name!r} is a coroutine; pass the function itself, without calling it")
        if isinstance(child, str) or not (callable(child) or isinstance(child, Sequence)):
            raise TypeError(f"the child {self.name!r} must be {_ACCEPTED}, got {child!r}")
        if self.is_command or is_async(child):
            # The worker's constructor checks the other settings.
            self.make()
        elif callable(child) and required_arguments(child) != 0:
            raise TypeError(f"{name_of(child)}, which creates the worker {self.name!r}, must not require arguments")
        if self.probe is not None:
            parse_probe(self.probe, self.name)
        if not self.is_command and (given := next(iter(self._of_process()), None)):
            raise ValueError(
                f"{self.name!r}: {given} is only allowed for a list of arguments; pass it to the worker instead"
            )


#: The default probe interval for a child with a ``probe``, in seconds.
_PROBE_INTERVAL = 10.0
#: The settings passed on to a `ProcessWorker`.
_OF_PROCESSES = ("env", "cwd", "user", "output", "ready", "start_timeout")
_ACCEPTED = (
    "an async function, a list of arguments (not a string), or a function that returns a new worker "
    "(not a worker, which runs only once)"
)


def chosen(kind: type[_E], value: str, name: str) -> _E:
    """Return the member of the enum ``kind`` with the value ``value``, for the setting ``name``.

    Raises:
        ValueError: if the enum has no such member. The message names the setting and lists the members.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(str(member)) for member in kind)
        raise ValueError(f"{name} must be one of {known}, got {value!r}") from None


# -- what happens after a child has ended ------------------------------------------------------------------------------

#: Exceptions that a child can raise to control its supervisor.
CONTROL_EXCEPTIONS: Final = (DoNotRestart, StopTree, SystemExit, KeyboardInterrupt)


class Verdict(Enum):
    """How a supervisor reacts after a child has ended."""

    #: Restart the child, along with the siblings selected by the supervisor's strategy.
    RESTART = auto()
    #: Do not restart the child.
    LEAVE = auto()
    #: End the supervisor and all of its ancestors.
    ESCALATE = auto()


def verdict(restart: Restart | str, ended: Exit) -> Verdict:
    """Return how a supervisor reacts when a child with the policy ``restart`` has ended, as described by ``ended``."""
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
    """If ``error`` is or wraps a control exception, return that exception. Otherwise, return ``error``."""
    inner = None if error is None else error.__cause__
    wrapped = isinstance(inner, CONTROL_EXCEPTIONS) and not isinstance(error, CONTROL_EXCEPTIONS)
    return inner if wrapped else error


def affected(strategy: Strategy, children: Sequence[_T], trigger: _T) -> Sequence[_T]:
    """Return the children to restart because of ``trigger``, including ``trigger`` itself, in start order."""
    match strategy:
        case Strategy.ONE_FOR_ONE:
            return [trigger]
        case Strategy.ONE_FOR_ALL:
            return children
        case Strategy.REST_FOR_ONE:
            return children[children.index(trigger) :]


def ends_with(auto_shutdown: AutoShutdown, *, significant: bool, others: Iterable[Any]) -> bool:
    """Return whether a supervisor ends because one of its children has ended and will not be restarted.

    ``others`` are the significant children that are still running.
    """
    match auto_shutdown:
        case AutoShutdown.NEVER:
            return False
        case AutoShutdown.ANY_SIGNIFICANT:
            return significant
        case AutoShutdown.ALL_SIGNIFICANT:
            return significant and not any(True for _ in others)


# -- the restart budget --------------------------------------------------------------------------------------------

#: The maximum number of errors in the exception group raised by a supervisor that gives up.
_MAX_ERRORS: Final = 100


class Budget:
    """Tracks how many restarts a supervisor or pool has left, and the errors that caused previous restarts.

    Without an ``intensity``, restarts are unlimited. When the budget is used up, `spend` raises an error or, with
    ``pauses``, returns the time when the next restart is allowed.
    """

    def __init__(self, name: str, intensity: Intensity | None, *, pauses: bool = False) -> None:
        self._name = name
        self._intensity = intensity
        self._pauses = pauses
        # The times of the restarts, newest first. With ``pauses``, some of them may be in the future.
        self._restarts: deque[float] = deque()
        kept = 0 if intensity is None else min(intensity.limit + 1, _MAX_ERRORS)
        self._errors: deque[Exception] = deque(maxlen=kept)

    def spend(self, now: float, child: str, error: BaseException) -> float:
        """Record a restart of ``child`` because of ``error``. Return the time when it is allowed.

        Raises:
            RestartLimitReached: if the budget is used up and ``pauses`` is false.
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
            f"{self._name!r} gave up after more than {restarts} within {intensity.within:g} s, "
            f"most recently of {child!r}: {self._errors[-1]}"
        )
        limit.__cause__ = ExceptionGroup(f"recent errors from the children of {self._name!r}", list(self._errors))
        return limit


def _as_exception(child: str, error: BaseException) -> Exception:
    """Return ``error`` as an `Exception`, because an `ExceptionGroup` accepts nothing else."""
    if isinstance(error, Exception):
        return error
    wrapped = WorkerFailed(f"{child!r} was cancelled, but not by its supervisor")
    wrapped.__cause__ = error
    return wrapped


def _allowed_at(intensity: Intensity, restarts: Sequence[float], now: float) -> float:
    """Return when the budget allows another restart. ``restarts`` are sorted newest first and may be in the future."""
    if len(restarts) < intensity.limit:
        return now
    # A restart that is exactly as old as the window is still counted, so wait slightly longer.
    return max(now, math.nextafter(restarts[intensity.limit - 1] + intensity.within, math.inf))
