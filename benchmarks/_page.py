"""Writes ``docs/reference/performance.md`` from the figures of the last complete run."""

from __future__ import annotations

import ast
import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._bars import Bar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["PAGE", "STORED", "render", "stored"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "performance.md"
STORED = ROOT / "benchmarks" / "figures.json"

HEAD = """\
# Performance

The output of `make bench` on one machine, which also wrote this page. The documentation has no other figures. A figure
is a ratio to a peer, or to the least code that could do the same. Both were measured in the same run, in rounds that
take turns, so ratios hold on other machines where times do not. *bar* is the limit of a figure, *—* means that it has
none. `make bench-check` measures again, and fails if a figure is 1.3 times worse than here, twice in a row.
"""

NOT_MEASURED = """\
## Not measured

- Anything on macOS, Windows, uvloop, PyPy or a free-threaded Python, or on another machine than the one below.
- Days: the longest runs are those of `make soak` (half an hour) and of `benchmarks._observe_dashboard` (as long as
  requested).
- A network: NATS, PostgreSQL and the clients of webhooks are on the same machine, over loopback.
- Disks other than the one below: durable commits wait for the disk, and their ratios depend on it.
- watchexec, `uvicorn --reload` and the command of watchfiles: their restarts are compared by behaviour
  ([comparison](../explanation/comparison.md)), not by time.
"""


def stored() -> dict[str, Any]:
    """Return the figures of the last complete run."""
    found: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return found


def render(run: Mapping[str, Any]) -> str:
    """Return the page about ``run``."""
    parts = [HEAD, *(_section(name, module) for name, module in run["modules"].items()), NOT_MEASURED, *_absent(run)]
    return "\n".join([*parts, *_surroundings(run)])


def _section(name: str, module: Mapping[str, Any]) -> str:
    source = ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8"))
    about = (ast.get_docstring(source) or "").replace("``", "`")
    bars: Mapping[str, str] = import_module(f"benchmarks.{name}").BARS
    rows = (_row(figure, value, bars.get(figure, "printed")) for figure, value in module["figures"].items())
    table = "\n".join(["| figure | measured | bar | |", "| --- | --- | --- | --- |", *rows])
    return f"## {name}\n\n{about}\n\n{table}\n"


def _row(figure: str, value: object, words: str) -> str:
    met = Bar.read(words).met(value) if isinstance(value, int | float) else None
    verdict = {True: "met", False: "**missed**", None: ""}[met]
    return f"| `{figure}` | {_shown(value)} | {'—' if words == 'printed' else words} | {verdict} |"


def _shown(value: object) -> str:
    match value:
        case None:
            return "not measured"
        case dict():
            return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
        case []:
            return "none"
        case float() | int() if abs(value) >= 1000:  # where digits need grouping
            return f"{value:,.0f}"
        case float():
            return f"{value:.3g}"
        case _:
            return str(value)


def _absent(run: Mapping[str, Any]) -> Iterator[str]:
    listed = [f"- {name}: {line}" for name, module in run["modules"].items() for line in module["missing"]]
    if listed:
        yield "\n".join(["In this run also:\n", *listed, ""])


def _surroundings(run: Mapping[str, Any]) -> Iterator[str]:
    yield "## The machine and the versions\n"
    busy = ", ".join(f"{name} {module['load']}" for name, module in run["modules"].items())
    listed = run["machine"] | {"date": run["date"], "load average before each module": busy}
    yield "\n".join(f"- {name}: {value}" for name, value in listed.items()) + "\n"
    yield ", ".join(f"{name} {version}" for name, version in run["versions"].items()) + ".\n"
