"""The command that runs the benchmarks: ``python -m benchmarks [--write | --check] [module ...]``.

Without an option, it prints the figures. After each module, ``--write`` also stores them in
``benchmarks/figures.json``, and writes the pages ``docs/reference/performance.md`` and ``docs/reference/scaling.md``.
Stored figures for other modules are kept. ``--check`` compares the new figures with the stored figures. It exits with 1
if a figure is worse in two consecutive runs by more than the machine's noise. Figures without a limit are not compared,
and curves only if they are named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from benchmarks._bars import Bar
from benchmarks._curves_plots import files
from benchmarks._machine import machine, versions
from benchmarks._page import PAGE, STORED, render, stored
from benchmarks.curves import CURVES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["MODULES", "main", "regressions"]

MODULES = (
    *("startup", "router", "webhook", "watch", "reloaders", "supervision", "pool", "flows", "bridge", "observe"),
    "curves",
)
#: Modules that take minutes, which ``--check`` runs only if they are named.
_SLOW = ("curves",)


def main() -> int:
    """Run the given benchmark modules, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure lifecycle against peers.")
    parser.add_argument("modules", nargs="*", choices=[[], *MODULES], default=[], metavar="module")
    then = parser.add_mutually_exclusive_group()
    then.add_argument("--write", action="store_true", help="store the figures, and write the page")
    then.add_argument("--check", action="store_true", help="exit with 1 if a figure has become worse")
    options = parser.parse_args()
    named = options.modules or [name for name in MODULES if not (options.check and name in _SLOW)]
    found: dict[str, Any] = {}
    for name in named:
        found[name] = _measured(name)
        if options.write:
            _keep(found)
    return _check(found) if options.check else 0


def _measured(name: str) -> dict[str, Any]:
    """Run one module in a separate process and return its figures. Print the reasons for missing figures on stderr."""
    load = round(os.getloadavg()[0], 1)
    ran = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--json"], text=True, capture_output=True)  # noqa: PLW1510
    if ran.returncode:
        sys.exit(f"benchmarks.{name} failed with {ran.returncode}:\n{ran.stderr}{ran.stdout}")
    measured = json.loads(ran.stdout.splitlines()[-1])
    print(json.dumps({name: measured}), flush=True)
    missing = [line for line in ran.stderr.splitlines() if line.strip()] if None in measured.values() else []
    return {"figures": measured, "missing": missing, "load": load}


def _keep(found: Mapping[str, Any]) -> None:
    before = stored()["modules"] if STORED.exists() else {}
    modules = {name: each for name in MODULES if (each := found.get(name) or before.get(name))}
    run = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(), "versions": versions(), "modules": modules}
    STORED.write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")
    pages = {PAGE: render(run)}
    if "curves" in modules:
        pages |= files(CURVES, modules["curves"]["figures"]["points"])
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")


def _check(found: Mapping[str, Any]) -> int:
    before = stored()["modules"]
    suspects = {name: regressions(name, each["figures"], before[name]["figures"]) for name, each in found.items()}
    verdicts = [line for name, worse in suspects.items() if worse for line in _confirmed(name, worse, before[name])]
    print("\n".join(verdicts) or "no figure has become worse")
    return 1 if verdicts else 0


def _confirmed(name: str, suspects: Iterable[str], before: Mapping[str, Any]) -> list[str]:
    """Measure again, and return the figures in ``suspects`` that are still worse, one line per figure."""
    again, kept = _measured(name)["figures"], before["figures"]
    worse = set(suspects) & set(regressions(name, again, kept))
    return [f"{name}: {figure} is {again[figure]}, was {kept[figure]}" for figure in sorted(worse)]


def regressions(name: str, figures: Mapping[str, Any], kept: Mapping[str, Any]) -> list[str]:
    """Return a module's figures that are worse than the stored figures."""
    bars = {figure: Bar.read(words) for figure, words in import_module(f"benchmarks.{name}").BARS.items()}
    both = (figure for figure in bars if _is_number(figures.get(figure)) and _is_number(kept.get(figure)))
    return [figure for figure in both if bars[figure].worse(figures[figure], kept[figure])]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


if __name__ == "__main__":
    sys.exit(main())
