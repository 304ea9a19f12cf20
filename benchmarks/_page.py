"""Generates ``docs/reference/performance.md`` from the figures of the last complete run."""

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

`make bench` measured these figures on one machine and wrote this page. Most are ratios to another tool, or to minimal
code for the same task, measured in the same run. Ratios should therefore be similar on other machines. The limit of a
figure is in parentheses.
"""

NOT_MEASURED = """\
## Not measured

- Other machines, disks and systems. Durable commits depend on the disk.
- Runs of more than half an hour (`make soak`).
- Networks: all servers and clients are on one machine.
- Restart times of watchexec, which Debian does not package.
"""

#: Figures that are stored but not shown, because they are details of other figures.
HIDDEN = (
    "sizes",
    "cpu_microseconds_each",
    "dashboard_memory_growth_mib",
    "postgres_jobs_a_second",
    "raw_events_a_second",
    # On the page about scaling.
    "points",
)

#: Packages that are neither measured nor compared. Their versions are stored but not shown.
UNMEASURED = (
    "aiodocker",
    "alembic",
    "cryptography",
    "msgspec",
    "opentelemetry-api",
    "cronsim",
    "pathspec",
    "prompt-toolkit",
    "psutil",
    "python-dotenv",
    "pytest",
    "pytest-asyncio",
    "rich",
    "starlette",
)

SIGNS = {"at most ": "≤ ", "at least ": "≥ ", "under ": "< "}


def stored() -> dict[str, Any]:
    """Return the figures of the last complete run."""
    found: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return found


def render(run: Mapping[str, Any]) -> str:
    """Return the page text for ``run``."""
    parts = [HEAD, *(_section(name, module) for name, module in run["modules"].items()), NOT_MEASURED, *_absent(run)]
    return "\n".join([*parts, *_surroundings(run)])


def _section(name: str, module: Mapping[str, Any]) -> str:
    source = ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8"))
    about = (ast.get_docstring(source) or "").replace("``", "`")
    bars: Mapping[str, str] = import_module(f"benchmarks.{name}").BARS
    figures = module["figures"].items()
    rows = (_row(figure, value, bars.get(figure, "printed")) for figure, value in figures if figure not in HIDDEN)
    table = "\n".join(["| figure | measured (limit) |", "|---|---|", *rows])
    return f"## {name}\n\n{about}\n\n{table}\n"


def _row(figure: str, value: object, words: str) -> str:
    missed = isinstance(value, int | float) and Bar.read(words).met(value) is False
    bar = "" if words == "printed" else f" ({words})"
    for long, sign in SIGNS.items():
        bar = bar.replace(long, sign)
    return f"| `{figure}` | {_shown(value)}{bar}{' **missed**' if missed else ''} |"


def _shown(value: object) -> str:
    match value:
        case None:
            return "not measured"
        case dict():
            return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
        case []:
            return "none"
        case float() | int() if abs(value) >= 1000:  # large numbers need thousands separators
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
    listed = run["machine"] | {"date": run["date"]}
    yield "; ".join(f"{name}: {value}" for name, value in listed.items()) + ".\n"
    shown = (f"{name} {version}" for name, version in run["versions"].items() if name not in UNMEASURED)
    yield ", ".join(shown) + ".\n"
