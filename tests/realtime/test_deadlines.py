"""Real programs that do not exit in time, and a program that adopts all orphaned processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 20.0

PRELUDE = """
import asyncio, os, signal, subprocess, sys, threading, time
from lifecycle import Router, run
from lifecycle.runtime import current, go, lifetime, on_shutdown, shutdown

def say(*words):
    print(*words, flush=True)
"""


def result_of(code: str, *prefix: str) -> tuple[int, str, str]:
    script = PRELUDE + textwrap.dedent(code)
    ended = subprocess.run(
        [*prefix, sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


HANGS = {
    "blocked loop": """
        async def main():
            os.kill(os.getpid(), signal.SIGTERM)
            while True: pass
        """,
    "hook that blocks": """
        async def main():
            on_shutdown(lambda: time.sleep(1000))
        """,
    "hook that waits": """
        async def main():
            on_shutdown(asyncio.Event().wait)
        """,
    "task that ignores its cancellation": """
        async def stubborn():
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    pass
        async def main():
            go(stubborn)
            await asyncio.sleep(0)
        """,
    "main that ignores its cancellation": """
        async def main():
            shutdown()
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    pass
        """,
    "thread of the default executor": """
        async def main():
            begun = threading.Event()
            go(lambda: begun.set() or time.sleep(1000))
            while not begun.is_set():
                await asyncio.sleep(0.01)
        """,
}


@pytest.mark.parametrize("how", HANGS)
def test_the_deadline_ends_any_program_with_status_1(how: str) -> None:
    status, _, err = result_of(textwrap.dedent(HANGS[how]) + "\nrun(main, exit_timeout=0.5)\n")
    assert status == 1
    assert "forced to exit: not stopped within 0.5 s" in err


def test_without_stderr_a_forced_exit_writes_into_no_file_that_has_its_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "database"
    code = textwrap.dedent(f"""
        file = open({str(path)!r}, "wb")
        assert file.fileno() == 2
        async def main():
            shutdown()
            while True: pass
        run(main, exit_timeout=0.1)
    """)
    assert result_of(code, "sh", "-c", 'exec "$@" 2>&-', "sh")[0] == 1
    assert path.read_bytes() == b""


@pytest.mark.parametrize(("presses", "status"), [(1, 0), (2, 1)])
def test_ctrl_c_stops_and_forces_a_program_where_no_thread_can_be_started(presses: int, status: int) -> None:
    code = f"""
        import _thread
        def refuse(*_):
            raise RuntimeError("can't start new thread")
        async def main():
            on_shutdown(lambda: say("hook"))
            _thread.start_new_thread = refuse
            for _ in range({presses}):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.1)  # two within 50 ms would be one press
            await asyncio.sleep(1000)
        run(main)
    """
    found, out, _ = result_of(code)
    assert (found, out) == (status, "hook\n" if presses == 1 else "")


def test_ctrl_c_stops_a_program_that_has_closed_its_stderr() -> None:
    code = """
        async def main():
            on_shutdown(lambda: say("hook"))
            sys.stderr.close()
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(1000)
        run(main)
        say("ended")
    """
    assert result_of(code)[:2] == (0, "hook\nended\n")


def test_the_deadline_holds_for_a_lifetime_in_a_foreign_loop() -> None:
    status, _, err = result_of("""
        async def main():
            async with lifetime() as life:
                life.deadline.exit_timeout = 0.3
                life.shutdown()
                time.sleep(1000)
        asyncio.run(main())
        """)
    assert status == 1
    assert "not stopped within 0.3 s" in err


@pytest.mark.parametrize("how", ["hook that blocks", "thread of the default executor"])
def test_the_stacks_are_dumped_once_also_where_the_loop_is_blocked_or_over(how: str) -> None:
    program = textwrap.dedent(HANGS[how]) + "\nrun(main, shutdown_timeout=0.2, exit_timeout=3)\n"
    status, _, err = result_of(program)
    assert status == 1
    assert err.count("not stopped after 0.2 s") == 1
    assert "Thread 0x" in err
    assert 'File "<string>"' in err


def test_a_program_that_ends_in_time_leaves_nothing_running() -> None:
    status, out, err = result_of("""
        async def main():
            go(asyncio.sleep, 1000)
            await asyncio.sleep(0)
            return "done"
        say(run(main, exit_timeout=2))
        time.sleep(2.2)
        say(threading.active_count())
        """)
    assert (status, out, err) == (0, "done\n1\n", "")


def test_the_deadline_is_announced() -> None:
    status, out, _ = result_of("""
        from lifecycle import hooks
        hooks.forced_exit.connect(lambda sender, status, reason: say(status, reason))
        async def main():
            on_shutdown(lambda: time.sleep(1000))
        run(main, exit_timeout=0.3)
        """)
    assert status == 1
    assert out == "1 not stopped within 0.3 s\n"


# -- as PID 1 -----------------------------------------------------------------------------------------------------


def _can_be_pid_1() -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


needs_pid_1 = pytest.mark.skipif(
    not _can_be_pid_1(), reason="needs `unshare --pid --fork --mount-proc`, which takes root"
)
AS_PID_1 = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@needs_pid_1
def test_as_pid_1_it_reaps_orphans_but_not_children_that_others_wait_for() -> None:
    status, out, err = result_of(
        """
        def zombies():
            found = set()
            for name in filter(str.isdigit, os.listdir("/proc")):
                with open(f"/proc/{name}/stat") as file:
                    if file.read().rpartition(")")[2].split()[0] == "Z":
                        found.add(int(name))
            return found

        async def main():
            assert os.getpid() == 1
            own = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
            subprocess.run(["sh", "-c", "sleep 0.1 & sleep 0.2 & echo orphans"])
            # Each is one for a second at least, but not all need be so at the same time.
            seen = set()
            while len(seen) < 3:
                seen |= zombies()
                await asyncio.sleep(0.01)
            while zombies() != {own.pid}:
                await asyncio.sleep(0.01)
            await asyncio.sleep(2.5)
            process = await asyncio.create_subprocess_exec("sh", "-c", "exit 5")
            say(own.wait(), await process.wait(), *zombies())
        run(main)
        """,
        *AS_PID_1,
    )
    assert (status, out, err) == (0, "orphans\n7 5\n", "")


@needs_pid_1
def test_as_pid_1_it_still_ends_on_signals() -> None:
    status, out, _ = result_of(
        """
        async def main():
            on_shutdown(lambda: say("hook", current().reason))
            subprocess.Popen(["sh", "-c", "kill -TERM 1"]).wait()
            await asyncio.sleep(1000)
        run(main)
        """,
        *AS_PID_1,
    )
    assert (status, out) == (0, "hook terminate\n")


def test_only_pid_1_touches_children() -> None:
    assert os.getpid() != 1
    status, out, _ = result_of("""
        async def main():
            return signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
        say(run(main))
        """)
    assert (status, out) == (0, "True\n")
