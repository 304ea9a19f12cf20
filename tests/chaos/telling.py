"""How a storm is begun from a command line, and how it says how it went."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["Storm", "tell"]


class Storm(Protocol):
    """Blows for some seconds; the tally that comes of it knows what is ``wrong()``."""

    def __call__(self, seconds: float, /, *, seed: int) -> Coroutine[Any, Any, Any]: ...


def tell(program: str, doc: str | None, storm: Storm, *figures: str) -> None:
    """Let ``storm`` blow as the command line says, print ``figures`` and tally, and exit with whether it is wrong.

    ``LIFECYCLE_SEED`` repeats one.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=doc)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    seed = int(os.environ.get("LIFECYCLE_SEED", random.randrange(2**32)))
    print(f"LIFECYCLE_SEED={seed}")
    tally = asyncio.run(storm(seconds, seed=seed))
    for name in figures:
        figure = getattr(tally, name)
        print(f"{name}: {len(figure) if hasattr(figure, '__len__') else figure}")
    wrong = tally.wrong()
    print(*wrong, tally, sep="\n")
    sys.exit(bool(wrong))
