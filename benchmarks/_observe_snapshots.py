"""The cost of a snapshot of a program with a thousand workers."""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import time
from typing import TYPE_CHECKING

from lifecycle.observe import snapshot
from lifecycle.runtime import lifetime
from lifecycle.workers import Spec, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["snapshot_over_dumps"]

_WORKERS, _ROUNDS = 1000, 31


async def snapshot_over_dumps() -> dict[str, float]:
    """Measure ``snapshot().to_dict()`` for a thousand workers, in ms and relative to encoding the result as JSON."""
    specs = [Spec(f"worker-{number}", _forever) for number in range(_WORKERS)]
    async with lifetime(signals=False), Supervisor("top", *specs):
        plain = snapshot().to_dict()
        quotients: list[float] = []
        taken: list[float] = []
        for _ in range(_ROUNDS):
            unit = _timed(lambda: json.dumps(plain))
            taken.append(_timed(lambda: snapshot().to_dict()))
            quotients.append(taken[-1] / unit)
    return {
        "snapshot_1000_workers_ms": round(statistics.median(taken) * 1000, 2),
        "snapshot_1000_workers_over_json_dumps": round(statistics.median(quotients), 2),
    }


async def _forever() -> None:
    await asyncio.Event().wait()


def _timed(case: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    case()
    taken = time.perf_counter() - began
    gc.enable()
    return taken


if __name__ == "__main__":
    print(json.dumps(asyncio.run(snapshot_over_dumps())))
