"""A real program and all its processes: how it exits, what it prints, and that no process is left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pwd
import random
import resource
import signal
import sys
import textwrap
import threading
import traceback
from pathlib import Path
from typing import Any

import psutil
import pytest

from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers import ProcessWorker, Spec, Status, Supervisor, stop_and_wait
from lifecycle.workers.model import FINAL
from lifecycle.workers.stdio import Inherited
from tests.processes import alive, members
from tests.waiting import until

#: The loop of a program that waits for signals. If it were one long sleep, a signal that arrived just before it would
#: be handled only afterwards.
FOR_EVER = "all(not time.sleep(0.02) for _ in iter(int, 1))"

LIMIT = 20.0


class Output:
    """Receives a worker's output. A test can wait for one of the lines."""

    def __init__(self) -> None:
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._more = asyncio.Event()

    def __call__(self, line: str, stream: str) -> None:
        getattr(self, stream).append(line)
        self._more.set()

    async def line(self, beginning: str) -> str:
        """Wait for the first line on stdout with this prefix, and return the rest of it."""
        async with asyncio.timeout(LIMIT):
            while True:
                for line in self.stdout:
                    if line.startswith(beginning):
                        return line.removeprefix(beginning).strip()
                self._more.clear()
                await self._more.wait()


def python(code: str, *argv: str, name: str = "app", **how: Any) -> ProcessWorker:
    return ProcessWorker(name, sys.executable, "-u", "-c", textwrap.dedent(code), *argv, **how)


#: A leader and a child that exit on SIGTERM, a child that ignores SIGTERM, and a child that is stopped.
FAMILY = """
    import os, signal, time
    def child(what):
        pid = os.fork()
        if not pid:
            what()
            os.write(1, b"member %d\\n" % os.getpid())
            time.sleep(1000)
    child(lambda: None)
    child(lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    child(lambda: os.kill(os.getpid(), signal.SIGSTOP) if os.fork() else None)
    time.sleep(0.1)
    os.write(1, b"leader %d\\n" % os.getpid())
    {end}
"""


@pytest.mark.usefixtures("every_loop")
async def test_a_spec_sets_up_its_process(tmp_path: Path) -> None:
    output = Output()
    code = "import os; print('is', os.environ['COLOUR'], os.getcwd())"
    spec = Spec("app", [sys.executable, "-c", code], env={"COLOUR": "red"}, cwd=tmp_path, output=output)
    async with Supervisor("s", spec):
        assert await output.line("is") == f"red {tmp_path}"


async def test_the_start_timeout_of_a_spec_limits_its_start() -> None:
    spec = Spec("app", ["sleep", "100"], ready="line:never", start_timeout=0.1)
    with pytest.raises(WorkerFailed, match=r"'app' did not write a line that matches 'never' within 0\.1 s"):
        await Supervisor("s", spec).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as another user")
async def test_a_process_runs_as_its_user_with_its_groups_and_home() -> None:
    nobody = pwd.getpwnam("nobody")
    output = Output()
    command = 'echo "is $(id -u) $(id -g) $(id -G) $HOME $USER"; exec sleep 100'
    worker = ProcessWorker("app", "sh", "-c", command, user="nobody", output=output, env={"USER": "mine"})
    async with worker:
        groups = " ".join(map(str, os.getgrouplist("nobody", nobody.pw_gid)))
        assert await output.line("is") == f"{nobody.pw_uid} {nobody.pw_gid} {groups} {nobody.pw_dir} mine"
    assert worker.status is Status.STOPPED


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as another user")
async def test_a_program_that_its_user_may_not_execute_is_explained(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    with pytest.raises(WorkerFailed, match="cannot be executed by the user 'nobody'; check the permissions"):
        await ProcessWorker("app", program, user="nobody").start()


# -- exit statuses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "exit_code", "signum", "error"),
    [
        ("pass", "finished", 0, None, None),
        ("raise SystemExit(3)", "failed", 3, None, "'app' exited with status 3"),
        ("raise SystemExit(143)", "failed", 143, None, "exited with status 143"),
        ("import os; os.kill(os.getpid(), 9)", "failed", -9, 9, "'app' was killed by signal 9 (SIGKILL), perhaps"),
        ("import os; os.kill(os.getpid(), 15)", "failed", -15, 15, "was killed by signal 15 (SIGTERM)"),
    ],
)
async def test_a_process_that_ends_by_itself(
    code: str, status: str, exit_code: int, signum: int | None, error: str | None
) -> None:
    worker = python(code)
    await worker.start()
    exit_ = await worker.wait()

    assert (exit_.status, exit_.exit_code, exit_.signal) == (status, exit_code, signum)
    assert exit_.error is None if error is None else error in str(exit_.error)
    assert worker.state().exit_code == exit_code
    assert exit_.duration > 0


