"""The bill of materials of a release with every extra, in the CycloneDX format."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tools.release.contents import VENDOR

if TYPE_CHECKING:
    from pathlib import Path

    from tools.release.environments import Environment

__all__ = ["write_bill"]


def write_bill(room: Environment, wheel: Path) -> str:
    """Write the bill next to ``wheel``: the packages in ``room``, and the page's third-party files.

    Raises:
        AssertionError: if the result does not match the format.
    """
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    bill = _installed(room)
    bill["components"] += [_vendored(json.loads(each.read_text())) for each in sorted(VENDOR.glob("*/package.json"))]
    text = json.dumps(bill, indent=2) + "\n"
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert error is None, error
    place = wheel.with_suffix(".cdx.json")
    place.write_text(text)
    return f"{place.name}, {len(bill['components'])} components"


def _installed(room: Environment) -> dict[str, Any]:
    words = [
        "environment",
        "--pyproject",
        "pyproject.toml",
        "--mc-type",
        "library",
        "--output-reproducible",
        room.python,
    ]
    done = subprocess.run([sys.executable, "-m", "cyclonedx_py", *words], check=True, text=True, stdout=subprocess.PIPE)
    bill: dict[str, Any] = json.loads(done.stdout)
    return bill


def _vendored(package: dict[str, Any]) -> dict[str, Any]:
    group, _, name = str(package["name"]).rpartition("/")
    purl = f"pkg:npm/{group.replace('@', '%40')}{'/' if group else ''}{name}@{package['version']}"
    component = {
        "bom-ref": purl,
        "type": "library",
        "name": name,
        "version": package["version"],
        "licenses": [{"license": {"id": package["license"], "acknowledgement": "declared"}}],
        "purl": purl,
    }
    return {**component, "group": group} if group else component
