"""A pool's settings, including the public records and the workers' target. They are validated on creation."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

from lifecycle._durations import duration, store_seconds
from lifecycle.backoff import Intensity
from lifecycle.workers.base import check_env
from lifecycle.workers.containment.containment import Level
from lifecycle.workers.pool.protocol import codec, setup_frame
from lifecycle.workers.stdio import check_argv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lifecycle._durations import DurationField, OptionalDurationField
    from lifecycle.workers.pool.protocol import Codec

__all__ = [
    "Heartbeat",
    "PoolSettings",
    "Process",
    "Recycle",
    "SessionMode",
    "Sessions",
    "Target",
    "check_size",
    "function_name",
]

#: How to handle a call if its session's worker is busy or has exited.
SessionMode: TypeAlias = Literal["hint", "strict", "fail"]

_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_FORMS: Final = (
    "pass 'module:function', 'module:Class', or the command of a program that speaks the protocol, as a list"
)
_PROGRAM: Final = os.path.join(os.path.dirname(__file__), "child", "main.py")  # noqa: PTH118, PTH120  # as in the program itself


# -- the public records ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recycle:
    """When to replace a worker because of its age or use. Recycling workers does not make any calls fail.

    To keep workers from being replaced at the same time, each worker's ``calls``, ``age`` and ``rss`` limits are
    randomly reduced by up to a tenth. Small values of ``calls`` are not reduced.

    Args:
        calls: The maximum number of calls.
        age: The maximum age in seconds.
        rss: The maximum resident memory in bytes.
        idle: Stop a worker after this many seconds without a call, if there are more workers than the minimum. None
            disables this.

    Raises:
        ValueError, TypeError: if a number is invalid. The message names it.
    """

    calls: int | None = None
    age: OptionalDurationField = duration(None)
    rss: int | None = None
    idle: OptionalDurationField = duration(60.0)

    def __post_init__(self) -> None:
        _check_count(self, "calls", optional=True)
        _check_count(self, "rss", optional=True)
        store_seconds(self, "age", "idle", finite=True, optional=True)


@dataclass(frozen=True, slots=True)
class Sessions:
    """How the calls in a session find the worker that holds the session's state.

    Args:
        mode: ``"hint"`` sends calls to the session's worker if it is free, and otherwise to any worker. With
            ``"strict"``, calls wait for the session's worker, without delaying other calls. With ``"fail"``, calls
            raise `SessionLost` if the worker is busy. If the worker has exited, the next call in the session raises
            `SessionLost` (except with ``"hint"``). The call after that starts the session again on a different worker.
        ttl: Seconds after a session's last call until the session is forgotten.
        limit: The maximum number of sessions. If there are more, the least recently used sessions are forgotten.

    Raises:
        ValueError, TypeError: if a setting is invalid. The message names it.
    """

    mode: SessionMode = "hint"
    ttl: DurationField = duration(300.0)
    limit: int = 10_000

    def __post_init__(self) -> None:
        if self.mode not in get_args(SessionMode):
            known = ", ".join(repr(mode) for mode in get_args(SessionMode))
            raise ValueError(f"Sessions.mode must be one of {known}, got {self.mode!r}")
        store_seconds(self, "ttl", finite=True)
        _check_count(self, "limit")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How a pool detects unhealthy workers.

    Args:
        every: Seconds between health checks, randomly varied by up to a tenth.
        timeout: How many seconds a worker may take to respond.
        misses: The number of consecutive failed checks after which a worker is killed. After the first failed check,
            the worker gets no calls until it responds. During a call, missing responses are ignored until the call's
            deadline has passed, because the call may be blocking the interpreter.

    Raises:
        ValueError, TypeError: if a number is invalid. The message names it.
    """

    every: DurationField = duration(2.0)
    timeout: DurationField = duration(10.0)
    misses: int = 3

    def __post_init__(self) -> None:
        store_seconds(self, "every", "timeout", finite=True)
        _check_count(self, "misses")


