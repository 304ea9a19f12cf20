"""No process outlives its parent: tests kill apps and count surviving processes. Unrelated processes must survive."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from lifecycle.workers import ProcessWorker, Status, WorkerFailed, stop_and_wait
from lifecycle.workers.containment import containment, guard_main
from lifecycle.workers.containment.cgroup import Cgroup, own_cgroup
from lifecycle.workers.containment.containment import PidnsCheck
from lifecycle.workers.containment.guard import SharedLog, guard_manager
from lifecycle.workers.stdio import File
from tests.conformance.containment import EXPECTED, LEVELS, VICTIMS, Family, Refused
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifecycle.testing import Clock

LIMIT = 20.0


@pytest.fixture(scope="module")
def stranger() -> Iterator[Family]:
    with Family("guard") as family:
        yield family


@pytest.fixture
def doomed() -> Iterator[Callable[[int], int]]:
    """Return a function that opens a pidfd for a process under test. These processes are killed after the test."""
    with ExitStack() as stack:

        def doom(pid: int) -> int:
            fd = os.pidfd_open(pid)
            stack.callback(os.close, fd)
            stack.callback(end, fd)
            return fd

        yield doom


def end(fd: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(fd, signal.SIGKILL)


def ended(fd: int, limit: float = LIMIT) -> bool:
    """Return whether the process behind ``fd`` exits within ``limit`` seconds."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(limit * 1000))


class Lines(asyncio.Queue[str]):
    """Collects the lines that a worker prints."""

    def __call__(self, line: str, stream: str) -> None:
        self.put_nowait(line)

    async def number(self) -> int:
        return int(await asyncio.wait_for(self.get(), LIMIT))


def python(code: str, **how: Any) -> ProcessWorker:
    return ProcessWorker("app", sys.executable, "-I", "-S", "-u", "-c", textwrap.dedent(code), **how)


#: A daemon that keeps its environment and prints its PID.
DAEMON = """
import os, time
here, there = os.pipe()
if not os.fork():
    os.setsid()
    if not os.fork():
        print(os.getpid(), flush=True)
        os.write(there, b"!")
        time.sleep(1000)
    os._exit(0)
os.wait()
os.read(here, 1)
"""

#: An app for `run`: it defines main(), which prints one number per line.
APP = """
import asyncio, contextlib, os, signal, sys
from lifecycle.workers import ProcessWorker
from lifecycle.workers.containment.guard import guard_manager
def started(name="w", *argv, **how):
    return ProcessWorker(name, *(argv or ("sleep", "1000")), **how)
def say(*numbers):
    for number in numbers:
        print(number, flush=True)
def hear(line, stream):
    print(line, flush=True)
{code}
asyncio.run(main())
"""


@pytest.fixture
def run(doomed: Callable[[int], int]) -> Iterator[Callable[..., tuple[subprocess.Popen[str], list[int]]]]:
    """Return a function that starts an app that prints ``count`` PIDs. It returns the app and a pidfd per PID.

    A command in front of the app, such as `env`, changes the circumstances in which it runs.
    """
    with ExitStack() as stack:

        def start(code: str, count: int, *before: str) -> tuple[subprocess.Popen[str], list[int]]:
            text = APP.format(code=textwrap.dedent(code))
            argv = [*before, sys.executable, "-c", text]
            app = stack.enter_context(
                subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, bufsize=1)
            )
            stack.callback(app.kill)
            assert app.stdout is not None
            return app, [doomed(int(app.stdout.readline())) for _ in range(count)]

        yield start


# -- the seven processes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("level", LEVELS)
def test_survivors_match_the_table_and_other_processes_are_unharmed(stranger: Family, level: str, victim: str) -> None:
    before = stranger.alive
    try:
        with Family(level) as family:
            case = family.kill(victim)
    except Refused as error:
        pytest.skip(str(error))
    assert case.survivors == EXPECTED[level, victim]
    assert stranger.alive == before
    assert len(before) == 9


