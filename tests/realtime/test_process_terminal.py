"""A process with its own terminal detects the terminal, and stops like any other process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lifecycle.errors import WorkerFailed
from lifecycle.workers import ProcessWorker, Status
from lifecycle.workers.terminals import Terminal

LIMIT = 20.0


class Screen:
    """The text that a program writes to a terminal. A test can wait for part of it."""

    def __init__(self) -> None:
        self.shown = b""
        self._more = asyncio.Event()

    def __call__(self, data: bytes) -> None:
        self.shown += data
        self._more.set()

    async def shows(self, text: str) -> None:
        async with asyncio.timeout(LIMIT):
            while text.encode() not in self.shown:
                self._more.clear()
                await self._more.wait()


async def until_full(terminal: Terminal) -> None:
    """Write until the terminal's input buffer is full."""
    async with asyncio.timeout(LIMIT):
        while terminal._room is None:
            await asyncio.sleep(0.005)


def on(terminal: Terminal, code: str, **how: Any) -> ProcessWorker:
    return ProcessWorker("app", sys.executable, "-u", "-c", textwrap.dedent(code), stdio=terminal, **how)


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_it_is_the_controlling_terminal_of_a_session(tmp_path: Path, elsewhere: bool) -> None:
    screen = Screen()
    cwd = tmp_path if elsewhere else None
    code = """
        import os
        print("ttys", [os.isatty(fd) for fd in range(3)], *os.get_terminal_size())
        print("leads", os.getpid() == os.getsid(0) == os.getpgid(0) == os.tcgetpgrp(0))
        print("cwd", os.getcwd())
        open("/dev/tty", "w").write("by its name\\n")
        print("open", [fd for fd in range(3, 200) if os.path.exists(f"/proc/self/fd/{fd}")])
    """
    with (tmp_path / "ours").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        worker = on(Terminal(screen, rows=31, columns=101), code, cwd=cwd)
        await worker.start()
        exit_ = await worker.wait()
    assert screen.shown.decode().splitlines() == [
        "ttys [True, True, True] 101 31",
        "leads True",
        f"cwd {cwd or Path.cwd()}",
        "by its name",
        "open []",
    ]
    assert (exit_.status, exit_.stderr) == ("finished", screen.shown.decode())


async def test_a_new_terminal_size_is_visible_and_signalled() -> None:
    screen = Screen()
    terminal = Terminal(screen)
    terminal.resize(10, 20)
    code = """
        import os, signal, time
        # It does not print: a print that the signal interrupts would make that an error.
        signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b"now %d %d\\n" % os.get_terminal_size()))
        print("first", *os.get_terminal_size())
        while True:
            time.sleep(0.02)
    """
    async with on(terminal, code):
        await screen.shows("first 20 10")
        terminal.resize(30, 40)
        await screen.shows("now 40 30")


async def test_typed_text_is_read_and_control_keys_send_signals() -> None:
    screen = Screen()
    terminal = Terminal(screen)
    code = """
        import time
        print("hello", input("name? "))
        while True:
            time.sleep(0.02)
    """
    async with on(terminal, code) as worker:
        await screen.shows("name? ")
        await terminal.write("Jürgen\n".encode())
        await screen.shows("hello Jürgen")
        await terminal.write(b"\x03")
        exit_ = await worker.wait()
    assert (exit_.status, exit_.signal) == ("failed", 2)
    await terminal.write(b"too late")


@pytest.mark.usefixtures("every_loop")
async def test_a_write_to_a_full_terminal_waits_and_returns_at_the_end() -> None:
    screen = Screen()
    terminal = Terminal(screen)
    async with on(terminal, "import time, tty; tty.setraw(0); print('deaf'); time.sleep(1000)"):
        await screen.shows("deaf")
        typists = [asyncio.create_task(terminal.write(b"x" * 1_000_000)) for _ in range(2)]
        await until_full(terminal)
        assert not any(typist.done() for typist in typists)
    async with asyncio.timeout(LIMIT):
        await asyncio.gather(*typists)


async def test_a_cancelled_write_leaves_the_terminal_to_others() -> None:
    screen = Screen()
    terminal = Terminal(screen)
    code = """
        import signal, sys, tty
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        tty.setraw(0)
        print("deaf")
        signal.sigwait([signal.SIGUSR1])
        while sys.stdin.buffer.read1(4096)[-1:] != b"!":
            pass
        print("heard")
    """
    worker = on(terminal, code)
    await worker.start()
    await screen.shows("deaf")
    typist = asyncio.create_task(terminal.write(b"x" * 1_000_000))
    await until_full(terminal)
    typist.cancel()
    os.kill(worker.state().pid or 0, signal.SIGUSR1)
    await terminal.write(b"!")
    assert typist.cancelled()
    await screen.shows("heard")
    assert (await worker.wait()).status is Status.FINISHED