@dataclass(frozen=True, slots=True)
class Process:
    """How to start and stop worker processes.

    Args:
        env: Additional environment variables. Workers also inherit all of this process's variables, including secrets.
            A value of None removes an inherited variable. The mapping is copied.
        cwd: The working directory. Defaults to this process's working directory.
        contain: The containment level; see `ProcessWorker`.
        grace: Seconds to wait for a call to stop after it is cancelled or its deadline passes, before killing its
            worker.
        stop_timeout: Seconds to wait after a stop request before killing a worker.
        start_timeout: How many seconds a worker may take to import and construct its target. A worker that takes longer
            is killed. The pool then fails to start if no worker has ever been ready, and starts a new worker otherwise.
        threads: The maximum number of threads per worker for numeric libraries (OMP, MKL, OpenBLAS, numexpr), unless
            ``env`` sets it. By default, the libraries decide.

    Raises:
        ValueError, TypeError: if a setting is invalid. The message names it.
    """

    env: Mapping[str, str | None] | None = None
    cwd: str | os.PathLike[str] | None = None
    contain: str = "auto"
    grace: DurationField = duration(0.5)
    stop_timeout: DurationField = duration(5.0)
    start_timeout: DurationField = duration(30.0)
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.env is not None:
            for name, value in self.env.items():
                check_env(name, "" if value is None else value)
            object.__setattr__(self, "env", MappingProxyType(dict(self.env)))
        if not isinstance(self.cwd, str | os.PathLike | None):
            raise TypeError(f"Process.cwd must be a path, got {self.cwd!r}")
        Level.wanted(self.contain, detached=False)
        store_seconds(self, "grace", "stop_timeout", least=0, finite=True)
        store_seconds(self, "start_timeout", finite=True)
        _check_count(self, "threads", optional=True)


def _check_count(record: object, name: str, *, optional: bool = False, least: int = 1, of: str = "") -> None:
    value = getattr(record, name)
    if optional and value is None:
        return
    setting = f"{name} of {of!r}" if of else f"{type(record).__name__}.{name}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{setting} must be a whole number, {least} or more, got {value!r}")
    if value < least:
        raise ValueError(f"{setting} must be {least} or more, got {value!r}")


# -- all of a pool's settings ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """A pool's arguments after they have been checked.

    Raises:
        TypeError, ValueError: if a setting is invalid. The message names it.
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
        _check_count(self, "queue", least=0, of=self.name)
        _check_count(self, "concurrency", of=self.name)
        for what, kind in _RECORDS.items():
            if not isinstance(given := getattr(self, what), kind):
                raise TypeError(f"{what} of {self.name!r} must be of type {kind.__name__}, got {given!r}")
        # If the arguments cannot be sent, reject them now, before any worker is started.
        try:
            setup_frame(self.codec, self.setup())
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"init={self.init!r:.200} of {self.name!r} cannot be sent: {error}") from error

    @classmethod
    def read(
        cls, name: str, target: Any, *, codec_name: str | None, size: Any, init: Any, **settings: Any
    ) -> PoolSettings:
        """Return the settings for the arguments passed to `Pool`."""
        if isinstance(init, str) or not isinstance(init, Iterable):
            raise TypeError(f"init of {name!r} must be a tuple of arguments, got {init!r}")
        pair = cast("Sequence[Any]", size)
        if not isinstance(size, tuple | list) or len(pair) != 2:  # noqa: PLR2004  # a pair
            raise TypeError(f"size of {name!r} must be a minimum and a maximum, such as (1, 4), got {size!r}")
        arguments: list[Any] = [*init]
        found = Target.read(name, target)
        # A program may be written in another language and unable to read pickles.
        default = "msgpack" if found.name is None else "pickle"
        return cls(
            name,
            found,
            size=(pair[0], pair[1]),
            init=tuple(arguments),
            codec=codec(default if codec_name is None else codec_name),
            **settings,
        )

    def with_env(self, env: Mapping[str, str]) -> PoolSettings:
        """Return a copy of the settings with ``env`` added to the workers' environment, overriding other values."""
        return replace(self, process=replace(self.process, env={**(self.process.env or {}), **env})) if env else self

    def setup(self) -> dict[str, Any]:
        """Return the setup message, which is the response to a worker's greeting.

        The message includes this process's current ``sys.path``, so that the worker finds the same modules.
        """
        return {
            "target": self.target.name,
            "init": list(self.init),
            "path": [os.path.abspath(each) for each in sys.path],  # noqa: PTH100  # "" is the current directory
            "concurrency": self.concurrency,
        }

    def environment(self) -> dict[str, str]:
        """Return the workers' environment variables other than inherited ones."""
        process = self.process
        limits = {} if process.threads is None else dict.fromkeys(_THREADS, str(process.threads))
        given = limits | dict(process.env or {})
        return {name: value for name, value in given.items() if value is not None}

    def removed_variables(self) -> frozenset[str]:
        """Return the environment variables that workers do not inherit."""
        return frozenset(name for name, value in (self.process.env or {}).items() if value is None)


