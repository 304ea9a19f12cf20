"""What a pool is told of its members, sessions and checks: frozen records, checked when they are made."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from lifecycle.workers.base import check_env
from lifecycle.workers.containment import Level

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Heartbeat", "Process", "Recycle", "SessionMode", "Sessions"]

#: What becomes of a call whose session's member has other work, or is gone.
SessionMode: TypeAlias = Literal["hint", "strict", "fail"]

_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_PREFIXES: Final = ("", "k", "m", "g", "t")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Recycle:
    """When a member has worked enough and makes room for a new one; no call ever suffers from it.

    ``calls``, ``age`` and ``rss`` are each up to a tenth less, drawn once a member, so that members which began
    together do not go together; a small number of calls is what it says.

    Args:
        calls: after how many calls.
        age: after how many seconds.
        rss: at how much memory: in bytes, or as text such as ``"512 MB"`` or ``"1 GiB"``.
        idle: after how many seconds without a call a member goes that the pool has above its least size; None: never.

    Raises:
        ValueError, TypeError: for figures that cannot work; the message names them.
    """

    calls: int | None = None
    age: float | None = None
    rss: int | str | None = None
    idle: float | None = 60.0

    def __post_init__(self) -> None:
        _check_count(self, "calls", optional=True)
        _check_seconds(self, "age", optional=True)
        _check_seconds(self, "idle", optional=True)
        if self.rss is not None:
            _bytes(self.rss)

    @property
    def rss_bytes(self) -> int | None:
        """``rss`` as a number of bytes."""
        return None if self.rss is None else _bytes(self.rss)


@dataclass(frozen=True, slots=True)
class Sessions:
    """How calls of one session find the member that has its state.

    Args:
        mode: ``"hint"``, they go there if it is free, else to any; ``"strict"``, they wait for it, without holding
            up others; ``"fail"``, they get `SessionLost` at once if it is busy (in a suspended pool, once it resumes).
            When it has ended, the next call of the session gets `SessionLost`, but with ``"hint"``, and the one after
            begins again with another.
        ttl: seconds after which a session without a call is forgotten, counted from the end of the last one.
        limit: how many are kept; above it, those are forgotten that have been without a call the longest.

    Raises:
        ValueError, TypeError: for settings that cannot work; the message names them.
    """

    mode: SessionMode = "hint"
    ttl: float = 300.0
    limit: int = 10_000

    def __post_init__(self) -> None:
        if self.mode not in get_args(SessionMode):
            known = ", ".join(repr(mode) for mode in get_args(SessionMode))
            raise ValueError(f"Sessions(mode={self.mode!r}) is unknown; give one of {known}")
        _check_seconds(self, "ttl")
        _check_count(self, "limit")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How a pool learns that a member is no longer itself.

    Args:
        every: seconds between two questions after its health (a tenth more or less, at random).
        timeout: seconds that it has to answer.
        misses: how many bad answers in a row are its end; after the first it gets no calls until a good one. A missing
            answer does not count while a call runs whose deadline has not passed: it may hold the interpreter.

    Raises:
        ValueError, TypeError: for figures that cannot work; the message names them.
    """

    every: float = 2.0
    timeout: float = 10.0
    misses: int = 3

    def __post_init__(self) -> None:
        _check_seconds(self, "every")
        _check_seconds(self, "timeout")
        _check_count(self, "misses")


@dataclass(frozen=True, slots=True)
class Process:
    """How the process of a member is started and ended.

    Args:
        env: variables that its environment has besides all of ours, which it inherits, secrets included. None as a
            value leaves one of ours out. It is copied.
        cwd: the directory that it runs in; by default ours.
        contain: how its processes are held together; see `ProcessWorker`.
        grace: seconds that a call has to end once it was cancelled or has overrun, before its member is killed.
        stop_timeout: seconds that a member has to end once it was asked.
        start_timeout: seconds that it has to be ready: with its target imported and constructed.
        threads: how many threads libraries for numbers may use in it (OMP, MKL, OpenBLAS, numexpr), where ``env``
            does not say; by default as many as they like, in each member.

    Raises:
        ValueError, TypeError: for settings that cannot work; the message names them.
    """

    env: Mapping[str, str | None] | None = None
    cwd: str | os.PathLike[str] | None = None
    contain: str = "auto"
    grace: float = 0.5
    stop_timeout: float = 5.0
    start_timeout: float = 30.0
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.env is not None:
            for name, value in self.env.items():
                check_env(name, "" if value is None else value)
            object.__setattr__(self, "env", MappingProxyType(dict(self.env)))
        if not isinstance(self.cwd, str | os.PathLike | None):
            raise TypeError(f"Process(cwd={self.cwd!r}) is no directory; give a path")
        Level.wanted(self.contain, detached=False)
        _check_seconds(self, "grace", or_none_at_all=True)
        _check_seconds(self, "stop_timeout", or_none_at_all=True)
        _check_seconds(self, "start_timeout")
        _check_count(self, "threads", optional=True)

    @property
    def environment(self) -> dict[str, str]:
        """``env`` with what ``threads`` adds to it."""
        limits = {} if self.threads is None else dict.fromkeys(_THREADS, str(self.threads))
        given = limits | dict(self.env or {})
        return {name: value for name, value in given.items() if value is not None}

    @property
    def omitted(self) -> frozenset[str]:
        """The variables of ours that it does not inherit."""
        return frozenset(name for name, value in (self.env or {}).items() if value is None)


def _check_seconds(record: object, name: str, *, optional: bool = False, or_none_at_all: bool = False) -> None:
    value = getattr(record, name)
    if optional and value is None:
        return
    given = f"{type(record).__name__}({name}={value!r})"
    least = "0 or more" if or_none_at_all else "more than 0"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{given} is no number of seconds; give {least}")
    if not math.isfinite(value) or value < 0 or (value == 0 and not or_none_at_all):
        raise ValueError(f"{given} is no number of seconds that can work; give {least}")


def _check_count(record: object, name: str, *, optional: bool = False) -> None:
    value = getattr(record, name)
    if optional and value is None:
        return
    given = f"{type(record).__name__}({name}={value!r})"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{given} is no whole number; give 1 or more")
    if value < 1:
        raise ValueError(f"{given} is too little; give 1 or more")


def _bytes(rss: int | str) -> int:
    """The number of bytes that ``rss`` says: kB and its like are powers of 1000, KiB and its like of 1024."""
    given = f"Recycle(rss={rss!r})"
    if isinstance(rss, bool) or not isinstance(rss, int | str):
        raise TypeError(f"{given} is no amount of memory; give bytes, or text such as '512 MB' or '1 GiB'")
    amount = rss if isinstance(rss, int) else _read_bytes(rss)
    if amount is None:
        raise ValueError(f"{given} is no amount of memory that is understood; write it as '512 MB' or '1 GiB'")
    if amount < 1:
        raise ValueError(f"{given} leaves no memory to work in; give more than 0 bytes")
    return amount


def _read_bytes(text: str) -> int | None:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number, prefix, binary = match.groups()
    return round(float(number) * math.pow(1024 if binary else 1000, _PREFIXES.index((prefix or "").lower())))
