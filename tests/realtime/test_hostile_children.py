"""Misbehaving child processes, alone and under a supervisor, are detected, limited and stopped.

Other processes are not affected.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers import Backoff, ProcessWorker, Spec, Status, Supervisor, stop_and_wait
from tests.processes import alive
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

LIMIT = 20.0
SOON = Backoff(initial=0.01, multiplier=1.0)
#: The loop of a program that waits for signals. If it were one long sleep, a signal that arrived just before it would
#: be handled only afterwards.
FOR_EVER = "all(not time.sleep(0.02) for _ in iter(int, 1))"


def command(code: str, *argv: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-u", "-c", textwrap.dedent(code), *argv]


class Lives:
    """The runs of one child: the worker and the output of each run."""

    def __init__(self) -> None:
        self.workers: list[ProcessWorker] = []
        self.lines: list[str] = []

    @property
    def pid(self) -> int:
        """Return the PID of the latest run."""
        pid = self.workers[-1].state().pid
        assert pid is not None
        return pid

    def numbers(self) -> list[int]:
        """Return the PIDs that the runs have printed."""
        return [int(line) for line in self.lines]

    def make(self, *argv: str, **how: Any) -> ProcessWorker:
        self.workers.append(ProcessWorker("app", *argv, output=lambda line, _: self.lines.append(line), **how))
        return self.workers[-1]


@asynccontextmanager
async def living(way: str, *argv: str, **how: Any) -> AsyncIterator[Lives]:
    """Run a command as a bare worker, or under a supervisor that restarts it. Stop it when the block exits."""
    lives = Lives()
    if way == "alone":
        async with lives.make(*argv, **how):
            yield lives
    else:
        async with Supervisor("s", Spec("app", lambda: lives.make(*argv, **how), backoff=SOON)):
            yield lives


BOTH = pytest.mark.parametrize("way", ["alone", "supervised"])


# -- failures to start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["not found", "not executable", "cwd missing"])
async def test_a_command_that_fails_to_start_is_retried_until_it_starts(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    place, away = tmp_path / "place", tmp_path / "away"
    place.mkdir()
    script = place / "script"
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    script.chmod(0o755)
    supervisor = Supervisor("s", Spec("app", lambda: ProcessWorker("app", script, cwd=place), backoff=SOON))
    if fault == "cwd missing":
        supervisor = Supervisor("s", Spec("app", lambda: ProcessWorker("app", "sleep", "9", cwd=place), backoff=SOON))
    async with supervisor:
        if fault == "not executable":
            script.chmod(0o644)
        elif fault == "not found":
            script.rename(away)
        else:
            place.rename(away)
        os.kill(supervisor.workers()[0].pid or 0, signal.SIGKILL)
        await until(lambda: supervisor.workers()[0].restarts >= 3)
        messages = {
            "not found": "does not exist",
            "not executable": "is not executable",
            "cwd missing": "cannot enter",
        }
        assert caplog.text.count(messages[fault]) >= 2
        if fault == "not executable":
            script.chmod(0o755)
        elif fault == "not found":
            away.rename(script)
        else:
            away.rename(place)
        await until(lambda: supervisor.workers()[0].status is Status.RUNNING)


async def test_a_command_that_keeps_failing_to_start_is_given_up(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    script.chmod(0o755)
    few = Backoff(initial=0.01, max_restarts=2, within=1000)
    async with Supervisor("s", Spec("app", [str(script)], backoff=few)) as supervisor:
        script.unlink()
        os.kill(supervisor.workers()[0].pid or 0, signal.SIGKILL)
        await until(lambda: supervisor.workers()[0].circuit == "open")
        state = supervisor.workers()[0]
        assert (state.status, state.restarts) == ("failed", 2)
        assert "does not exist" in (state.error or "")


# -- output ---------------------------------------------------------------------------------------------------------


@BOTH
async def test_the_end_of_one_that_has_closed_its_output_is_seen(way: str) -> None:
    code = f"import os, time; print(os.getpid()); os.closerange(0, 3); {FOR_EVER}"
    async with living(way, *command(code)) as lives:
        await until(lambda: lives.lines)
        pid = lives.pid
        await until(lambda: not list(Path(f"/proc/{pid}/fd").iterdir()))
        assert lives.workers[0].status is Status.RUNNING
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(LIMIT):
            exit_ = await lives.workers[0].wait()
        assert (exit_.status, exit_.signal) == ("failed", 9)
        if way == "supervised":
            await until(lambda: len(lives.workers) == 2 and lives.workers[1].status is Status.RUNNING)


async def test_a_flood_on_both_streams_is_taken_in_small_parts_and_fills_no_memory() -> None:
    """In each iteration, the loop reads at most one chunk, even if more data is waiting."""
    received = since = most = 0

    def count(line: str, stream: str) -> None:
        nonlocal received, since
        received += len(line)
        since += len(line)

    before = psutil.Process().memory_info().rss
    flood = 'yes "$0" >&2 & exec yes "$0"'
    async with ProcessWorker("app", "sh", "-c", flood, "x" * 1023, output=count) as worker:
        since = 0
        async with asyncio.timeout(LIMIT):
            while received < 100_000_000:
                most = max(most, since)
                since = 0
                await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT):
            assert (await stop_and_wait(worker)).status is Status.STOPPED
    assert most < 256 * 1024
    assert psutil.Process().memory_info().rss - before < 64 * 1024 * 1024


# -- child processes of the child -----------------------------------------------------------------------------------


#: Starts a daemon that prints its PID, and keeps running.
DAEMON = f"""
    import os, time
    here, there = os.pipe()
    if not os.fork():
        os.setsid()
        if not os.fork():
            print(os.getpid())
            os.write(there, b"!")
            time.sleep(1000)
        os._exit(0)
    os.wait()
    os.read(here, 1)
    {FOR_EVER}
