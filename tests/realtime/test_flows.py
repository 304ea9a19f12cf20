"""A program that exits during a flow continues that flow when it starts again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from lifecycle.errors import JournalError
from lifecycle.flows import Flows, linear, task
from tests.programs import Running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PROGRAM = """
import asyncio
from pathlib import Path

from lifecycle import Flows, current_task, hooks, linear, new_interactive_router, run, task

hooks.flow_changed.connect(lambda run, change: print(change.name, change.new, change.reason, flush=True))

@task
def first(): ...

@task
async def second():
    print("with", current_task().key, flush=True)
    while not Path("go").exists():
        await asyncio.sleep(0.02)

@task
def third(): ...

steps = linear("steps", first, second, third)
flows = Flows("app.db", stop_timeout=0.1)
repl = new_interactive_router(suspend=flows)

async def main():
    async with flows:
        await flows.recover(steps)
        await flows.start(steps, id="s-1")
        print("all done", flush=True)

run(main, repl)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Running]]:
    programs: list[Running] = []
    (tmp_path / "program.py").write_text(PROGRAM)

    def started() -> Running:
        programs.append(Running("program.py", cwd=tmp_path, keyboard=True, env={"PYTHONUNBUFFERED": "1"}))
        return programs[-1]

    yield started
    for program in programs:
        program.close()


def test_sigterm_suspends_a_flow_and_the_next_start_resumes_it(start: Callable[[], Running], tmp_path: Path) -> None:
    program = start()
    program.until("with s-1/second/1")
    said = program.stop(signal.SIGTERM)
    assert "second PENDING cancelled" in said
    assert "steps SUSPENDED" in said

    (tmp_path / "go").touch()
    said = start().rest()
    assert "with s-1/second/1" in said
    assert "first" not in said
    assert "third SUCCESS" in said
    assert "all done" in said


def test_terminate_at_the_prompt_lets_the_running_task_end(start: Callable[[], Running], tmp_path: Path) -> None:
    program = start()
    program.until("with s-1/second/1")
    program.type("terminate")
    program.until("steps SUSPENDING")
    (tmp_path / "go").touch()
    said = program.rest()
    assert "second SUCCESS" in said
    assert "steps SUSPENDED" in said
    assert "third" not in said

    said = start().rest()
    assert "second" not in said
    assert "all done" in said


def test_a_flow_suspended_at_the_prompt_can_be_resumed_there(start: Callable[[], Running], tmp_path: Path) -> None:
    program = start()
    program.until("with s-1/second/1")
    program.type("suspend")
    program.until("steps SUSPENDING")
    (tmp_path / "go").touch()
    program.until("steps SUSPENDED")
    program.type("resume")
    program.until("third SUCCESS")
    program.until("all done")
    program.rest()


def test_a_killed_program_resumes_its_flow_on_the_next_start(start: Callable[[], Running], tmp_path: Path) -> None:
    program = start()
    program.until("with s-1/second/1")
    program.process.kill()
    program.rest(-signal.SIGKILL)

    (tmp_path / "go").touch()
    said = start().rest()
    assert "second RUNNING restarted" in said
    assert "with s-1/second/1" in said
    assert "all done" in said


ACCEPTED = """
import asyncio, os, signal

from lifecycle import Flows, linear, task

@task
async def work():
    await asyncio.sleep(60)

async def main():
    async with Flows("app.db") as flows:
        await flows.start(linear("f", work), id="o-1").stored()
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_flow_that_is_stored_survives_kill_9_at_once(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ACCEPTED, cwd=tmp_path)
    assert await process.wait() == -signal.SIGKILL
    async with Flows(tmp_path / "app.db") as flows:
        [run] = await flows.recover(linear("f", task(lambda: 1, name="work")))
        assert await run == {"work": 1}


STUCK = """
import threading

from lifecycle import Flows, linear, run, task

@task
def work():
    print("working", flush=True)
    threading.Event().wait()

async def main():
    async with Flows("app.db", stop_timeout=0.0) as flows:
        await flows.start(linear("f", work), id="s-1")

run(main)
"""


async def test_a_plain_task_that_never_returns_does_not_keep_the_program_from_ending(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    program = Running("stuck.py", cwd=tmp_path, keyboard=False, env={})
    try:
        program.until("working")
        assert "was cancelled but did not finish" in program.stop(signal.SIGTERM)
    finally:
        program.close()
    async with Flows(tmp_path / "app.db") as flows:
        [run] = await flows.recover(linear("f", task(lambda: 1, name="work")))
        assert await run == {"work": 1}


async def test_a_flow_in_a_file_that_was_deleted_does_not_pass_for_done(tmp_path: Path) -> None:
    flow = linear("f", task(lambda: 1, name="work"))
    async with Flows(tmp_path / "app.db") as flows:
        await flows.start(flow)
        for each in tmp_path.glob("app.db*"):
            if each.is_file():
                each.unlink()
        with pytest.raises(JournalError, match="was deleted or replaced while it was open"):
            await flows.start(flow)


CTRL_C = """
import subprocess
import sys

from lifecycle import Flows, run
from lifecycle.flows import step, undo, workflow

def refund():
    print("refunded", flush=True)

def build(own_session):
    command = "print('building', flush=True); open(sys.argv[1]).read()"
    argv = [sys.executable, "-c", f"import sys; {command}", "go"]
    subprocess.run(argv, check=True, start_new_session=own_session)
    print("built", flush=True)

@workflow
async def deploy(own_session):
    undo(refund)
    await step(build, own_session)

async def main():
    async with Flows("app.db") as flows:
        await flows.start(deploy, bool(sys.argv[1:]), id="one")
        print("all done", flush=True)

run(main)
"""


@pytest.mark.parametrize("own_session", [(), ("own session",)], ids=["same-session", "own-session"])
def test_ctrl_c_does_not_fail_a_step_whose_command_receives_it_too(
    tmp_path: Path, own_session: tuple[str, ...]
) -> None:
    (tmp_path / "program.py").write_text(CTRL_C)
    os.mkfifo(tmp_path / "go")

    def program() -> Running:
        return Running("program.py", *own_session, cwd=tmp_path, env={"PYTHONUNBUFFERED": "1"})

    with closing(program()) as first:
        first.until("building")
        os.killpg(first.process.pid, signal.SIGINT)
        if own_session:
            (tmp_path / "go").write_text("")
            first.until("built")
        said = first.rest()
    assert "refunded" not in said
    with closing(program()) as second:
        if not own_session:
            second.until("building")
            (tmp_path / "go").write_text("")
            second.until("built")
        second.until("all done")
        said = second.rest()
    assert "refunded" not in said
