"""`lifecycle run` finds components, and reports which components it cannot find."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli.output import UsageError
from lifecycle.cli.run import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = """
import asyncio
from lifecycle.control import Router

router = Router("r")

async def main():
    pass

class Service:
    async def run(self):
        pass

    async def __call__(self):
        pass

service = Service()

def plain():
    return main

def several():
    return [main, router]

def wrong():
    return 1

number = 1
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "loadme.py").write_text(MODULE)
    (tmp_path / "breaks.py").write_text("import no_such_thing_at_all\n")
    (tmp_path / "refuses.py").write_text("raise ValueError('not on a Sunday')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    for name in ("loadme", "breaks", "refuses"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("attribute", ["main", "router", "service", "service.run"])
def test_components_are_found(attribute: str) -> None:
    assert len(load(f"loadme:{attribute}")) == 1


@pytest.mark.parametrize(("attribute", "count"), [("plain", 1), ("several", 2)])
def test_a_factory_makes_one_or_several(attribute: str, count: int) -> None:
    assert len(load(f"loadme:{attribute}", factory=True)) == count


@pytest.mark.parametrize(
    ("target", "factory", "said"),
    [
        ("loadme", False, "must have the form MODULE:ATTRIBUTE"),
        ("loadme:", False, "must have the form MODULE:ATTRIBUTE"),
        (":main", False, "must have the form MODULE:ATTRIBUTE"),
        ("no_such_module:main", False, "no module 'no_such_module'"),
        ("loadme.sub:main", False, "no module 'loadme.sub'"),
        ("..loadme:main", False, "expected a module name, such as app"),
        ("./loadme:main", False, "expected a module name, such as app"),
        ("loadme.py:main", False, r"omit \.py: loadme$"),
        ("loadme:mian", False, "has no 'mian'; available: main, router, service"),
        ("loadme:service.nothing", False, r"has no 'service\.nothing'"),
        ("loadme:number", False, "must be an async function, a router or a worker, got 1"),
        ("loadme:plain", False, "to call it and run its result, use --factory"),
        ("loadme:Service", False, "use --factory"),
        ("loadme:main", True, "remove --factory"),
        ("loadme:number", True, "must be a plain function, got 1"),
        ("loadme:wrong", True, "must return async functions, routers or workers, got 1"),
    ],
)
def test_targets_that_cannot_run_are_refused(target: str, factory: bool, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load(target, factory=factory)


def test_error_inside_the_module_passes() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_thing_at_all"):
        load("breaks:main")
    with pytest.raises(ValueError, match="not on a Sunday"):
        load("refuses:main")
