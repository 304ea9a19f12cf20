"""The cost of importing: an interpreter's wall time with the import, minus the time without it.

``router_over_asyncio`` is the time that ``from lifecycle import Router, run`` adds to ``import asyncio``, as a share
of the latter. Records of events and states are loaded when a program first uses them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial

from benchmarks._measure import difference, interleaved, report

__all__ = ["main"]

ROUNDS = 31

ROUTER = "from lifecycle import Router, run"

PROGRAMS = {
    "bare": "pass",
    "lifecycle": "import lifecycle",
    "asyncio": "import asyncio",
    "router": ROUTER,
}

BARS = {
    "import_ms": "at most 5",
    "router_over_asyncio": "at most 0.5",
    "heavy_modules": "none",
}

HEAVY = ("aiohttp", "prompt_toolkit")


def main() -> None:
    """Run all benchmarks in this module, and print their figures."""
    samples = interleaved({name: partial(_seconds, code) for name, code in PROGRAMS.items()}, rounds=ROUNDS, warmup=3)
    results = {
        "import_ms": difference(samples, "lifecycle", "bare") * 1000,
        "router_over_asyncio": difference(samples, "router", "asyncio") / difference(samples, "asyncio", "bare"),
        "heavy_modules": _heavy_modules(),
    }
    report("startup", results, BARS)


def _seconds(code: str) -> float:
    """Return the seconds to run ``code``. Bytecode is kept between rounds, as for any program that runs repeatedly."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=kept)
    return time.perf_counter() - began


def _heavy_modules() -> list[str]:
    """Return the libraries that importing the router loads, but that should be imported only when needed."""
    code = f"import json, sys; {ROUTER}; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    loaded: list[str] = json.loads(subprocess.check_output([sys.executable, "-c", code]))
    return loaded


if __name__ == "__main__":
    main()
