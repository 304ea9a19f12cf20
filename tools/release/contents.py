"""The expected contents of a wheel and an sdist: the tracked files intended for each, and nothing else."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

__all__ = ["VENDOR", "check_sdist", "check_wheel"]

#: Third-party files in the dashboard page.
VENDOR = Path("lifecycle/observe/page/vendor")

#: Files in the wheel. Licences of third-party files are included as well.
NEEDED = frozenset(
    {
        "lifecycle/py.typed",
        "lifecycle/__init__.pyi",
        "lifecycle/observe/page/index.html",
        f"{VENDOR}/lit-html/lit-html.js",
        f"{VENDOR}/lit-html/LICENSE",
        f"{VENDOR}/dagre/dagre.esm.js",
        f"{VENDOR}/dagre/LICENSE",
    }
)

#: Files in the wheel's metadata directory, next to ``licenses/``.
METADATA = frozenset({"METADATA", "WHEEL", "RECORD", "entry_points.txt"})

#: Licences of the package and of the third-party files in it.
LICENSES = frozenset({"LICENSE", "THIRD_PARTY.md"})

#: Tracked files that only developers of this repository need.
AT_HOME = frozenset({".ci/run", "uv.lock"})


def check_wheel(wheel: Path) -> str:
    """Check that the wheel contains the package's tracked files, its metadata and licences, and nothing else.

    Raises:
        AssertionError: if files are missing or should not be there; the message lists them.
    """
    with zipfile.ZipFile(wheel) as archive:
        there = frozenset(name for name in archive.namelist() if not name.endswith("/"))
    meta = "-".join(wheel.name.split("-")[:2]) + ".dist-info/"
    licences = {f"{meta}licenses/{name}" for name in LICENSES | {name for name in NEEDED if name.endswith("LICENSE")}}
    _compare(there, _tracked("lifecycle") | {meta + name for name in METADATA} | licences)
    assert there >= NEEDED, f"missing: {sorted(NEEDED - there)}"
    return f"{len(there)} files"


def check_sdist(sdist: Path) -> str:
    """Check that the sdist contains its tracked files and the files that the builder adds, and nothing else.

    Raises:
        AssertionError: if files are missing or should not be there; the message lists them.
    """
    root = sdist.name.removesuffix(".tar.gz") + "/"
    with tarfile.open(sdist) as archive:
        there = frozenset(member.name.removeprefix(root) for member in archive if member.isfile())
    _compare(there, (_tracked() | {"PKG-INFO"}) - AT_HOME)
    return f"{len(there)} files"


def _tracked(folder: str = ".") -> frozenset[str]:
    listed = subprocess.run(["git", "ls-files", "-z", folder], check=True, text=True, stdout=subprocess.PIPE)
    return frozenset(filter(None, listed.stdout.split("\0")))


def _compare(there: frozenset[str], wanted: frozenset[str]) -> None:
    assert there == wanted, f"missing: {sorted(wanted - there)}; not to be there: {sorted(there - wanted)}"
