"""Real processes that receive real signals."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager, suppress
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 20.0

PRELUDE = """
import asyncio, os, signal, sys, threading, time
from lifecycle import Router, SignalSource, run
from lifecycle.runtime import current, go, lifetime, on_shutdown, shutdown, Reason

def say(*words):
    print(*words, flush=True)
"""


@contextmanager
def program(code: str, **how: Any) -> Iterator[subprocess.Popen[str]]:
    """Run ``code`` in a process. Kill the process if the test ends first."""
    script = PRELUDE + textwrap.dedent(code)
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **how}
    with subprocess.Popen([sys.executable, "-c", script], text=True, **how) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def says(process: subprocess.Popen[str], line: str) -> None:
    """Wait until the process prints a line."""
    assert process.stdout is not None
    while (read := process.stdout.readline()) != f"{line}\n":
        assert read, f"the process exited without printing {line!r}: {process.stderr and process.stderr.read()}"


def ends(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err


def ends_forced(process: subprocess.Popen[str], signum: int) -> int:
    """Send ``signum`` repeatedly until the program has exited, and return its exit code.

    The system merges signals that arrive before the first one is handled.
    """
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        process.send_signal(signum)
        with suppress(subprocess.TimeoutExpired):
            return process.wait(0.1)
    raise AssertionError("the program did not exit")


BLOCKED = {
    "python": "while True: pass",
    "sleep": "time.sleep(1000)",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
}


@pytest.mark.parametrize("how", BLOCKED)
def test_ctrl_c_twice_ends_a_program_whose_loop_is_blocked(how: str) -> None:
    code = f"""
    async def main():
        say("up")
        {BLOCKED[how]}
    run(main)
    """
    with program(code) as process:
        says(process, "up")
        assert ends_forced(process, SIGINT) == 1


def test_ctrl_c_twice_ends_a_program_whose_handler_blocks_the_loop() -> None:
    code = """
    router = Router()
    @router.on("**")
    def handle(event):
        say("up")
        while True: pass
    router.add_source(SignalSource(signal.SIGUSR1))
    async def main():
        while not router.state().running:
            await asyncio.sleep(0)
        say("running")
        await asyncio.Event().wait()
    run(router, main)
    """
    with program(code) as process:
        says(process, "running")
        process.send_signal(SIGUSR1)
        says(process, "up")
        assert ends_forced(process, SIGINT) == 1


@pytest.mark.usefixtures("every_loop")
@pytest.mark.parametrize("signum", [SIGINT, SIGTERM])
def test_a_single_signal_ends_a_program_in_order_with_status_0(signum: int) -> None:
    code = """
    async def main():
        on_shutdown(lambda: say("hook", current().reason, current().signum))
        say("up")
        await asyncio.Event().wait()
    say(run(main))
    """
    with program(code) as process:
        says(process, "up")
        process.send_signal(signum)
        reason = "interrupt" if signum == SIGINT else "terminate"
        assert ends(process) == (0, f"hook {reason} {int(signum)}\nNone\n", "")


@pytest.mark.usefixtures("every_loop")
def test_a_second_signal_forces_a_program_that_hangs_in_its_end() -> None:
    code = """
    from lifecycle import hooks
    hooks.forced_exit.connect(lambda sender, **told: say(told))
    async def main():
        @on_shutdown
        async def hook():
            say("stopping")
            await asyncio.Event().wait()
        say("up")
        await asyncio.Event().wait()
    run(main)
    """
    with program(code) as process:
        says(process, "up")
        process.send_signal(SIGTERM)
        says(process, "stopping")
        process.send_signal(SIGINT)
        status, out, err = ends(process)
        assert status == 1
        assert "'status': 1" in out
        assert "SIGINT was signal number 2" in err


def test_sigterm_twice_loses_no_accepted_event() -> None:
    """systemd and GNU timeout send SIGTERM to a program and to its parent, which sends it again."""
    code = """
    from lifecycle import Event
    router = Router()
    @router.on("job")
    async def job(event):
        say("job started")
        await asyncio.sleep(0.2)
        say("job finished")
    async def main():
        on_shutdown(lambda: say("hook"))
        await router.emit(Event("job"))
        await asyncio.Event().wait()
    run(router, main)
    """
    with program(code) as process:
        says(process, "job started")
        for _ in range(3):
            process.send_signal(SIGTERM)
            time.sleep(0.01)
        assert ends(process) == (0, "job finished\nhook\n", "")


def test_a_receiver_of_forced_exit_that_hangs_does_not_hold_it_up() -> None:
    code = """
    from lifecycle import hooks
    hooks.forced_exit.connect(lambda sender, **told: threading.Event().wait())
    async def main():
        say("up")
        while True: pass
    run(main)
    """
    with program(code) as process:
        says(process, "up")
        assert ends_forced(process, SIGTERM) == 1


def test_force_exit_zero_never_forces() -> None:
    code = """
    async def main():
        @on_shutdown
        def hook():
            say("stopping")
            sys.stdin.readline()
        say("up")
        await asyncio.Event().wait()
    run(main, force_exit=0)
    """
    with program(code, stdin=subprocess.PIPE) as process:
        says(process, "up")
        process.send_signal(SIGTERM)
        says(process, "stopping")
        for _ in range(5):
            process.send_signal(SIGINT)
            time.sleep(0.01)
        status, _, _ = ends(process)
        assert status == 0


def test_two_sigints_of_one_press_are_one() -> None:
    code = """
    async def main():
        @on_shutdown
        async def hook():
            await asyncio.sleep(0.1)
            say("stopped")
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    run(main)
    """
    with program(code) as process:
        status, out, err = ends(process)
    assert (status, out, err) == (0, "stopped\n", "")


def test_a_signal_in_the_very_first_moment_is_not_lost() -> None:
    code = """
    async def main():
        on_shutdown(lambda: say("hook"))
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(100)
        say("survived")
    run(main)
    """
    with program(code) as process:
        assert ends(process)[:2] == (0, "hook\n")


def test_sources_share_the_signals_with_the_program() -> None:
    code = """
    router = Router()
    router.add_source(SignalSource())
    @router.on("signal/terminate")
    async def seen(event):
        say("seen", event.name)
    other = Router("other")
    other.add_source(SignalSource(signal.SIGTERM))
    other.handle("signal/*", lambda event: say("also seen", event.name))
    async def main():
        while not (router.state().running and other.state().running):
            await asyncio.sleep(0.01)
        say("up")
        await asyncio.Event().wait()
    run(router, other, main)
    """
    with program(code) as process:
        says(process, "up")
        process.send_signal(SIGTERM)
        status, out, _ = ends(process)
        assert status == 0
        assert sorted(out.splitlines()) == ["also seen SIGTERM", "seen SIGTERM"]


def test_a_source_takes_its_signals_without_a_lifetime_and_gives_them_back() -> None:
    code = """
    router = Router()
    router.add_source(SignalSource(signal.SIGTERM))
    async def main():
        running = asyncio.create_task(router.run())
        @router.on("signal/*")
        def stop(event):
            say("event", event.name)
            router.stop()
        while not router.state().running:
            await asyncio.sleep(0.01)
        say("up")
        await running
        say(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    asyncio.run(main())
    """
    with program(code) as process:
        says(process, "up")
        process.send_signal(SIGTERM)
        assert ends(process)[:2] == (0, "event SIGTERM\nTrue\n")


def test_ctrl_c_reaches_a_program_after_a_library_took_it_away() -> None:
    code = """
    async def main():
        on_shutdown(lambda: say("hook"))
        ours = signal.getsignal(signal.SIGINT)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        while signal.getsignal(signal.SIGINT) != ours:
            await asyncio.sleep(0.05)
        say("up")
        await asyncio.Event().wait()
    run(main)
    """
    with program(code) as process:
        says(process, "up")
        process.send_signal(SIGINT)
        assert ends(process)[:2] == (0, "hook\n")


def test_hangup_is_left_ignored_under_nohup() -> None:
    code = """
    async def main():
        say("up")
        await asyncio.Event().wait()
    run(main)
    """
    with program(code, preexec_fn=lambda: signal.signal(SIGHUP, signal.SIG_IGN)) as process:
        says(process, "up")
        process.send_signal(SIGHUP)
        process.send_signal(SIGTERM)
        assert ends(process)[0] == 0


def test_hangup_without_a_controlling_terminal_reloads() -> None:
    code = """
    router = Router()
    @router.on("lifecycle/reload")
    def reload(event):
        say("reload")
        shutdown()
    async def main():
        while not router.state().running:
            await asyncio.sleep(0.01)
        say("up")
        await asyncio.Event().wait()
    run(router, main)
    """
    with program(code, start_new_session=True) as process:
        says(process, "up")
        process.send_signal(SIGHUP)
        assert ends(process)[:2] == (0, "reload\n")


def on_a_terminal(code: str) -> tuple[int, int]:
    """Start ``code`` in a session on a new pseudo-terminal. Return its PID and the terminal's other end."""
    pid, fd = pty.fork()
    if pid == 0:  # pragma: no cover  # the child replaces itself
        os.execv(sys.executable, [sys.executable, "-c", PRELUDE + textwrap.dedent(code)])
    return pid, fd


def read_until(fd: int, text: str) -> str:
    shown, deadline = "", time.monotonic() + LIMIT
    while text not in shown:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"waited for {text!r}, got {shown!r}"
        shown += os.read(fd, 1024).decode()
    return shown


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.usefixtures("every_loop")
def test_ctrl_c_at_a_terminal_prints_how_to_force_the_exit() -> None:
    pid, fd = on_a_terminal("""
    async def main():
        on_shutdown(lambda: say("hook"))
        say("up")
        await asyncio.Event().wait()
    run(main)
    """)
    try:
        read_until(fd, "up")
        os.write(fd, b"\x03")
        shown = read_until(fd, "hook")
        assert "stopping; press Ctrl+C again to force\r\n" in shown
        assert status_of(pid) == 0
    finally:
        os.close(fd)


def test_a_program_without_keys_does_not_print_how_to_force_the_exit() -> None:
    ours, theirs = pty.openpty()
    code = """
    async def main():
        on_shutdown(lambda: print("hook", file=sys.stderr, flush=True))
        say("up")
        await asyncio.Event().wait()
    run(main)
    """
    try:
        with program(code, stderr=theirs, start_new_session=True) as process:
            says(process, "up")
            process.send_signal(SIGTERM)
            assert read_until(ours, "hook\r\n") == "hook\r\n"
            assert process.wait(LIMIT) == 0
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_route_for_hangup_keeps_a_program_at_a_terminal_running() -> None:
    pid, fd = on_a_terminal("""
    from lifecycle import Router, SignalSource
    router = Router()
    router.add_source(SignalSource())

    @router.on("signal/hangup")
    def hung_up(event):
        say("handled", event.name)

    async def main():
        await router.wait_running()
        say("up")
        await asyncio.Event().wait()

    run(router, main)
    """)
    try:
        read_until(fd, "up")
        for _ in range(2):
            os.kill(pid, SIGHUP)
            read_until(fd, "handled SIGHUP")
        os.kill(pid, SIGTERM)
        assert status_of(pid) == 0
    finally:
        os.close(fd)


def test_the_terminal_is_given_back_also_when_forced() -> None:
    pid, fd = on_a_terminal("""
    import termios, tty
    if os.fork() == 0:
        async def main():
            tty.setraw(0)
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            while True: pass
        run(main)
    _, status = os.wait()
    say("status", os.waitstatus_to_exitcode(status), bool(termios.tcgetattr(0)[3] & termios.ECHO))
    """)
    try:
        read_until(fd, "status 1 True")
        assert status_of(pid) == 0
    finally:
        os.close(fd)


def test_when_the_terminal_goes_away_the_program_ends_in_order() -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    pid, fd = on_a_terminal(f"""
    async def main():
        on_shutdown(lambda: os.write({write}, f"{{current().reason}} {{current().signum}}".encode()))
        say("up")
        await asyncio.Event().wait()
    run(main)
    """)
    os.close(write)
    try:
        read_until(fd, "up")
        os.close(fd)
        assert os.read(read, 100) == b"terminate 1"
        status_of(pid)
    finally:
        os.close(read)
