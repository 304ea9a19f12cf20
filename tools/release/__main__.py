"""Build the release, run all checks, and print a table of results. The exit status is 1 if a check failed.

``python -m tools.release [python ...]`` uses the given Python interpreters, by default every installed version from
3.11. The files stay in ``dist/``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tools.release.bill import write_bill
from tools.release.contents import check_sdist, check_wheel
from tools.release.environments import Environment, lowest, pythons
from tools.release.programs import EXTRAS, FOR_TESTS, SMOKE, WITHOUT

DIST = Path("dist")

#: The tests that run with the lowest dependency versions. They are quick, and use most of the dependencies' interfaces.
QUICK = ("sources", "observe", "bridges", "cli")

#: A check raises if something is wrong. Otherwise its result is printed.
Check: TypeAlias = Callable[[], str]


def main(names: list[str]) -> int:
    """Build the release and run all checks in order. If the build fails, skip the checks."""
    table = Table()
    if not table.row("build", "sdist and wheel", build):
        return table.show()
    wheel, sdist = (next(DIST.glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    table.row("twine", "check --strict", lambda: said("twine", "check", "--strict", wheel, sdist))
    table.row("contents", wheel.name, lambda: check_wheel(wheel))
    table.row("contents", sdist.name, lambda: check_sdist(sdist))
    found = pythons(names)
    with tempfile.TemporaryDirectory(prefix="release-") as directory:
        for version, python in found.items():
            for kind, archive in (("wheel", wheel), ("sdist", sdist)):
                room = Environment(python, Path(directory) / f"{version}-{kind}")
                table.row(f"Python {version}", kind, partial(smoke, room, archive))
        version, python = next(iter(found.items()))
        for name in (*EXTRAS, "all"):
            room = Environment(python, Path(directory) / name)
            table.row(f"extra, {version}", name, partial(extra, room, wheel, name))
        table.row("bill", "CycloneDX", lambda: write_bill(Environment(python, Path(directory) / "all"), wheel))
        room = Environment(python, Path(directory) / "lowest")
        table.row(f"lowest, {version}", "every extra", lambda: lowest(room, wheel, [f"tests/{each}" for each in QUICK]))
    return table.show()


class Table:
    """The checks and their results so far."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str, str, str]] = []
        self._failed = False

    def row(self, what: str, which: str, check: Check) -> bool:
        """Run ``check`` and record its result."""
        print(f"{what}: {which} …", flush=True)
        began = time.monotonic()
        try:
            words = check()
        except (AssertionError, subprocess.CalledProcessError) as error:
            words = f"FAILED: {str(error) or repr(error)}\n{getattr(error, 'output', None) or ''}"
            print(words, file=sys.stderr)
            self._failed = True
        self._rows.append((what, which, f"{time.monotonic() - began:.0f} s", words.partition("\n")[0]))
        return not words.startswith("FAILED")

    def show(self) -> int:
        """Print all results, and return the exit status."""
        widths = [max(len(row[column]) for row in self._rows) for column in range(4)]
        print()
        for row in self._rows:
            print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
        return self._failed


def build() -> str:
    """Build the sdist, and build the wheel from the sdist, as users of the sdist do."""
    shutil.rmtree(DIST, ignore_errors=True)
    said("build")
    return ", ".join(f"{each.name} ({each.stat().st_size // 1024} kB)" for each in sorted(DIST.iterdir()))


def said(module: str, *words: str | Path) -> str:
    """Return the last line of output from a tool in this environment."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.stdout.strip().rpartition("\n")[2]


def smoke(room: Environment, archive: Path) -> str:
    """Check that, without any extra, the package can be imported, prints its version, and runs a small program."""
    room.install(str(archive))
    version = room.run("-m", "lifecycle", "--version")
    assert archive.name.startswith(version.replace("lifecycle ", "lifecycle_control-")), version
    assert room.command("lifecycle", "--help") == room.command("lifecycle-control", "--help")
    words = room.run("-W", "error", "-c", SMOKE)
    # Without an extra, its features are missing. Each error must name the extra.
    for name, program in EXTRAS.items():
        printed = room.run("-c", program, fails=None)
        assert WITHOUT.get(name, f"lifecycle-control[{name}]") in printed, f"without {name}: {printed}"
    return words


def extra(room: Environment, wheel: Path, name: str) -> str:
    """Check that the features of each extra work without other extras, and that all extras work together."""
    room.install(f"{wheel.resolve()}[{name}]")
    for each in EXTRAS.keys() - FOR_TESTS if name == "all" else [name]:
        printed = room.run("-c", EXTRAS[each])
        assert printed.endswith("works"), f"with {each}: {printed}"
    return room.packages()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
