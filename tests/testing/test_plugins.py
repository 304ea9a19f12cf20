"""Users' projects whose tests run under pytest-asyncio, pytest-aiohttp or anyio's plugin, as separate processes."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.test_docs import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs/howto/testing.md"
# The ```toml block is pytest's configuration.
[CONFIGURATION] = blocks(PAGE, "toml")
FILES = {block.mark.removeprefix("file: "): block.text for block in blocks(PAGE, "python")}
EVENTS, APP = FILES["test_events.py"], FILES["test_app.py"]

SCOPE = "asyncio_default_fixture_loop_scope=function"
STRICT = f"import pytest_asyncio\n{EVENTS}".replace("@pytest.f", "@pytest_asyncio.f")
ANYIO = f"""{EVENTS}

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""
REAL_TIME = """

async def test_without_clock():
    assert type(asyncio.get_running_loop()).__name__ == "_UnixSelectorEventLoop"
"""


class Project:
    """A directory with a configuration and tests."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def run(self, plugins: str, *options: str, **files: str) -> str:
        """Run ``files`` with these plugins for async tests and these options, and return pytest's output."""
        for name, text in files.items():
            (self.where / f"{name}.py").write_text(text)
        # Hypothesis has no async tests, and its plugin takes a third of the time that pytest needs to start.
        others = {"asyncio", "aiohttp", "anyio", "cacheprovider", "hypothesispytest", "xdist"} - set(plugins.split())
        words = [*(f"-pno:{plugin}" for plugin in others), *(f"-o{option}" for option in options)]
        words += [] if (self.where / "pyproject.toml").exists() else ["-plifecycle.testing.plugin"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-Werror", *words],
            cwd=self.where, capture_output=True, text=True, timeout=50, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def passed(number: int, output: str) -> None:
    assert re.fullmatch(rf"{number} passed in \S+s", output.splitlines()[-1]), output


def test_the_page_works_with_the_configuration_that_it_shows(project: Project) -> None:
    (project.where / "pyproject.toml").write_text(CONFIGURATION.text)
    passed(4, project.run("asyncio aiohttp", test_events=EVENTS + REAL_TIME, test_app=APP))


@pytest.mark.parametrize(
    ("plugin", "options", "text"),
    [
        ("asyncio", ["asyncio_mode=strict", SCOPE], f"{STRICT}{REAL_TIME}\npytestmark = pytest.mark.asyncio"),
        ("anyio", ["anyio_mode=auto"], ANYIO.replace("pytestmark", "_") + REAL_TIME),
        ("anyio", [], ANYIO + REAL_TIME),
        ("anyio", [], ANYIO.replace("def anyio_backend", "def another") + REAL_TIME),
    ],
    ids=["asyncio-strict", "anyio-auto", "anyio", "anyio-without-a-backend"],
)
def test_the_tests_of_the_page_work_with(plugin: str, options: list[str], text: str, project: Project) -> None:
    passed(3, project.run(plugin, *options, test_events=text))


MIXED = """
import asyncio
import pytest
from lifecycle.testing import VirtualLoop

class Loop(asyncio.SelectorEventLoop): ...

@pytest.mark.asyncio
async def test_with_clock(clock):
    await clock.advance(3600)
    assert type(asyncio.get_running_loop()) is VirtualLoop

@pytest.mark.asyncio
async def test_without_clock():
    assert type(asyncio.get_running_loop()).__name__ == "Loop"

@pytest.mark.anyio
async def test_of_anyio(clock, anyio_backend_name):
    await clock.advance(3600)
    assert anyio_backend_name == "asyncio"

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": Loop})])
async def test_with_a_backend_of_its_own(clock, anyio_backend):
    with pytest.raises(RuntimeError, match="a Clock needs a VirtualLoop, but this code runs in <Loop"):
        await clock.advance(3600)
"""

CONFTEST = """
import pytest

def pytest_asyncio_loop_factories(item):
    return {"own": item.module.Loop}
"""


def test_both_plugins_and_loops_of_the_project(project: Project) -> None:
    passed(4, project.run("asyncio anyio", SCOPE, test_mixed=MIXED, conftest=CONFTEST))


CLIENT = """
import asyncio
from aiohttp import web
from lifecycle import Event, Router
from lifecycle.testing import running

async def test_client_in_virtual_time(aiohttp_client, clock, recorder):
    async def deploy(request):
        await (await router.emit(Event("deploy")))
        return web.Response(text=str(clock.time()))

    router, app = Router(), web.Application()
    router.handle("deploy", recorder, debounce=100)
    app.router.add_post("/", deploy)
    async with running(router):
        client = await aiohttp_client(app)
        async with client.post("/") as answer:
            assert float(await answer.text()) >= 100
    assert recorder.topics == ["deploy"]
"""


def test_the_client_of_pytest_aiohttp_in_virtual_time(project: Project) -> None:
    passed(1, project.run("asyncio aiohttp", "asyncio_mode=auto", SCOPE, test_client=CLIENT))
