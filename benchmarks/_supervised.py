"""A program that keeps commands running: ``python -m benchmarks._supervised COUNT COMMAND…``."""

from __future__ import annotations

import sys

from lifecycle import run
from lifecycle.workers import Backoff, Spec, Supervisor

__all__: list[str] = []


def main(count: int, *command: str) -> None:
    """Keep ``count`` copies of ``command`` running until the program is stopped."""
    at_once = Backoff(initial=0)
    run(Supervisor("benchmark", *(Spec(f"child{number}", command, backoff=at_once) for number in range(count))))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