_RECORDS = {
    "recycle": Recycle,
    "sessions": Sessions,
    "heartbeat": Heartbeat,
    "process": Process,
    "intensity": Intensity,
}


def check_size(name: str, low: int, high: int) -> tuple[int, int]:
    """Check the size of the pool ``name``, and return it as a pair.

    Raises:
        TypeError, ValueError: if a number is invalid.
    """
    if any(isinstance(each, bool) or not isinstance(each, int) for each in (low, high)):
        raise TypeError(f"size of {name!r} must be two whole numbers, such as (1, 4), got {(low, high)!r}")
    if not 0 <= low <= high or high < 1:
        raise ValueError(
            f"size of {name!r} must be a minimum of 0 or more and a maximum of 1 or more, with "
            f"minimum <= maximum, got {(low, high)!r}"
        )
    return low, high


# -- targets and functions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """The command that starts each worker of a pool, and the name of the object that the worker serves."""

    argv: tuple[str, ...]
    #: ``module:qualname``, or None for a program in another language.
    name: str | None

    @classmethod
    def read(cls, name: str, target: str | Sequence[str | os.PathLike[str]]) -> Target:
        """Return the target for the pool ``name``.

        Raises:
            TypeError, ValueError: if workers cannot find the target. The message explains why and how to fix it.
        """
        if callable(target):
            raise TypeError(f"target={target!r} of {name!r} is an object in this process; {_instead(target)}")
        if isinstance(target, str):
            _check_name(f"target={target!r} of {name!r}", target)
            return cls((sys.executable, "-P", _PROGRAM), target)
        if not isinstance(target, (list, tuple)):
            raise TypeError(f"target={target!r} of {name!r} cannot be run; {_FORMS}")
        return cls(check_argv(name, tuple(target)), None)


def function_name(function: str | Callable[..., Any]) -> str:
    """Return the name that workers use to find ``function``: ``module:qualname`` for a function in a module.

    Raises:
        TypeError, ValueError: if workers cannot find the function. The message explains why and how to fix it.
    """
    if isinstance(function, str):
        if ":" in function:
            _check_name(f"function {function!r}", function)
        elif not function.isidentifier():
            raise ValueError(
                f"function must be the name of a function or method, or 'module:function', got {function!r}"
            )
        return function
    # Python 3.14 considers a partial object to be a routine.
    if isinstance(function, partial) or not inspect.isroutine(function):
        raise TypeError(f"expected a function, or the name of a function or method, got {function!r}")
    if (why := _why_not(function)) is not None:
        raise ValueError(f"{function!r} cannot be called in a worker, which finds functions by name, and {why}")
    return f"{function.__module__}:{function.__qualname__}"


def _instead(target: Any) -> str:
    """Return advice on what to pass instead of an object that was used as a target."""
    if (why := _why_not(target)) is not None:
        return f"a worker finds its target by name, and {why}"
    return f"pass its name, {f'{target.__module__}:{target.__qualname__}'!r}, so that each worker can import it"


def _why_not(target: Any) -> str | None:
    """Return why a worker cannot find ``target`` by its name, or None if it can."""
    module, qualname = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if module is None or qualname is None:
        return "this object has no name; pass the name of a function or class in a module"
    if (why := _why_no_name(module, qualname)) is not None:
        return why
    if not isinstance(getattr(target, "__self__", None), (type, ModuleType, NoneType)):
        return f"this method is bound to an object in this process; pass the method's name, {target.__name__!r}"
    if _found(module, qualname) != target:
        return f"the name {f'{module}:{qualname}'!r} refers to something else; pass the correct name"
    return None


def _why_no_name(module: str, qualname: str) -> str | None:
    """Return why other processes cannot find the name ``qualname`` in ``module``, or None if they may find it."""
    if "<lambda>" in qualname:
        return "a lambda has no name; define a function in a module"
    if "<locals>" in qualname:
        return "an object defined inside a function cannot be found; move it to the top level of a module"
    if module == "__main__":
        return "no other process can import __main__, which is this program; move the object to a separate module"
    return None


def _found(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _check_name(given: str, name: str) -> None:
    module, _, qualname = name.partition(":")
    if (why := _why_no_name(module, qualname)) is not None:
        raise ValueError(f"{given} is looked up by name, and {why}")
    if not all(part.isidentifier() for dotted in (module, qualname) for part in dotted.split(".")):
        raise ValueError(f"{given} is not a valid name; {_FORMS}")