@pytest.mark.parametrize(
    ("reaction", "status"),
    [
        ("signal.SIG_DFL", "stopped"),
        ("lambda *_: os._exit(0)", "stopped"),
        ("lambda *_: os._exit(143)", "stopped"),
        ("lambda *_: os._exit(1)", "failed"),
        ("lambda *_: os._exit(130)", "failed"),
        ("lambda *_: os.kill(os.getpid(), 9)", "failed"),
    ],
)
async def test_a_process_that_is_stopped(reaction: str, status: str) -> None:
    output = Output()
    code = f"import os, signal, time; signal.signal(15, {reaction}); print('ready'); {FOR_EVER}"
    async with python(code, output=output) as worker:
        await output.line("ready")
    assert (await worker.wait()).status == status


@pytest.mark.parametrize(
    ("reaction", "way", "status", "error"),
    [
        ("lambda *_: None", "stop", "killed", "did not stop in time and was killed"),
        ("signal.SIG_DFL", "stop", "stopped", None),
        ("signal.SIG_DFL", "kill", "failed", "'app' was killed by signal 9 (SIGKILL), perhaps"),
    ],
)
async def test_an_exit_has_the_duration_and_the_end_of_stderr(
    reaction: str, way: str, status: str, error: str | None
) -> None:
    output = Output()
    code = f"""
        import os, signal, time
        signal.signal(15, {reaction})
        os.write(2, b"x" * 10_000 + b"\\nthe end")
        print("ready")
        {FOR_EVER}
    """
    worker = python(code, output=output)
    began = asyncio.get_running_loop().time()
    await worker.start()
    await output.line("ready")
    if way == "kill":
        os.kill(worker.state().pid or 0, signal.SIGKILL)
        exit_ = await worker.wait()
    else:
        exit_ = await stop_and_wait(worker, 0.1 if status == "killed" else None)
    assert (exit_.status, exit_.signal) == (status, 15 if status == "stopped" else 9)
    assert exit_.exit_code == -(exit_.signal or 0)
    assert exit_.error is None if error is None else error in str(exit_.error)
    assert 0 < exit_.duration <= asyncio.get_running_loop().time() - began
    assert exit_.stderr == "x" * (4096 - 8) + "\nthe end"
    if status == "failed":
        assert f"the end of its stderr:\n{exit_.stderr}" in "".join(traceback.format_exception(exit_.error))


async def test_the_state_has_the_pid_only_while_the_process_exists() -> None:
    """After that, the system may give the pid to another process, whose memory an observer would show."""
    worker = ProcessWorker("app", "sleep", "1000")
    async with worker:
        pid = worker.state().pid
        assert psutil.pid_exists(pid or 0)
        assert f"pid {pid}" in repr(worker)
    assert worker.state().pid is None
    assert "pid" not in repr(worker)


async def test_another_signal_stops_it() -> None:
    output = Output()
    code = f"import time; print('ready'); {FOR_EVER}"
    async with python(code, output=output, stop_signal=signal.SIGINT) as worker:
        await output.line("ready")
    exit_ = await worker.wait()
    assert (exit_.status, exit_.signal) == ("stopped", signal.SIGINT)