"""


@BOTH
async def test_a_daemon_ends_with_the_life_that_made_it(way: str) -> None:
    async with living(way, *command(DAEMON)) as lives:
        await until(lambda: lives.lines)
        if way == "supervised":
            os.kill(lives.pid, signal.SIGKILL)
            await until(lambda: len(lives.lines) == 2)
            first, second = lives.numbers()
            assert not alive(first)
            assert alive(second)
    assert not any(map(alive, lives.numbers()))


@BOTH
async def test_a_fork_bomb_of_two_hundred_is_gone_with_its_life(way: str) -> None:
    bomb = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for n in range(200):
            if not os.fork():
                if n % 2:
                    os.setsid()
                time.sleep(1000)
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(1000)
    """
    async with living(way, *command(bomb), stop_timeout=0.1) as lives:
        await until(lambda: lives.lines)
        bombs = [psutil.Process(lives.numbers()[0])]
        first = {each.pid for each in bombs[0].children(recursive=True)}
        assert len(first) == 200
        if way == "supervised":
            bombs[0].kill()
            await until(lambda: len(lives.lines) == 2)
            assert not any(map(alive, first))
    assert not any(map(alive, [*first, *lives.numbers()]))
    assert lives.workers[-1].status is Status.KILLED


@BOTH
async def test_processes_that_keep_forking_end_with_their_leader(way: str) -> None:
    """The group has seven short-lived processes, each of which starts its replacement."""
    rabbits = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(1, b"%d\\n" % os.getpid())
        leader = os.getpid()
        for _ in range(3):
            os.fork()
        while True:
            time.sleep(0.002)
            if os.getpid() != leader and os.fork():
                os._exit(0)
    """
    async with living(way, *command(rabbits), stop_timeout=0.1) as lives:
        await until(lambda: lives.lines)
        group = lives.pid
    left = [each.pid for each in psutil.process_iter() if each.pid != os.getpid() and in_group(each.pid, group)]
    assert not any(map(alive, left))


def in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except OSError:
        return False


# -- signals --------------------------------------------------------------------------------------------------------


@BOTH
async def test_a_group_that_stopped_itself_gets_its_grace_period(way: str) -> None:
    """SIGCONT continues the stopped process, which then has its grace period."""
    code = f"""
        import os, signal, sys, time
        def tidy(*_):
            os.write(1, b"0\\n")
            os._exit(0)
        signal.signal(signal.SIGTERM, tidy)
        os.write(1, b"%d\\n" % os.getpid())
        os.kill(0, signal.SIGSTOP)
        {FOR_EVER}
    """
    async with living(way, *command(code), stop_timeout=LIMIT) as lives:
        await until(lambda: lives.lines)
        await until(lambda: psutil.Process(lives.pid).status() == psutil.STATUS_STOPPED)
    assert lives.lines[-1] == "0"
    assert lives.workers[0].status is Status.STOPPED


@BOTH
async def test_a_process_that_ignores_signals_is_killed_after_the_grace_period(way: str) -> None:
    code = """
        import os, signal, time
        for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            try:
                signal.signal(each, signal.SIG_IGN)
            except OSError:
                pass
        os.write(1, b"0\\n")
        time.sleep(1000)
    """
    async with living(way, *command(code), stop_timeout=0.1) as lives:
        await until(lambda: lives.lines)
    exit_ = await lives.workers[0].wait()
    assert (exit_.status, exit_.signal) == ("killed", 9)


async def test_no_signal_is_sent_after_a_pid_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in any state sends signals only before its process is reaped."""
    free: set[int] = set()
    strangers: list[tuple[str, int, int]] = []

    def watched(name: str, function: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def call(number: int, signum: int) -> None:
            if signum and number in free:
                strangers.append((name, number, signum))
            function(number, signum)

        return call

    def reaping(kind: int, number: int, options: int, waitid: Any = os.waitid) -> Any:
        result = waitid(kind, number, options)
        if result is not None and not options & os.WNOWAIT:
            free.add(number)
        return result

    monkeypatch.setattr(os, "kill", watched("kill", os.kill))
    monkeypatch.setattr(os, "killpg", watched("killpg", os.killpg))
    monkeypatch.setattr(os, "waitid", reaping)

    async def life(number: int) -> None:
        worker = ProcessWorker(f"w{number}", "sh", "-c", "sleep 1000 & sleep 1000", stop_timeout=0.01)
        await worker.start()
        pid = worker.state().pid
        assert pid is not None
        if number % 2:
            os.kill(pid, signal.SIGKILL)
        stops = [asyncio.create_task(worker.stop(number % 3 * 0.01)) for _ in range(3)]
        while pid not in free:
            worker.send_signal(signal.SIGUSR2, group=bool(number % 4))
            await asyncio.sleep(0)
        for _ in range(100):
            worker.send_signal(signal.SIGKILL)
            worker.send_signal(signal.SIGKILL, group=True)
            await asyncio.sleep(0)
        await asyncio.gather(*stops, worker.stop(0))
        with pytest.raises(InvalidTransition):
            await worker.suspend()

    async with asyncio.timeout(LIMIT):
        await asyncio.gather(*map(life, range(12)))
    assert len(free) >= 12
    assert strangers == []


#: Runs as root of a PID namespace, where it can choose the next process's PID.
REUSE = """
    import asyncio, os, pathlib, signal, subprocess
    from lifecycle.workers import ProcessWorker
    async def main():
        worker = ProcessWorker("app", "sleep", "1000", contain="group")
        await worker.start()
        pid = worker.state().pid
        os.kill(pid, signal.SIGKILL)
        await worker.wait()
        try:
            pathlib.Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        except OSError as error:
            return print("refused:", error)
        stranger = subprocess.Popen("cat", stdin=-1, stdout=-1, start_new_session=True, text=True)
        worker.send_signal(signal.SIGKILL)
        worker.send_signal(signal.SIGKILL, group=True)
        await worker.stop(0)
        said, _ = stranger.communicate("alive")
        print("reused" if stranger.pid == pid else "missed", said or "dead")
    asyncio.run(main())
"""


async def test_a_process_with_a_reused_pid_is_not_signalled() -> None:
    lines: list[str] = []
    code = textwrap.dedent(REUSE)
    worker = ProcessWorker(
        "ns", sys.executable, "-u", "-c", code, contain="pidns", output=lambda line, _: lines.append(line)
    )
    try:
        await worker.start()
    except WorkerFailed as refusal:
        assert "contain='pidns' of" in str(refusal)  # noqa: PT017  # namespaces may be unavailable
        return
    async with asyncio.timeout(LIMIT):
        await worker.wait()
    # Only root can choose PIDs, and only if /proc is writable.
    assert lines == ["reused alive"] or lines[0].startswith("refused: ")
