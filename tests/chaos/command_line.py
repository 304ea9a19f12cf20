"""The command line of the chaos tests: arguments, cleanup and report."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Coroutine, Iterable, Sequence

__all__ = ["kill_all", "run_from_command_line"]


def run_from_command_line(
    program: str,
    doc: str | None,
    storm: Callable[..., Coroutine[Any, Any, Any]],
    *figures: str,
    stores: Sequence[str] = (),
) -> None:
    """Run ``storm`` with the command-line arguments, print ``figures`` and the result, and exit.

    The exit status is 1 if the result's ``wrong()`` method lists violations. ``storm`` receives the number of seconds,
    the seed, and a store unless ``stores`` is empty. Set ``LIFECYCLE_SEED`` to repeat a run.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=doc)
    parser.add_argument("--seconds", type=float, default=60.0)
    if stores:
        parser.add_argument("--store", choices=stores, default=stores[0])
    given = vars(parser.parse_args())
    seed = int(os.environ.get("LIFECYCLE_SEED", random.randrange(2**32)))
    print(f"LIFECYCLE_SEED={seed}")
    result = asyncio.run(storm(given.pop("seconds"), seed=seed, **given))
    for name in figures:
        figure = getattr(result, name)
        print(f"{name}: {len(figure) if isinstance(figure, (set, list)) else figure}")
    wrong = result.wrong()
    print(*wrong, result, sep="\n")
    sys.exit(bool(wrong))


async def kill_all(processes: Iterable[Process]) -> None:
    """Kill the remaining child processes."""
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.wait()