async def test_a_process_that_ignores_the_signal_is_killed_after_the_grace_period() -> None:
    output = Output()
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready'); time.sleep(1000)"
    worker = python(code, output=output)
    await worker.start()
    await output.line("ready")
    exit_ = await stop_and_wait(worker, 0.1)
    assert (exit_.status, exit_.signal) == ("killed", 9)
    assert "did not stop in time and was killed" in str(exit_.error)


async def test_a_stop_while_starting_ends_it() -> None:
    worker = python("import time; time.sleep(1000)", ready="line:never")
    start = asyncio.create_task(worker.start())
    await until(lambda: worker.state().pid is not None)
    exits = await asyncio.gather(*(stop_and_wait(worker) for _ in range(3)))
    assert {exit_.status for exit_ in exits} == {"stopped"}
    with pytest.raises(WorkerFailed, match="stopped while starting"):
        await start


async def test_a_stop_in_the_moment_of_its_start_ends_it() -> None:
    worker = ProcessWorker("app", "sleep", "1000")
    start = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    await worker.stop()
    assert worker.status is Status.STOPPED
    with pytest.raises(WorkerFailed):
        await start


async def test_closing_the_loop_over_a_running_worker_kills_it() -> None:
    """The worker was not stopped, but it must not outlive its parent."""
    pids: list[int | None] = []

    async def main() -> None:
        worker = ProcessWorker("app", "sleep", "1000")
        await worker.start()
        pids.append(worker.state().pid)

    await asyncio.to_thread(asyncio.run, main())
    (pid,) = pids
    assert pid is not None
    assert not psutil.pid_exists(pid)


async def test_a_child_reaped_elsewhere_reports_an_unknown_status() -> None:
    output = Output()
    worker = python("import time; print('ready'); time.sleep(1000)", output=output)
    await worker.start()
    await output.line("ready")
    pid = worker.state().pid
    assert pid is not None
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    exit_ = await worker.wait()
    assert (exit_.status, exit_.exit_code) == ("failed", None)
    assert "its exit status was lost" in str(exit_.error)


# -- the whole group --------------------------------------------------------------------------------------------


async def test_a_stop_ends_the_whole_group() -> None:
    output = Output()
    worker = python(FAMILY.format(end="time.sleep(1000)"), output=output, stop_timeout=1.0)
    await worker.start()
    pgid = int(await output.line("leader"))
    await until(lambda: len(members(pgid)) == 5)
    exit_ = await stop_and_wait(worker)
    assert members(pgid) == []
    # The leader exited on SIGTERM. Killing another member of the group does not change the leader's exit.
    assert exit_.status is Status.STOPPED


#: A program that lets its child finish a task before it stops, as Celery and gunicorn do.
FINISHES = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print('finished', input())"], stdin=subprocess.PIPE)
signal.signal(15, lambda *_: (child.communicate(b"7\\n"), sys.exit(0)))
print("ready")
while True:
    signal.pause()
