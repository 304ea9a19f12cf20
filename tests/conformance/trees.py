"""Builds supervisors from the data in a case, by converting OTP's flags and child specs to ours."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lifecycle.workers import Backoff, Intensity, Spec, Supervisor
from tests.conformance.actors import observed

if TYPE_CHECKING:
    from tests.conformance.actors import Diary

__all__ = ["AT_ONCE", "spec", "tree"]

Json = Any

_RESTART = {"permanent": "always", "transient": "on_failure", "temporary": "never"}
#: OTP restarts a child immediately, but replies to waiting callers first. Our supervisor waits this many seconds of
#: virtual time.
AT_ONCE = 1e-4


def tree(diary: Diary, name: str, flags: Json, children: list[Json]) -> Supervisor:
    """Return our supervisor for the ``flags`` and ``children`` in a case, with OTP's defaults.

    Raises:
        ValueError, TypeError: if the data does not describe a supervisor.
    """
    strategy = flags.get("strategy", "one_for_one")
    simple = strategy == "simple_one_for_one"
    return Supervisor(
        name,
        *([] if simple else [spec(diary, child) for child in children]),
        strategy="one_for_one" if simple else strategy,
        intensity=Intensity(flags.get("intensity", 1), flags.get("period", 5)),
        auto_shutdown=flags.get("auto_shutdown", "never"),
        stop_order="parallel" if simple else "reverse",
    )


def spec(diary: Diary, child: Json, name: str | None = None) -> Spec:
    """Return our spec for the child spec in a case.

    Raises:
        ValueError, TypeError: if the data does not describe a child.
    """
    child_id, behaviour, grace = child.get("id", ""), child.get("behaviour", {}), _grace(child)
    inner = behaviour.get("sup")

    def make() -> Any:
        if inner is None:
            return diary.make(child_id, behaviour, grace)
        return observed(diary, tree(diary, child_id, inner.get("flags", {}), inner.get("children", [])))

    return Spec(
        name or child_id,
        make,
        restart=_one_of(_RESTART, child.get("restart", "permanent")),
        backoff=Backoff(initial=AT_ONCE, multiplier=1, jitter=0),
        stop_timeout=grace,
        significant=_one_of({False: False, True: True}, child.get("significant", False)),
    )


def _one_of(known: Json, value: Json) -> Json:
    """Return our equivalent of ``value``."""
    if value not in known:
        raise ValueError(f"{value!r} is unknown; expected one of {[*known]}")
    return known[value]


def _grace(child: Json) -> float:
    default = _one_of({"worker": 5000, "supervisor": "infinity"}, child.get("type", "worker"))
    shutdown = child.get("shutdown", default)
    if shutdown == "infinity":
        return math.inf
    if shutdown == "brutal_kill":
        return 0
    if not isinstance(shutdown, int):
        raise TypeError(f"{shutdown!r} is not a shutdown time; use milliseconds, 'infinity' or 'brutal_kill'")
    return shutdown / 1000
