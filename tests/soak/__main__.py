"""The command that runs the soak and prints a report: ``python -m tests.soak --seconds 1800``.

It exits with 1 and prints the reasons if it finds a violation. ``LIFECYCLE_SEED`` repeats the random choices of a run,
but the timing still depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.soak.storm import Storm

__all__ = ["main"]


def main() -> int:
    """Run the soak with the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("LIFECYCLE_SOAK", "1800")))
    seconds = parser.parse_args().seconds
    seed = int(os.environ.get("LIFECYCLE_SEED", random.randrange(2**32)))
    print(f"LIFECYCLE_SEED={seed} for {seconds:g} s", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="soak"))
    storm = Storm(directory, seconds, seed, partial(print, flush=True))
    asyncio.run(storm.run())
    print(*storm.report(), sep="\n")
    if storm.wrong:
        print(f"its files are in {directory}")
    else:
        shutil.rmtree(directory)
    return bool(storm.wrong)


if __name__ == "__main__":
    sys.exit(main())