@pytest.mark.parametrize("size", [10, 100_000, 2_000_000])
async def test_all_that_was_written_is_shown_before_the_end(size: int) -> None:
    screen = Screen()
    worker = on(Terminal(screen), f"import sys; sys.stdout.write('x' * {size} + 'END')")
    await worker.start()
    assert (await worker.wait()).status is Status.FINISHED
    assert screen.shown == b"x" * size + b"END"


async def test_an_output_that_raises_is_logged_once_and_contained(caplog: pytest.LogCaptureFixture) -> None:
    def broken(data: bytes) -> None:
        raise OSError("no screen")

    worker = on(Terminal(broken), "import time\nfor n in range(3): print(n); time.sleep(0.02)")
    await worker.start()
    assert (await worker.wait()).status is Status.FINISHED
    assert caplog.text.count("logged only once") == 1


async def test_a_process_that_keeps_the_terminal_open_does_not_delay_the_end() -> None:
    screen = Screen()
    code = """
        import os, signal, time
        here, there = os.pipe()
        if not os.fork():
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            os.setsid()
            os.write(1, b"daemon %d pid" % os.getpid())
            os.write(there, b"!")
            time.sleep(1000)
        os.read(here, 1)
    """
    worker = on(Terminal(screen), code)
    await worker.start()
    await screen.shows("pid")
    daemon = int(screen.shown.split()[1])
    try:
        async with asyncio.timeout(LIMIT):
            assert (await worker.wait()).status is Status.FINISHED
    finally:
        # The process may have exited with the worker, and may have been reaped already.
        with suppress(ProcessLookupError):
            os.kill(daemon, 9)


@pytest.mark.parametrize(
    ("argv", "cwd", "message"),
    [
        (["no-such-program"], None, "the command 'no-such-program' was not found on PATH"),
        (["no-such-program"], ".", "the command 'no-such-program' was not found on PATH"),
        (["/no/such/program"], None, "the command '/no/such/program' does not exist"),
        (["./plain"], ".", "the command './plain' is not executable"),
        (["sleep", "1"], "missing", "cannot enter cwd='.*missing'"),
    ],
)
async def test_an_error_at_the_start_names_the_wrong_part_of_the_command(
    tmp_path: Path, argv: list[str], cwd: str | None, message: str
) -> None:
    (tmp_path / "plain").touch()
    worker = ProcessWorker("app", *argv, cwd=None if cwd is None else tmp_path / cwd, stdio=Terminal(Screen()))
    with pytest.raises(WorkerFailed, match=message):
        await worker.start()
    assert worker.status is Status.FAILED


async def test_it_is_ready_by_a_line_that_it_shows() -> None:
    screen = Screen()
    code = "print('wait'); print('\\x1b[32mup on 1\\x1b[0m'); input()"
    async with on(Terminal(screen), code, ready=r"line:^\S*up on \d", start_timeout=LIMIT) as worker:
        assert worker.status is Status.RUNNING
        assert b"up on 1" in screen.shown


OUTER = """
import asyncio, logging, sys
from lifecycle.workers import ProcessWorker

async def main():
    worker = ProcessWorker("app", sys.executable, "-c", "print('from the child')"{more})
    async with worker:
        await worker.wait()

{setup}
asyncio.run(main())
print("done", flush=True)
"""


async def shown_by(*, setup: str = "", more: str = "") -> str:
    """Return the text that a program prints on its terminal while it supervises a child."""
    screen = Screen()
    argv = (sys.executable, "-c", OUTER.format(setup=setup, more=more))
    async with ProcessWorker("outer", *argv, stdio=Terminal(screen)) as worker:
        await screen.shows("done")
        await worker.wait()
    return screen.shown.decode()


async def test_a_program_in_a_terminal_prints_the_lines_of_its_processes() -> None:
    assert await shown_by() == "from the child\r\ndone\r\n"


async def test_a_program_in_a_terminal_that_logs_the_lines_does_not_print_them() -> None:
    shown = await shown_by(setup='logging.basicConfig(level="INFO", format="log: %(message)s")')
    assert "log: from the child\r\n" in shown
    assert shown.count("from the child") == 1


async def test_the_last_line_without_a_line_end_is_kept() -> None:
    code = "import sys; print('one'); sys.stdout.write('fatal: no config')"
    worker = on(Terminal(Screen()), code)
    await worker.start()
    await worker.wait()
    assert worker.recent is not None
    assert worker.recent.last(9) == ["one", "fatal: no config"]


async def test_it_is_ready_by_a_line_without_a_line_end() -> None:
    """A program can become ready by its last words, for example if it starts a daemon."""
    code = "import sys; sys.stdout.write('started in the background')"
    worker = on(Terminal(Screen()), code, ready="line:^started")
    await worker.start()
    assert (await worker.wait()).status is Status.FINISHED


async def test_inherited_output_is_printed_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr)"
    async with ProcessWorker("app", sys.executable, "-c", code, output="inherit") as worker:
        await worker.wait()
    assert tuple(capsys.readouterr()) == ("out\n", "err\n")
