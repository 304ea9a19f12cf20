"""The commands of examples/two_machines/README.md produce the documented results, in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.programs import LIMIT, Running, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]
README = ROOT / "examples" / "two_machines" / "README.md"

#: Replaces itself with the given command.
BECOME = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"

#: Environment variables. The search path contains the directories of `python` and `nats-server`.
ENV = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def start() -> Iterator[Callable[[str], Running]]:
    programs: list[Running] = []

    def started(command: str) -> Running:
        programs.append(Running("-c", BECOME, *shlex.split(command), cwd=ROOT, keyboard=True, env=ENV))
        return programs[-1]

    yield started
    for program in reversed(programs):
        program.close()


def commands(**changes: str) -> list[list[str]]:
    """Return each block's commands, with this test's values in place of the reader's."""
    text = README.read_text(encoding="utf-8")
    for old, new in changes.items():
        text = text.replace(old, new)
    return [
        re.findall(r"^\$ (.*)$", block, re.MULTILINE) for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    ]


def test_two_processes_share_deployments_and_one_runs_the_job(start: Callable[[str], Running], tmp_path: Path) -> None:
    [(bus, first, second), *_] = commands(**{"/tmp/bus": str(tmp_path), "4222": str(free_port())})
    start(bus).until("Server is ready")
    alpha = start(first)
    alpha.until("alpha: leads")
    alpha.until("alpha: run ")
    beta = start(second)
    both_deploy(alpha, beta, "7")
    alpha.type("quit")
    beta.until("beta: run ")
    beta.type("quit")
    each_run_was_one_machines(alpha.rest(), beta.rest())


@pytest.mark.engine("ip")
def test_two_machines_go_on_when_the_cable_between_them_is_back(
    start: Callable[[str], Running], machines: list[list[str]]
) -> None:
    (bus, first, second), [pull], [plug] = machines
    start(bus).until("Server is ready")
    beta = start(first)
    beta.until("beta: run ")
    alpha = start(second)
    both_deploy(alpha, beta, "7")
    run(pull)
    alpha.until("alpha: run ")
    run(plug)
    both_deploy(alpha, beta, "8")
    alpha.type("quit")
    beta.until("beta: run ")
    beta.type("quit")
    assert "beta: leads no longer: it could not be renewed in time" in beta.rest()
    each_run_was_one_machines(alpha.text, beta.text)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[list[str]]]:
    """Yield the commands for two machines, both of them simulated on this machine."""
    changes = {"machine-": f"lifecycle-{os.getpid()}-", "/tmp/bus": str(tmp_path)}
    _, make, *use, delete = commands(**changes)
    try:
        for command in make:
            run(command)
        yield use
    finally:
        for command in delete:
            subprocess.run(shlex.split(command), capture_output=True, timeout=LIMIT, check=False)


def run(command: str) -> None:
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=LIMIT, check=False)
    if "not permitted" in done.stderr:
        pytest.skip(f"network namespaces are not allowed here: {done.stderr.strip()}")
    assert done.returncode == 0, (command, done.stderr)


def both_deploy(asked: Running, other: Running, version: str) -> None:
    """Send requests until both machines have deployed, since readiness is not visible from outside."""
    asked.answers(lambda: asked.type(f"deploy {version}"), f": version {version} from ")
    other.until(f": version {version} from ")


def each_run_was_one_machines(first: str, last: str) -> None:
    """Check that no step ran twice, and that the last machine continued after the other machine's last step."""
    runs = [[int(count) for count in re.findall(r": run (\d+) of the job", text)] for text in (first, last)]
    assert not set(runs[0]) & set(runs[1])
    assert runs[0][-1] < runs[1][-1]