"""


@pytest.mark.parametrize("shell", [None, "'{}' -uc \"$0\"; exit $?", "cd . && (exec '{}' -uc \"$0\") & wait"])
async def test_a_stop_lets_a_program_finish_with_its_children(shell: str | None) -> None:
    output = Output()
    argv = ("sh", "-c", shell.format(sys.executable), FINISHES) if shell else (sys.executable, "-uc", FINISHES)
    async with ProcessWorker("app", *argv, output=output) as worker:
        await output.line("ready")
    assert await output.line("finished") == "7"
    assert (await worker.wait()).status is Status.STOPPED


async def test_children_receive_the_stop_signal_when_their_leader_has_ended() -> None:
    output = Output()
    code = """
        import signal, subprocess, sys
        code = "import os, signal; signal.signal(15, lambda *_: (print('child ended', flush=True), os._exit(0)))"
        subprocess.Popen([sys.executable, "-u", "-c", code + "; print('ready')\\nwhile True: signal.pause()"])
        signal.pause()
    """
    async with python(code, output=output) as worker:
        await output.line("ready")
    await output.line("child ended")
    assert (await worker.wait()).status is Status.STOPPED


async def test_processes_left_by_a_leader_are_killed_at_once() -> None:
    output = Output()
    worker = python(FAMILY.format(end="os._exit(0)"), output=output, stop_timeout=1000)
    await worker.start()
    pgid = int(await output.line("leader"))
    async with asyncio.timeout(LIMIT):
        assert (await worker.wait()).status is Status.FINISHED
    assert members(pgid) == []


async def test_a_leader_killed_from_outside_ends_with_its_group() -> None:
    output = Output()
    worker = python(FAMILY.format(end="time.sleep(1000)"), output=output)
    await worker.start()
    pgid = int(await output.line("leader"))
    os.kill(pgid, 9)
    exit_ = await worker.wait()
    assert (exit_.status, members(pgid)) == ("failed", [])
    assert "killed by signal 9 (SIGKILL), perhaps" in str(exit_.error)


async def test_members_have_their_grace_when_the_leader_goes_first(tmp_path: Path) -> None:
    """A shell exits immediately on SIGTERM, but the server that it started may need time to clean up."""
    done = tmp_path / "done"
    output = Output()
    server = textwrap.dedent(f"""
        import signal, sys, time
        def tidy(*_):
            time.sleep(0.3)
            open({str(done)!r}, "w").close()
            print("tidied")
            sys.exit()
        signal.signal(15, tidy)
        print("ready")
        all(not time.sleep(0.02) for _ in iter(int, 1))
    """)
    script = '"$@" & wait'
    worker = ProcessWorker("app", "sh", "-c", script, "sh", sys.executable, "-u", "-c", server, output=output)
    async with worker:
        await output.line("ready")
    assert done.exists()
    assert output.stdout[-1] == "tidied"
    assert (await worker.wait()).status is Status.STOPPED


async def test_members_have_their_grace_when_the_start_fails(tmp_path: Path) -> None:
    done = tmp_path / "done"
    server = f"import signal, time; signal.signal(15, lambda *_: (time.sleep(0.3), open({str(done)!r}, 'w'), exit()))"
    # The leader exits at once on SIGTERM. It starts to wait only when its child can handle the signal.
    code = f"""
        import os, time
        here, there = os.pipe()
        if not os.fork():
            {server}
            os.write(there, b"!")
            {FOR_EVER}
        os.read(here, 1)
        open("up", "w").close()
        time.sleep(1000)
    """
    for limit in (0.3, 2.0, LIMIT):
        worker = python(code, cwd=tmp_path, ready="notify", start_timeout=limit)
        with pytest.raises(WorkerFailed, match="and was stopped"):
            await worker.start()
        # On a busy machine, the child may not have started in time.
        if (tmp_path / "up").exists():
            break
    assert done.exists()


async def test_a_leader_reaped_elsewhere_while_its_group_ends_keeps_its_status() -> None:
    """A container runtime may reap the leader, because it runs as PID 1 and reaps every orphan."""
    output = Output()
    code = """
        import os, signal, time
        signal.signal(15, lambda *_: os._exit(0))
        if not os.fork():
            signal.signal(15, signal.SIG_IGN)
            os.write(1, b"ready %d\\n" % os.getppid())
        all(not time.sleep(0.02) for _ in iter(int, 1))
    """
    worker = python(code, output=output, stop_timeout=LIMIT)
    await worker.start()
    leader = int(await output.line("ready"))
    stop = asyncio.create_task(worker.stop())
    await until(lambda: not alive(leader))
    # Let the event loop run some iterations.
    for _ in range(100):
        await asyncio.sleep(0)
    os.waitpid(leader, 0)
    await asyncio.gather(stop, worker.stop(0))
    exit_ = await worker.wait()
    assert (exit_.status, exit_.exit_code, members(leader)) == ("stopped", 0, [])


async def test_signals_reach_the_leader_or_the_group_until_the_end() -> None:
    output = Output()
    code = """
        import os, signal, time
        pid = os.fork()
        signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"child\\n" if not pid else b"leader\\n"))
        os.write(1, b"ready\\n")
        while True:
            time.sleep(0.02)
    """
    worker = python(code, output=output)
    worker.send_signal(signal.SIGUSR1)
    async with worker:
        await until(lambda: output.stdout.count("ready") == 2)
        worker.send_signal(signal.SIGUSR1)
        await output.line("leader")
        worker.send_signal(signal.SIGUSR1, group=True)
        await output.line("child")
    assert output.stdout.count("child") == 1
    worker.send_signal(signal.SIGKILL)


async def test_a_process_that_leaves_the_group_does_not_delay_the_end() -> None:
    """A daemon keeps the pipe open, but the worker still finishes and receives all its output."""
    output = Output()
    code = """
        import os, time
        here, there = os.pipe()
        if not os.fork():
            os.setsid()
            os.write(1, b"daemon %d\\n" % os.getpid())
            os.write(there, b"!")
            time.sleep(1000)
        os.read(here, 1)
        print("leader ends")
    """
    worker = python(code, output=output, contain="group")
    await worker.start()
    daemon = int(await output.line("daemon"))
    try:
        async with asyncio.timeout(LIMIT):
            assert (await worker.wait()).status is Status.FINISHED
        assert "leader ends" in output.stdout
        assert alive(daemon)
    finally:
        os.kill(daemon, 9)


# -- suspension ---------------------------------------------------------------------------------------------------


async def test_suspends_and_resumes_its_whole_group() -> None:
    output = Output()
    code = "import os, time; os.fork(); os.write(1, b'pid %d\\n' % os.getpid()); time.sleep(1000)"
    async with python(code, output=output) as worker:
        await until(lambda: len(output.stdout) == 2)
        pids = [int(line.split()[1]) for line in output.stdout]
        for _ in range(2):
            await worker.suspend()
            assert worker.status is Status.SUSPENDED
            await until(lambda: all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids))
        for _ in range(2):
            await worker.resume()
            assert worker.status is Status.RUNNING
            await until(lambda: all(psutil.Process(pid).status() == psutil.STATUS_SLEEPING for pid in pids))
        await worker.suspend()
    assert (await worker.wait()).status is Status.STOPPED


async def test_a_suspension_returns_when_it_is_seen() -> None:
    output = Output()
    async with python("print('ready')\nwhile True: pass", output=output) as worker:
        await output.line("ready")
        for _ in range(10):
            await worker.suspend()
            assert psutil.Process(worker.state().pid).status() == psutil.STATUS_STOPPED
            await worker.resume()


async def test_a_suspension_that_is_undone_before_it_takes_effect_raises() -> None:
    """As with a gate, the caller must not believe that the worker is suspended."""
    async with ProcessWorker("app", "sleep", "1000") as worker, asyncio.timeout(LIMIT):
        while True:
            suspension = asyncio.create_task(worker.suspend())
            await asyncio.sleep(0)
            await worker.resume()
            await asyncio.wait({suspension})
            # On a busy machine, the process may already have stopped when it is resumed.
            if error := suspension.exception():
                break
        assert isinstance(error, InvalidTransition)
        assert "'app' is running, because it was resumed or ended during suspend" in str(error)
        assert worker.status is Status.RUNNING


async def test_a_cancelled_suspend_leaves_the_process_running() -> None:
    async with ProcessWorker("app", "sleep", "1000") as worker:
        for _ in range(10):
            suspension = asyncio.create_task(worker.suspend())
            await asyncio.sleep(0)
            suspension.cancel()
            await asyncio.wait({suspension})
            assert worker.status is (Status.RUNNING if suspension.cancelled() else Status.SUSPENDED)
            await worker.resume()


async def test_a_start_is_not_cut_short_by_a_resume() -> None:
    worker = python("import time; time.sleep(600)")
    start = asyncio.create_task(worker.start())
    while worker.status == "created":
        await asyncio.sleep(0)
    with pytest.raises(InvalidTransition, match="is starting; only a suspended worker can be resumed"):
        await worker.resume()
    await start
    assert worker.status == "running"
    await worker.stop()


async def test_a_suspended_process_is_continued_before_a_stop() -> None:
    output = Output()
    code = f"import signal, sys, time; signal.signal(15, lambda *_: sys.exit('bye')); print('ready'); {FOR_EVER}"
    worker = python(code.replace("'bye'", "0"), output=output, stop_timeout=LIMIT)
    await worker.start()
    await output.line("ready")
    await worker.suspend()
    exit_ = await stop_and_wait(worker)
    assert (exit_.status, exit_.exit_code) == ("stopped", 0)


async def test_a_suspended_process_does_nothing_more_when_it_is_stopped() -> None:
    output = Output()
    async with python("import time\nwhile True: print('working'); time.sleep(0.001)", output=output) as worker:
        await output.line("working")
        await worker.suspend()
        seen = -1
        while seen != (seen := len(output.stdout)):
            await asyncio.sleep(0.2)  # wait until no more lines arrive from the pipe
    assert len(output.stdout) == seen


async def test_a_process_that_sent_itself_sigstop_can_be_stopped() -> None:
    worker = python("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", stop_timeout=LIMIT)
    await worker.start()
    pid = worker.state().pid
    assert pid is not None
    await until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    assert (await stop_and_wait(worker)).status is Status.STOPPED


@pytest.mark.usefixtures("every_loop")
async def test_a_process_killed_while_suspended_has_failed() -> None:
    worker = ProcessWorker("app", "sleep", "1000")
    await worker.start()
    await worker.suspend()
    os.kill(worker.state().pid or 0, 9)
    assert (await worker.wait()).status is Status.FAILED
    with pytest.raises(InvalidTransition, match="failed"):
        await worker.suspend()


async def test_a_process_continued_from_outside_may_finish() -> None:
    output = Output()
    code = """
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
        print("ready")
        signal.sigwait([signal.SIGCONT])
    """
    worker = python(code, output=output)
    await worker.start()
    await output.line("ready")
    await worker.suspend()
    os.kill(worker.state().pid or 0, signal.SIGCONT)
    assert (await worker.wait()).status is Status.FINISHED


# -- output -------------------------------------------------------------------------------------------------------


async def test_lines_of_any_kind_arrive_whole_and_before_the_end() -> None:
    output = Output()
    code = """
        import sys
        out = sys.stdout.buffer
        out.write(b"x" * 1_000_000 + b"\\n")
        out.write(b"bad \\xff\\xc3( nul \\0 windows\\r\\n\\n")
        out.write("größe\\n".encode())
        out.write(b"no end")
        sys.stderr.write("y" * 10_000)
    """
    worker = python(code, output=output)
    await worker.start()
    exit_ = await worker.wait()
    assert output.stdout == ["x" * 1_000_000, "bad \ufffd\ufffd( nul \0 windows", "", "größe", "no end"]
    assert output.stderr == ["y" * 10_000]
    assert exit_.stderr == "y" * 4096


async def test_output_after_the_signal_arrives_before_stop_returns() -> None:
    output = Output()
    code = """
        import signal, sys, time
        def bye(*_):
            for n in range(10_000):
                print("bye", n)
            sys.exit()
        signal.signal(15, bye)
        print("ready")
        all(not time.sleep(0.02) for _ in iter(int, 1))
    """
    async with python(code, output=output) as worker:
        await output.line("ready")
    assert worker.status is Status.STOPPED
    assert output.stdout[-1] == "bye 9999"


async def test_a_process_that_closes_its_output_keeps_running() -> None:
    output = Output()
    code = "import os, time; print('ready'); os.close(1); os.close(2); time.sleep(1000)"
    async with python(code, output=output) as worker:
        await output.line("ready")
        pid = worker.state().pid
        assert pid is not None
        await until(lambda: not any(Path(f"/proc/{pid}/fd/{fd}").exists() for fd in (1, 2)))
        assert worker.status is Status.RUNNING
    assert (await worker.wait()).status is Status.STOPPED


async def test_without_output_lines_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lifecycle.workers.app")
    worker = python("import sys; print('100 %s'); print('\\x1b[2J\\x1b[31moops', file=sys.stderr)")
    await worker.start()
    await worker.wait()
    assert {(record.name, record.getMessage(), record.stream) for record in caplog.records} == {  # type: ignore[attr-defined]
        ("lifecycle.workers.app", "100 %s", "stdout"),
        ("lifecycle.workers.app", "\x1b[31moops", "stderr"),
    }


async def test_an_output_that_raises_is_logged_once_and_contained(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def broken(line: str, stream: str) -> None:
        seen.append(line)
        raise OSError("disk full")

    worker = python("print('a'); print('b')", output=broken)
    await worker.start()
    assert (await worker.wait()).status is Status.FINISHED
    assert seen == ["a", "b"]
    assert caplog.text.count("logged only once") == 1


async def test_out_of_descriptors_fails_the_start_and_leaks_none() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open("/dev/null", os.O_RDONLY)
    os.close(probe)
    worker = ProcessWorker("app", "sleep", "1000")
    before = sorted(Path("/proc/self/fd").iterdir())
    # The limit leaves descriptors for the first pipe, but not for the second.
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + 3, hard))
    try:
        with pytest.raises(WorkerFailed, match="Too many open files"):
            await worker.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert worker.status is Status.FAILED


# -- environment and directory ------------------------------------------------------------------------------------


async def test_its_environment_is_ours_then_env_then_set_env(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ABC":
        monkeypatch.setenv(f"LIFECYCLE_TEST_{name}", "ours")
    output = Output()
    worker = python(
        "import os; print(*(os.environ['LIFECYCLE_TEST_' + n] for n in 'ABC'))",
        env={"LIFECYCLE_TEST_B": "env", "LIFECYCLE_TEST_C": "env"},
        output=output,
    )
    worker.set_env("LIFECYCLE_TEST_C", "set")
    await worker.start()
    await worker.wait()
    assert output.stdout == ["ours env set"]


async def test_it_has_a_session_of_its_own_no_input_and_nothing_of_ours_open(tmp_path: Path) -> None:
    output = Output()
    code = """
        import os, sys
        print(os.getpid() == os.getsid(0) == os.getpgid(0), repr(sys.stdin.read()), os.getcwd())
        print([fd for fd in range(3, 200) if os.path.exists(f"/proc/self/fd/{fd}")])
    """
    with (tmp_path / "ours").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        worker = python(code, cwd=tmp_path, output=output)
        await worker.start()
        await worker.wait()
    assert output.stdout[0] == f"True '' {tmp_path}"
    assert output.stdout[1] == "[]"


async def test_a_job_on_our_terminal_is_a_group_in_our_session() -> None:
    worker = ProcessWorker("job", "sleep", "1000", stdio=Inherited())
    async with worker:
        pid = worker.state().pid
        assert pid is not None
        assert (os.getpgid(pid), os.getsid(pid)) == (pid, os.getsid(0))
    assert (await worker.wait()).status is Status.STOPPED


@pytest.mark.parametrize(
    ("argv", "cwd", "message"),
    [
        (["no-such-program"], None, "the command 'no-such-program' was not found on PATH"),
        (["python app.py"], None, "or pass each argument separately"),
        (["/no/such/program"], None, "the command '/no/such/program' does not exist"),
        (["./plain"], ".", "the command './plain' is not executable; try `chmod \\+x`"),
        (["./lost"], ".", "names a missing interpreter"),
        (["./junk"], ".", "is not a program for this machine"),
        (["sleep", "1"], "missing", "cannot enter cwd='.*missing' .No such file or directory.; create it"),
        (["sleep", "1"], "plain", "cannot enter cwd='.*plain' .Not a directory."),
    ],
)
async def test_an_error_at_the_start_names_the_wrong_part_of_the_command(
    tmp_path: Path, argv: list[str], cwd: str | None, message: str
) -> None:
    for name, text, mode in (("plain", "", 0o644), ("lost", "#!/no/interpreter\n", 0o755), ("junk", "\x01\x02", 0o755)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    worker = ProcessWorker("app", *argv, cwd=None if cwd is None else tmp_path / cwd)
    with pytest.raises(WorkerFailed, match=message) as caught:
        await worker.start()
    exit_ = await worker.wait()
    assert (exit_.status, exit_.error) == ("failed", caught.value)
    assert worker.state().error == str(caught.value)


async def test_a_worker_starts_only_once() -> None:
    worker = python("pass")
    await worker.start()
    await worker.wait()
    with pytest.raises(InvalidTransition, match="cannot go from finished to starting"):
        await worker.start()


# -- without a pidfd ----------------------------------------------------------------------------------------------


async def test_without_pidfd_a_thread_notices_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    output = Output()
    worker = python(FAMILY.format(end="time.sleep(1000)"), output=output, stop_timeout=LIMIT)
    await worker.start()
    pgid = int(await output.line("leader"))
    assert any(thread.name == f"end of process {pgid}" for thread in threading.enumerate())
    assert (await stop_and_wait(worker)).status is Status.STOPPED
    await until(lambda: members(pgid) == [])


@pytest.mark.parametrize(("signum", "name"), [(15, "SIGTERM"), (40, "40")])
async def test_the_error_of_a_killed_process_names_the_signal(signum: int, name: str) -> None:
    worker = python(f"import os; os.kill(os.getpid(), {signum})")
    await worker.start()
    assert f"was killed by signal {signum} ({name})" in str((await worker.wait()).error)


# -- chaos --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_chaos_leaves_nothing_behind(seed: int) -> None:
    """After any sequence of operations, a worker exits once, reports how it exited, and leaves no process."""
    chance = random.Random(seed)

    async def life(number: int) -> None:
        code = "trap '' TERM; sleep 1000 & sleep 1000" if chance.random() < 0.3 else "sleep 1000 & sleep 1000"
        worker = ProcessWorker(f"w{number}", "sh", "-c", code, stop_timeout=0.05)
        start = asyncio.create_task(worker.start())
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(chance.random() * 0.01)
            await mistreat(worker)
        await asyncio.gather(worker.stop(), worker.stop(0), start, return_exceptions=True)
        exit_ = await worker.wait()
        assert worker.status is exit_.status
        assert worker.status in FINAL
        if pid := worker.state().pid:
            assert members(pid) == []

    async def mistreat(worker: ProcessWorker) -> None:
        pid = worker.state().pid
        with contextlib.suppress(InvalidTransition, ProcessLookupError):
            match chance.randrange(5):
                case 0:
                    await worker.suspend()
                case 1:
                    await worker.resume()
                case 2:
                    worker.send_signal(chance.choice([9, 15, signal.SIGSTOP, signal.SIGCONT]))
                case 3 if chance.random() < 0.3:
                    await worker.stop(chance.random() * 0.02)
                case _ if pid is None:
                    await asyncio.sleep(0)
                case _:
                    pass

    async with asyncio.timeout(LIMIT):
        await asyncio.gather(*(life(number) for number in range(25)))