# -- a worker that exits before its app ----------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["auto", "guard"])
@pytest.mark.parametrize("way", ["finish", "stop", "kill"])
async def test_a_daemon_ends_with_its_worker(doomed: Callable[[int], int], level: str, way: str) -> None:
    received = Lines()
    tail = "pass" if way == "finish" else "time.sleep(1000)"
    worker = python(DAEMON + tail, output=received, contain=level)
    await worker.start()
    daemon = doomed(await received.number())
    if way == "stop":
        await worker.stop()
    if way == "kill":
        await worker.stop(0)
    await worker.wait()
    assert ended(daemon, 0)


async def test_a_child_without_cookie_in_a_session_of_its_own_is_known_by_descent(doomed: Callable[[int], int]) -> None:
    received = Lines()
    code = """
        import os, time
        if not os.fork():
            os.setsid()
            os.execve("/bin/sh", ["sh", "-c", "echo $$; exec sleep 1000"], {})
        time.sleep(1000)
    """
    async with python(code, output=received, contain="guard"):
        child = doomed(await received.number())
    assert ended(child, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes as another user")
@pytest.mark.parametrize("way", ["stop", "kill"])
@pytest.mark.parametrize("capabilities", ["+all", "-all,+chown,+dac_override,+fowner,+kill,+setgid,+setuid"])
def test_a_daemon_of_another_user_ends_with_its_worker_and_its_app(run: Any, capabilities: str, way: str) -> None:
    """The second set is that of an ordinary container, where root cannot read the environments of other users."""
    app, (daemon,) = run(
        """
        DAEMON = "(setsid sh -c 'echo $$; exec sleep 1000' &); exec sleep 1000"
        async def main():
            async with started("a", "sh", "-c", DAEMON, user="nobody", contain="guard", output=hear):
                await asyncio.to_thread(sys.stdin.readline)
            say(0)
        """,
        1,
        "setpriv",
        f"--bounding-set={capabilities}",
    )
    if way == "stop":
        app.stdin.write("\n")
        assert app.stdout.readline() == "0\n"
        assert ended(daemon, 0)
    else:
        app.kill()
        assert ended(daemon)


async def test_the_daemon_of_another_worker_keeps_running(doomed: Callable[[int], int]) -> None:
    received = Lines()
    async with python(DAEMON + "time.sleep(1000)", output=received, contain="guard"):
        daemon = doomed(await received.number())
        other = Lines()
        async with python(DAEMON + "time.sleep(1000)", output=other, contain="guard"):
            its = doomed(await other.number())
        assert ended(its, 0)
        assert not ended(daemon, 0)
    assert ended(daemon, 0)


async def test_a_detached_worker_may_leave_a_daemon_and_obeys_stop(doomed: Callable[[int], int]) -> None:
    code = "import os; print(len([name for name in os.environ if 'COOKIE' in name]))\n" + DAEMON + "time.sleep(1000)"
    here, there = os.pipe()
    with os.fdopen(here, encoding="ascii") as lines, os.fdopen(there, "wb"):
        worker = python(code, stdio=File(f"/proc/self/fd/{there}"), detached=True)
        await worker.start()
        assert await asyncio.to_thread(lines.readline) == "0\n"
        daemon = doomed(int(await asyncio.to_thread(lines.readline)))
    assert (worker.state().contain, guard_manager.pid) == ("detached", None)
    assert (await stop_and_wait(worker)).status is Status.STOPPED
    assert not ended(daemon, 0)


# -- the guard --------------------------------------------------------------------------------------------------------


async def test_one_guard_starts_with_the_first_worker_and_ends_with_the_last() -> None:
    async with ProcessWorker("a", "sleep", "1000"):
        guard = guard_manager.pid
        async with ProcessWorker("b", "sleep", "1000"):
            assert guard_manager.pid == guard is not None
        assert guard_manager.pid == guard
    assert guard_manager.entries() == []
    assert guard is not None
    assert not psutil.pid_exists(guard)


async def test_loops_in_threads_share_the_guard() -> None:
    async def live() -> int | None:
        async with ProcessWorker("b", "sleep", "1000"):
            return guard_manager.pid

    async with ProcessWorker("a", "sleep", "1000"):
        guard = guard_manager.pid
        found = await asyncio.gather(*(asyncio.to_thread(asyncio.run, live()) for _ in range(3)))
        assert found == [guard] * 3


def held_by(pid: int) -> list[str]:
    """Return the files that a process has open."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(fd.readlink()).split(":")[0])
    return sorted(found)


async def test_the_guard_has_its_own_session_and_ignores_signals() -> None:
    async with ProcessWorker("a", "sleep", "1000"):
        assert guard_manager.pid is not None
        guard = psutil.Process(guard_manager.pid)
        async with asyncio.timeout(LIMIT):
            while guard.name() != "lifecycle-guard" or guard.cwd() != "/":
                await asyncio.sleep(0.005)
            # The guard opens its parent's pidfd last.
            notes = ["/memfd"] * 2
            while held_by(guard.pid) != ["/dev/null", "/dev/null", *notes, "anon_inode", "pipe"]:
                await asyncio.sleep(0.005)
        assert os.getsid(guard.pid) == guard.pid
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            guard.send_signal(signum)
        assert guard.status() != psutil.STATUS_ZOMBIE
        assert guard.memory_info().rss < 14 * 1024 * 1024


async def test_a_killed_guard_is_replaced_with_its_state(run: Any, doomed: Callable[[int], int]) -> None:
    app, (first, old) = run(
        """
        async def main():
            # Nothing in their environment, and no cgroup: what is not told of is not found.
            clean = ("env", "-i", "sleep", "1000")
            async with started("a", *clean, contain="guard") as a:
                say(a.state().pid, guard_manager.pid)
                await asyncio.to_thread(sys.stdin.readline)
                os.kill(guard_manager.pid, 9)
                os.waitid(os.P_PID, guard_manager.pid, os.WEXITED | os.WNOWAIT)
                async with started("b", *clean, contain="guard") as b:
                    say(b.state().pid, guard_manager.pid)
                    await asyncio.Event().wait()
        """,
        2,
    )
    app.stdin.write("\n")
    assert ended(old)
    second, new = (doomed(int(app.stdout.readline())) for _ in range(2))
    app.kill()
    assert ended(first)
    assert ended(second)
    assert ended(new)


#: The body of an app that adds more cgroups than fit into a pipe. Only the last cgroup matters.
MANY_PLACES = """
            for number in range(3000):
                guard_manager.add_cgroup(f"/sys/fs/cgroup/none/lifecycle-{number:060}")
            guard_manager.add_cgroup(sys.argv[1])
"""


async def _is_cleared(place: Path) -> None:
    """Wait until the guard has tried to clear ``place``. It is not a cgroup, so the guard creates a file there."""
    async with asyncio.timeout(LIMIT):
        while not (place / "cgroup.kill").exists():
            await asyncio.sleep(0.01)


async def test_a_guard_that_replaces_another_knows_more_than_a_pipe_holds(
    run: Any, doomed: Callable[[int], int], tmp_path: Path
) -> None:
    app, [old] = run(
        f"""
        async def main():
            sys.argv.append({str(tmp_path)!r})
            guard_manager.acquire()
{MANY_PLACES}
            say(guard_manager.pid)
            await asyncio.to_thread(sys.stdin.readline)
            guard_manager.acquire()
            say(guard_manager.pid)
            await asyncio.Event().wait()
        """,
        1,
    )
    end(old)
    assert ended(old)
    app.stdin.write("\n")
    new = doomed(int(app.stdout.readline()))
    assert not ended(new, 0)
    app.kill()
    await _is_cleared(tmp_path)


async def test_a_guard_that_is_stopped_for_a_while_is_kept_and_receives_everything(
    run: Any, doomed: Callable[[int], int], tmp_path: Path
) -> None:
    app, _ = run(
        f"""
        async def main():
            sys.argv.append({str(tmp_path)!r})
            guard_manager.acquire()
            say(first := guard_manager.pid)
            os.kill(first, signal.SIGSTOP)
{MANY_PLACES}
            async with started(contain="guard"):
                pass
            os.kill(first, signal.SIGCONT)
            print("kept" if guard_manager.pid == first else "replaced", flush=True)
            await asyncio.Event().wait()
        """,
        1,
    )
    assert app.stdout.readline() == "kept\n"
    app.kill()
    await _is_cleared(tmp_path)


async def test_a_guard_that_is_killed_again_and_again_is_replaced_ever_more_slowly(
    doomed: Callable[[int], int], caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    async with ProcessWorker("a", "sleep", "1000"):
        for _ in range(4):
            assert guard_manager.pid is not None
            guard = doomed(guard_manager.pid)
            end(guard)
            assert ended(guard)
            # No start may fail, because the supervisor would count the failure.
            async with ProcessWorker("b", "sleep", "1000"):
                assert not ended(doomed(guard_manager.pid), 0)
    assert time.monotonic() - began > 0.1 + 0.2 + 0.4
    assert "has exited and is being replaced after 3 earlier ones; find out what kills them" in caplog.text


def test_a_note_that_was_written_in_part_does_not_become_one_with_the_next() -> None:
    log = SharedLog(["@/first"])
    room = os.fstat(log.files[1]).st_size + 5
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, old[1]))
        with pytest.raises(OSError, match="5 of 9 bytes were written"):
            log.append(["@/second"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        log.close()


def test_a_program_that_closes_the_notes_gets_others_with_the_next_worker(run: Any) -> None:
    app, (first, second, guard) = run(
        """
        async def main():
            clean = ("env", "-i", "sleep", "1000")
            async with started("a", *clean, contain="guard") as a:
                old = guard_manager.pid
                for fd in os.listdir("/proc/self/fd"):
                    with contextlib.suppress(OSError):
                        if "lifecycle-guard" in os.readlink(f"/proc/self/fd/{fd}"):
                            os.close(int(fd))
                async with started("b", *clean, contain="guard") as b:
                    assert guard_manager.pid != old
                    say(a.state().pid, b.state().pid, guard_manager.pid)
                    await asyncio.Event().wait()
        """,
        3,
    )
    app.kill()
    assert ended(first)
    assert ended(second)
    assert ended(guard)


def test_a_guard_works_without_memfd_create(run: Any) -> None:
    app, (worker, guard) = run(
        """
        async def main():
            del os.memfd_create
            async with started("a", "env", "-i", "sleep", "1000", contain="guard") as a:
                say(a.state().pid, guard_manager.pid)
                await asyncio.Event().wait()
        """,
        2,
    )
    app.kill()
    assert ended(worker)
    assert ended(guard)


@pytest.mark.parametrize("way", ["os._exit(0)", "return", "os.kill(os.getpid(), 9)", "os.abort()"])
def test_workers_end_however_their_app_ends(run: Any, way: str) -> None:
    app, fds = run(
        f"""
        async def main():
            import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            a = started("a", sys.executable, "-c", {DAEMON + "time.sleep(1000)"!r}, output=hear)
            await a.start()
            say(a.state().pid, guard_manager.pid)
            await asyncio.to_thread(sys.stdin.readline)
            {way}
        """,
        3,
    )
    app.stdin.write("\n")
    assert all(ended(fd) for fd in fds)


@pytest.mark.parametrize("level", ["auto", "guard"])
def test_a_worker_whose_loop_was_closed_ends_with_its_app(run: Any, level: str) -> None:
    own = own_cgroup()
    earlier = set(own.glob("lifecycle-*") if own else [])
    app, fds = run(
        f"""
        import gc
        async def main():
            sys.stdin.read()
        async def begin():
            worker = started(contain={level!r})
            await worker.start()
            say(worker.state().pid, guard_manager.pid)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        loop.close()
        # Nothing can wait for the worker any more, so its coroutines are closed before it has ended.
        gc.collect()
        """,
        2,
    )
    app.stdin.close()
    assert all(ended(fd) for fd in fds)
    assert own is None or earlier.issuperset(own.glob(f"lifecycle-{app.pid}-*"))


def test_a_worker_starts_while_garbage_collection_closes_the_coroutine_of_another(run: Any) -> None:
    app, fds = run(
        """
        import gc, threading
        async def begin():
            starting = asyncio.ensure_future(started(contain="pidns").start())
            while guard_manager.pid is None:
                await asyncio.sleep(0)
        gc.disable()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        # The worker has the guard, and its coroutine waits for a thread.
        loop.close()
        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                thread.join()
        write = os.pwrite
        def collect_and_write(*args):
            os.pwrite = write
            gc.collect()
            return write(*args)
        async def main():
            os.pwrite = collect_and_write
            async with started(contain="guard") as worker:
                say(worker.state().pid, guard_manager.pid)
                sys.stdin.read()
            say(guard_manager.pid)
        """,
        2,
    )
    app.stdin.close()
    assert app.stdout.read() == "None\n"
    assert all(ended(fd) for fd in fds)


@pytest.mark.parametrize("level", ["auto", "guard"])
def test_a_process_that_was_being_started_ends_with_its_app(
    run: Any, doomed: Callable[[int], int], tmp_path: Path, level: str
) -> None:
    program = Path(shutil.copy(shutil.which("sleep") or "", tmp_path / "slow"))
    with ExitStack() as stack:
        with program.open("rb") as file:
            # With this lease, an exec of the program blocks until we close the file. The kernel notifies us with a
            # signal that is ignored by default.
            fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            app, [guard] = run(
                f"""
                async def main():
                    async with started(contain={level!r}):
                        say(guard_manager.pid)
                        await started("b", {str(program)!r}, "1000", contain={level!r}).start()
                """,
                1,
            )
            until = time.monotonic() + LIMIT
            while fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_WRLCK and time.monotonic() < until:
                time.sleep(0.001)
            parent = psutil.Process(app.pid)
            [half] = [child for child in parent.children() if child.cmdline() == parent.cmdline()]
            process = doomed(half.pid)
            # The guard does not wait for a process of another program that never executes a program.
            forks = [sys.executable, "-c", "import os, sys; os.fork(); print(flush=True); sys.stdin.read()"]
            other = stack.enter_context(subprocess.Popen(forks, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert other.stdout is not None
            assert other.stdout.readline() == other.stdout.readline() == b"\n"
            app.kill()
            # Without a cookie, the process cannot be found yet.
            assert not ended(process, 0.3)
        assert ended(process)
        assert ended(guard)


def test_a_copy_of_the_app_made_by_fork_neither_holds_the_guard_up_nor_is_it_killed(run: Any) -> None:
    app, (worker, guard, copy) = run(
        """
        async def main():
            async with started() as a:
                say(a.state().pid, guard_manager.pid)
                if not (copy := os.fork()):
                    signal.pause()
                say(copy)
                await asyncio.Event().wait()
        """,
        3,
    )
    app.kill()
    assert ended(worker)
    assert ended(guard)
    assert not ended(copy, 0)


def test_a_copy_of_the_app_has_workers_and_a_guard_of_its_own(run: Any) -> None:
    app, (worker, guard, copy, its_worker, its_guard) = run(
        """
        async def main():
            here, there = os.pipe()
            async with started() as a:
                say(a.state().pid, guard_manager.pid)
                if not (copy := os.fork()):
                    asyncio._set_running_loop(None)
                    asyncio.run(child(here))
                say(copy)
                os.write(there, b"!")
                await asyncio.Event().wait()
        async def child(here):
            async with started() as a:
                # The copy itself is told of first.
                os.read(here, 1)
                say(a.state().pid, guard_manager.pid)
                await asyncio.Event().wait()
        """,
        5,
    )
    app.kill()
    assert ended(worker)
    assert ended(guard)
    assert not any(ended(fd, 0) for fd in (copy, its_worker, its_guard))
    end(copy)
    assert ended(its_worker)
    assert ended(its_guard)


def test_a_detached_worker_outlives_its_app_and_goes_on_writing(run: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    app, (detached, other) = run(
        f"""
        from lifecycle.workers.stdio import File
        async def main():
            loop = "while :; do echo line; echo error >&2; sleep 0.02; done"
            a = started("a", "sh", "-c", loop, detached=True, stdio=File({str(log)!r}))
            async with a, started() as b:
                say(a.state().pid, b.state().pid)
                await asyncio.Event().wait()
        """,
        2,
    )
    app.kill()
    assert ended(other)
    before = log.stat().st_size
    until_blocking(lambda: log.stat().st_size > before + 100, "another line")
    assert not ended(detached, 0)
    assert set(log.read_text().splitlines()) >= {"line", "error"}


@pytest.mark.parametrize("level", ["auto", "guard"])
def test_leftovers_of_a_nested_worker_end_with_the_outer_app(run: Any, level: str) -> None:
    inner = APP.format(
        code=f"""
async def main():
    async with started("daemon", sys.executable, "-c", {DAEMON + "time.sleep(1000)"!r}, output=hear, contain="guard"):
        await asyncio.Event().wait()
"""
    )
    app, (daemon, worker, guard) = run(
        f"""
        async def main():
            heard = asyncio.Event()
            def relay(line, stream):
                hear(line, stream)
                heard.set()
            async with started("inner", sys.executable, "-c", {inner!r}, output=relay, contain={level!r}) as a:
                await heard.wait()
                say(a.state().pid, guard_manager.pid)
                await asyncio.Event().wait()
        """,
        3,
    )
    app.kill()
    assert all(ended(fd) for fd in (daemon, worker, guard))


# -- cgroups and namespaces -------------------------------------------------------------------------------------------


async def begin(worker: ProcessWorker) -> None:
    try:
        await worker.start()
    except WorkerFailed as error:
        if "is not available: " in str(error):
            pytest.skip(str(error))
        raise


async def test_a_cgroup_is_there_for_the_life_of_its_worker() -> None:
    received = Lines()
    worker = python("import os, time; print(os.getpid()); time.sleep(1000)", output=received, contain="cgroup")
    await begin(worker)
    assert await received.number() == worker.state().pid
    own = own_cgroup()
    assert own is not None
    [place] = own.glob(f"lifecycle-{os.getpid()}-*")
    assert (place / "cgroup.procs").read_text().split() == [str(worker.state().pid)]
    await worker.stop()
    assert not place.exists()


async def test_a_daemon_that_moves_itself_out_of_the_cgroup_ends_with_its_worker(
    doomed: Callable[[int], int],
) -> None:
    above = own_cgroup()
    received = Lines()
    leave = f"open('{above}/cgroup.procs', 'w').write('0'); print"
    worker = python(DAEMON.replace("print", leave, 1) + "time.sleep(1000)", output=received, contain="cgroup")
    await begin(worker)
    daemon = doomed(await received.number())
    await worker.stop()
    assert ended(daemon, 0)


async def _removal_that_is_held_up_by(late: subprocess.Popen[bytes], clock: Clock) -> asyncio.Task[bool]:
    """Start to remove a cgroup, move the process ``late`` into it, and return the removal, which has to wait."""
    while True:
        try:
            place = Cgroup()
        except OSError as error:
            late.kill()
            await guard_manager.release()
            pytest.skip(str(error))
        with subprocess.Popen(["sleep", "1000"]) as quick:
            place.move(quick.pid)
            removing = asyncio.create_task(place.remove())
            await asyncio.sleep(0)
            # The cgroup may be gone if the first process died too early. In that case, use the next cgroup.
            with suppress(OSError):
                place.move(late.pid)
            quick.kill()
        if late.pid in place.members():
            return removing
        await removing


@pytest.mark.parametrize(("seconds", "removed"), [(5, True), (15, False)])
async def test_a_cgroup_that_takes_long_to_become_empty_is_removed(clock: Clock, seconds: float, removed: bool) -> None:
    """If the worker cannot remove the cgroup in time, it is removed when the guard is released."""
    guard_manager.acquire()
    with subprocess.Popen(["sleep", "1000"]) as late:
        try:
            removing = await _removal_that_is_held_up_by(late, clock)
            await clock.advance(seconds)
            assert removing.done() is not removed
        finally:
            late.kill()
    await clock.advance(1)
    assert await removing is removed
    await guard_manager.release()
    own = own_cgroup()
    assert own is not None
    assert not list(own.glob(f"lifecycle-{os.getpid()}-*"))


def test_a_cgroup_that_was_made_a_moment_ago_goes_with_the_app(run: Any) -> None:
    app, [guard] = run(
        """
        def killed(frame, event, what):
            if event == "c_return" and what.__name__ == "mkdir":
                os.kill(os.getpid(), 9)
        async def main():
            async with started():
                say(guard_manager.pid)
                sys.setprofile(killed)
                async with started("late"):
                    pass
                print("no cgroups here", flush=True)
                sys.stdin.read()
        """,
        1,
    )
    assert app.stdout is not None
    if app.stdout.readline():
        pytest.skip("cgroups cannot be created here")
    assert app.wait(LIMIT) == -signal.SIGKILL
    assert ended(guard)
    own = own_cgroup()
    assert own is not None
    assert not list(own.glob(f"lifecycle-{app.pid}-*"))


async def test_the_notes_for_the_guard_do_not_grow_with_each_worker_that_ever_was(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    log = SharedLog([])
    program = Path(guard_main.__file__)
    argv = [sys.executable, "-I", "-S", str(program), "0" * 32, str(os.getpid()), *map(str, log.files)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=log.files) as guard:
        assert guard.stdin is not None
        log.append([f"@{tmp_path / 'there'}"])
        for number in range(50_000):
            log.append([f"@{tmp_path}/{number:0200}"])
            if log.is_stale:
                log.compact([f"@{tmp_path / 'there'}"])
        assert sum(os.fstat(file).st_size for file in log.files) < 200_000
        guard.stdin.close()
        # The directory is not a cgroup, so writing to its kill file creates a plain file.
        async with asyncio.timeout(LIMIT):
            while not (tmp_path / "there" / "cgroup.kill").exists():
                await asyncio.sleep(0.01)
        guard.kill()
    log.close()


def refuse_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Cgroup, "_move", refused)


async def test_a_guard_that_cannot_be_reached_undoes_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    def refused(pid: int) -> None:
        pids.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(guard_manager, "add_group", refused)
    worker = ProcessWorker("app", "sleep", "1000", contain="guard")
    with pytest.raises(WorkerFailed, match=r"contain='guard' of .* is not available: .*Too many open files"):
        await worker.start()
    assert not psutil.pid_exists(*pids)
    assert guard_manager.pid is None


async def test_in_a_cgroup_the_environment_is_as_elsewhere(tmp_path: Path) -> None:
    lines: dict[str, list[str]] = {"cgroup": [], "group": []}
    for level, received in lines.items():
        worker = ProcessWorker(
            "app",
            "env",
            env={"SHLVL": "7"},
            cwd=tmp_path,
            output=lambda line, _, to=received: to.append(line),
            contain=level,
        )
        await begin(worker)
        await worker.wait()
    assert [line for line in sorted(lines["cgroup"]) if "COOKIE" not in line] == sorted(lines["group"])


async def test_a_move_that_is_refused_leaves_the_guard_where_nothing_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_the_move(monkeypatch)
    async with ProcessWorker("app", "sleep", "1000") as worker:
        async with asyncio.timeout(LIMIT):
            while worker.state().contain != "guard":
                await asyncio.sleep(0.005)
    assert own_cgroup() is None or "only the guard contains it: [Errno 16]" in caplog.text


async def test_in_a_pid_namespace_the_command_is_second_and_ends_as_elsewhere() -> None:
    received = Lines()
    worker = python(
        """
        import os, signal, time
        signal.signal(signal.SIGUSR1, lambda *_: print(10))
        print(os.getpid())
        while True:
            time.sleep(0.02)
        """,
        output=received,
        contain="pidns",
    )
    await begin(worker)
    assert await received.number() == 2
    assert worker.state().contain == "pidns"
    worker.send_signal(signal.SIGUSR1)
    assert await received.number() == 10
    assert (await stop_and_wait(worker)).status is Status.STOPPED

    worker = python("raise SystemExit(3)", contain="pidns")
    await worker.start()
    assert (await worker.wait()).exit_code == 3


async def test_whether_there_are_pid_namespaces_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, fake, calls = shutil.which("unshare"), tmp_path / "unshare", tmp_path / "calls"
    fake.write_text(f'#!/bin/sh\necho "$@" >>{calls}\nexec {real} "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(containment, "pidns_check", PidnsCheck())
    for _ in range(3):
        worker = ProcessWorker("app", "sleep", "0", contain="pidns")
        await begin(worker)
        await worker.wait()
    tries = [line.split()[-1] for line in calls.read_text().splitlines()]
    assert tries == ["true", "0", "0", "0"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no luck >&2; exit 1", "`unshare` is not permitted here .no luck."),
        ("exit 1", "`unshare` is not permitted here .`unshare` exited with status 1."),
    ],
)
async def test_the_reason_for_refusing_a_pid_namespace_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    fake = tmp_path / "unshare"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(containment, "pidns_check", PidnsCheck())
    with pytest.raises(WorkerFailed, match=reason):
        await ProcessWorker("app", "sleep", "0", contain="pidns").start()


async def test_a_command_that_looks_like_the_shell_around_it_is_seen_to_have_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    argv = ("sh", "-c", '"$@"; exit $?', "sh", "eval", f"read line <{tmp_path / 'fifo'}")
    worker = ProcessWorker("app", *argv, contain="pidns")
    async with asyncio.timeout(LIMIT):
        await begin(worker)
        await worker.stop()


async def test_in_a_pid_namespace_a_command_inherits_nothing_more() -> None:
    received = Lines()
    code = "import os; print(*sorted(os.listdir('/proc/self/fd')))"
    for level in ("group", "pidns"):
        worker = python(code, output=received, contain=level)
        await begin(worker)
        await worker.wait()
    assert received.get_nowait() == received.get_nowait()


async def test_a_process_in_a_pid_namespace_receives_an_immediate_stop() -> None:
    worker = ProcessWorker("app", "sleep", "1000", contain="pidns", stop_timeout=LIMIT)
    await begin(worker)
    assert (await stop_and_wait(worker)).status is Status.STOPPED


def test_a_pid_namespace_ends_when_its_app_and_its_guard_are_killed_together(run: Any) -> None:
    app, (guard, outside, *inside) = run(
        """
        import psutil
        async def main():
            async with started("a", "sleep", "1000", contain="pidns") as a:
                below = [each.pid for each in psutil.Process(a.state().pid).children(recursive=True)]
                say(guard_manager.pid, a.state().pid, *below)
                await asyncio.Event().wait()
        """,
        4,
    )
    end(guard)
    app.kill()
    assert all(ended(fd) for fd in (outside, *inside))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["no-such-program"], "the command 'no-such-program' was not found on PATH"),
        (["/no/such/program"], "the command '/no/such/program' does not exist"),
        (["/etc/passwd"], "the command '/etc/passwd' is not executable"),
    ],
)
async def test_a_missing_command_is_reported_before_the_namespace_is_made(argv: list[str], message: str) -> None:
    worker = ProcessWorker("app", *argv, contain="pidns")
    with pytest.raises(WorkerFailed, match=message) as caught:
        await worker.start()
    if "is not available: " in str(caught.value):
        pytest.skip(str(caught.value))
    assert guard_manager.pid is None


async def test_a_worker_that_has_ended_leaves_no_data_behind() -> None:
    async with ProcessWorker("a", "sleep", "1000"):
        worker = ProcessWorker("b", "true")
        await worker.start()
        await worker.wait()
        [group, *_] = [entry for entry in guard_manager.entries() if entry.startswith("+")]
        assert f"+{worker.state().pid} " not in group
    assert guard_manager.entries() == []
