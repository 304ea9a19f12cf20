"""Compares the versions in ``uv.lock`` with the advisories of PyPI: ``python -m tools.audit [SOURCE]``.

``SOURCE`` is the URL of PyPI's JSON API, which lists the vulnerabilities of each release. The exit status is 0 if no
version has an advisory, 1 if one has, and 2 if the source could not be reached. It stops at the first request that
fails, because an incomplete audit proves nothing.
"""

from __future__ import annotations

import json
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["advisories", "locked", "main"]

LOCK = Path(__file__).parents[1] / "uv.lock"
SOURCE = "https://pypi.org/pypi"
SECONDS = 20


def main(argv: Sequence[str]) -> int:
    """Print the advisories for all locked versions, and return the exit status."""
    source = argv[0] if argv else SOURCE
    packages = locked(LOCK.read_text(encoding="utf-8"))
    found = 0
    for name, version in packages:
        try:
            lines = list(advisories(source, name, version))
        except (OSError, ValueError) as error:
            print(f"not audited: {source} has no advisories for {name} {version}: {error}", file=sys.stderr)
            return 2
        print("\n".join(lines), end="\n" if lines else "")
        found += len(lines)
    print(f"{LOCK.name}: {len(packages)} versions, {found} advisories")
    return 1 if found else 0


def locked(text: str) -> list[tuple[str, str]]:
    """Return the name and version of each package from a registry in the lock file ``text``."""
    packages: list[dict[str, Any]] = tomllib.loads(text)["package"]
    return [(each["name"], each["version"]) for each in packages if "registry" in each["source"]]


def advisories(source: str, name: str, version: str) -> Iterator[str]:
    """Yield a line for each advisory for this version that was not withdrawn.

    Raises:
        OSError: if the source cannot be reached, or does not know the version.
        ValueError: if its answer is not JSON with a list of vulnerabilities.
    """
    url = f"{source}/{name}/{version}/json"  # the developer's URL
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            release = json.load(answer)
    except HTTPError as error:
        error.close()
        raise
    if not isinstance(release, dict) or "vulnerabilities" not in release:
        raise ValueError("the answer has no list of vulnerabilities")
    for each in release["vulnerabilities"]:
        if not each.get("withdrawn"):
            fixed = ", ".join(each.get("fixed_in") or ["no version"])
            yield f"{name} {version}: {each['id']}, fixed in {fixed}: {each.get('link', '')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
