"""`lifecycle watch` at a real terminal, with a prompt, or with the terminal handed to the command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

import pexpect
import psutil
import pytest

from tests.guards import is_checker, is_guard
from tests.realtime.watches import LIMIT, write
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

APP = """\
import os, sys, time
size = os.get_terminal_size() if sys.stdout.isatty() else None
print("up", VALUE, sys.stdout.isatty(), size and (size.columns, size.lines))
# Not one long sleep: a signal that comes just before it would be handled after it.
while True:
    time.sleep(0.05)
"""

#: Writes the terminal's new width. This code is placed before `APP`, whose first output shows that signals are
#: handled. It does not use print, because print fails if the signal interrupts another print.
RESIZED = """\
import os, signal
def resized(*_):
    os.write(1, b"resized %d\\n" % os.get_terminal_size().columns)
signal.signal(signal.SIGWINCH, resized)
"""

#: Counts while it is not suspended.
COUNT = """\
import time
n = 0
while True:
    n += 1
    print("tick", n)
    time.sleep(0.1)
"""

PDB = """\
answer = 6 * 7
breakpoint()
print("after", answer)
import time
while True:
    time.sleep(0.05)
"""


#: Variables that the command must not inherit. pytest's debugger exports COLUMNS and LINES through readline, and they
#: would override the terminal's size.
UNWANTED = ("PYTHONUNBUFFERED", "NO_COLOR", "COLUMNS", "LINES")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    write(tmp_path / "app.py", "VALUE = 1\n" + APP)
    return tmp_path


def is_sentinel(process: psutil.Process) -> bool:
    """Return whether this is the process that also receives the command's Ctrl+C."""
    with contextlib.suppress(psutil.Error):
        return process.name() == "sleep"
    return False


class Terminal:
    """A `lifecycle watch` in a terminal with 100 columns and 30 lines."""

    def __init__(self, here: Path, *argv: str) -> None:
        env = {key: value for key, value in os.environ.items() if key not in UNWANTED}
        self.here = here
        self.tty = pexpect.spawn(
            sys.executable,
            ["-m", "lifecycle", "watch", *argv, "--", sys.executable, "app.py"],
            cwd=str(here),
            env={**env, "TERM": "xterm-256color"},
            dimensions=(30, 100),
            timeout=LIMIT,
            encoding="utf-8",
        )
        self.process = psutil.Process(self.tty.pid)

    def sees(self, pattern: str) -> str:
        """Wait until the screen shows a text, ignoring escape sequences."""
        gap = r"(?:\x1b\[[0-9;?]*[A-Za-z])*"
        self.tty.expect(gap.join(pattern.split(" ")).replace("~", " ") if "~" in pattern else pattern)
        return str(self.tty.after)

    def types(self, line: str) -> None:
        self.tty.send(line + "\r")

    def presses(self, key: str) -> None:
        self.tty.sendcontrol(key)

    def children(self) -> list[psutil.Process]:
        """Return the watcher's child processes, except the guard."""
        return [
            each
            for each in self.process.children(recursive=True)
            if not any(is_ours(each) for is_ours in (is_guard, is_checker, is_sentinel))
        ]

    def ends(self, status: int) -> None:
        self.tty.expect(pexpect.EOF)
        self.tty.wait()
        assert self.tty.exitstatus == status, self.tty.before

    def is_suspended(self) -> bool:
        [child] = self.children()
        return child.status() == psutil.STATUS_STOPPED


@pytest.fixture
def terminal(here: Path) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*argv: str) -> Terminal:
        started.append(Terminal(here, *argv))
        return started[-1]

    yield start
    for each in started:
        if each.tty.isalive():
            for child in each.children():
                child.kill()
        each.tty.close(force=True)


def test_signals_of_job_control_are_not_events(
    terminal: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
    seen = terminal()
    seen.sees("up 1")
    routes = subprocess.run(
        [sys.executable, "-m", "lifecycle", "ctl", "routes"], capture_output=True, text=True, check=True, timeout=LIMIT
    )
    assert "command/restart" in routes.stdout
    assert "signal/chld" not in routes.stdout
    seen.presses("c")
    seen.ends(0)


class TestPrompt:
    def test_the_command_has_a_terminal_of_our_size(self, terminal: Any) -> None:
        seen = terminal("--prompt")
        seen.sees(r"up 1 True \(100, 30\)")
        seen.types("quit")
        seen.ends(0)

    def test_an_incomplete_line_is_shown(self, terminal: Any, here: Path) -> None:
        write(here / "app.py", "print('your name? ', end='', flush=True)\n" + APP.replace("VALUE", "1"))
        seen = terminal("--prompt")
        seen.sees(r"your name\? ")
        seen.types("quit")
        seen.ends(0)

    def test_the_size_of_the_window_is_passed_on(self, terminal: Any, here: Path) -> None:
        write(
            here / "app.py",
            "VALUE = 1\n" + RESIZED + APP,
        )
        seen = terminal("--prompt")
        seen.sees("up 1 True")
        # On a busy machine, the first change may come before the prompt is ready to detect it.
        for columns in (120, 110) * 5:
            seen.tty.setwinsize(40, columns)
            if seen.tty.expect([f"resized {columns}", pexpect.TIMEOUT], timeout=3) == 0:
                break
        else:
            pytest.fail(f"the command did not notice that the window size had changed: {seen.tty.before!r}")
        seen.types("quit")
        seen.ends(0)

    def test_an_edit_restarts_above_the_prompt(self, terminal: Any, here: Path) -> None:
        seen = terminal("--prompt")
        seen.sees("up 1")
        write(here / "app.py", "VALUE = 2\n" + APP)
        seen.sees(r"changed: app\.py; restarting")
        seen.sees("up 2")
        seen.types("quit")
        seen.ends(0)

    def test_a_broken_edit_shows_the_error_and_keeps_the_process(self, terminal: Any, here: Path) -> None:
        seen = terminal("--prompt")
        seen.sees("up 1")
        [old] = seen.children()
        write(here / "app.py", "VALUE = = 2\n")
        seen.sees("SyntaxError")
        assert old.is_running()
        seen.types("quit")
        seen.ends(0)

    def test_suspend_and_resume(self, terminal: Any, here: Path) -> None:
        write(here / "app.py", COUNT)
        seen = terminal("--prompt")
        seen.sees("tick 3")
        seen.types("suspend")
        until_blocking(seen.is_suspended)
        seen.types("resume")
        until_blocking(lambda: not seen.is_suspended())
        seen.types("quit")
        seen.ends(0)

    def test_restart_and_reload_restart_the_command(self, terminal: Any) -> None:
        seen = terminal("--prompt")
        for word in ("restart", "reload"):
            seen.sees("up 1")
            seen.types(word)
            seen.sees(f"{word} requested; restarting")
        seen.sees("up 1")
        seen.types("quit")
        seen.ends(0)

    def test_status_shows_the_state_of_the_command(self, terminal: Any) -> None:
        seen = terminal("--prompt")
        seen.sees("up 1")
        [child] = seen.children()
        seen.types("status")
        seen.sees(str(child.pid))
        seen.types("quit")
        seen.ends(0)

    def test_fg_gives_the_terminal_to_a_debugger_until_ctrl_z(self, terminal: Any, here: Path) -> None:
        write(here / "app.py", PDB)
        seen = terminal("--prompt")
        seen.sees(r"\(Pdb\)")
        seen.types("fg")
        seen.sees(r"Ctrl\+Z returns to the prompt.*\(Pdb\)")
        seen.types("p answer + 1")
        seen.sees("43")
        seen.presses("z")
        seen.types("status")
        seen.sees(r"running.*pid \d+")
        seen.types("fg")
        seen.sees(r"\(Pdb\)")
        seen.types("c")
        seen.sees("after 42")
        seen.presses("z")
        seen.types("quit")
        seen.ends(0)

    def test_fg_ends_with_the_command(self, terminal: Any, here: Path) -> None:
        write(here / "app.py", "print('hello', input('your name? ').upper())\n")
        seen = terminal("--prompt")
        seen.sees(r"your name\? ")
        seen.types("fg")
        seen.sees(r"returns to the prompt.*your name\? ")
        seen.types("Bob")
        seen.sees("hello BOB")
        seen.sees("exited with status 0")
        seen.sees("lifecycle>")
        seen.types("fg")
        seen.sees("the command is not running")
        seen.types("quit")
        seen.ends(0)

    def test_ctrl_c_after_fg_stops_only_the_command(self, terminal: Any) -> None:
        seen = terminal("--prompt")
        seen.sees("up 1")
        seen.types("fg")
        seen.sees("returns to the prompt")
        seen.presses("c")
        seen.sees("KeyboardInterrupt")
        seen.sees("waiting for a change")
        seen.types("quit")
        seen.ends(0)

    def test_sigterm_after_fg_restores_the_terminal(self, terminal: Any) -> None:
        seen = terminal("--prompt")
        seen.sees("up 1")
        seen.types("fg")
        seen.sees("returns to the prompt")
        until_blocking(lambda: not termios.tcgetattr(seen.tty.child_fd)[3] & termios.ISIG)
        seen.process.terminate()
        until_blocking(lambda: termios.tcgetattr(seen.tty.child_fd)[3] & termios.ICANON)
        seen.ends(0)

    def test_fg_is_refused_to_a_suspended_command(self, terminal: Any) -> None:
        seen = terminal("--prompt")
        seen.sees("up 1")
        seen.types("suspend")
        seen.sees("suspended; ")
        seen.types("fg")
        seen.sees("the command is suspended; resume it first")
        seen.types("quit")
        seen.ends(0)

    def test_typo_gets_a_suggestion(self, terminal: Any) -> None:
        seen = terminal("--prompt")
        seen.sees("up 1")
        seen.types("restrat")
        seen.sees("Unknown command 'restrat'")
        seen.types("quit")
        seen.ends(0)

    def test_ctrl_c_suspends_and_again_quits(self, terminal: Any) -> None:
        seen = terminal("--prompt")
        seen.sees("up 1")
        [child] = seen.children()
        seen.presses("c")
        until_blocking(seen.is_suspended)
        time.sleep(0.1)  # two presses within 50 ms would be treated as one
        seen.presses("c")
        seen.ends(0)
        assert not child.is_running()

    def test_ctrl_d_quits(self, terminal: Any) -> None:
        seen = terminal("--prompt")
        seen.sees("up 1")
        # Before the prompt reads, the terminal would treat the key as the end of an empty line, and drop it.
        seen.sees("lifecycle>")
        seen.presses("d")
        seen.ends(0)


class TestWithAndWithoutAPrompt:
    @pytest.mark.parametrize("options", [(), ("--prompt",)])
    def test_kill_leaves_no_command(self, terminal: Any, options: tuple[str, ...]) -> None:
        seen = terminal(*options)
        seen.sees("up 1 True")
        [child] = seen.children()
        seen.process.kill()
        until_blocking(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)

    def test_line_on_the_commands_own_terminal_makes_it_ready(self, terminal: Any) -> None:
        seen = terminal("--prompt", "--ready", "line:up 1")
        seen.sees("ready: .*app.py")
        seen.types("quit")
        seen.ends(0)

    @pytest.mark.parametrize("options", [(), ("--keep-old",)])
    def test_output_that_is_read_comes_from_a_terminal_without_a_prompt(
        self, terminal: Any, options: tuple[str, ...]
    ) -> None:
        seen = terminal("--ready", "line:up", *options)
        seen.sees(r"up 1 True \(100, 30\)")
        seen.sees("ready: .*app.py")
        seen.presses("c")
        seen.ends(0)
        assert "lifecycle>" not in seen.tty.before

    @pytest.mark.parametrize("policy", ["never", "always"])
    def test_ctrl_c_in_the_command_ends_everything_under_every_policy(self, terminal: Any, policy: str) -> None:
        seen = terminal("--restart", policy)
        seen.sees("up 1 True")
        seen.presses("c")
        seen.ends(0)
        assert "started again" not in seen.tty.before
        assert "waiting" not in seen.tty.before

    @pytest.mark.parametrize(
        ("options", "handler"),
        [(("--stop-signal", "INT"), ""), ((), "import signal\nsignal.signal(15, signal.default_int_handler)\n")],
    )
    def test_end_by_sigint_for_a_restart_is_not_ctrl_c(
        self, terminal: Any, here: Path, options: tuple[str, ...], handler: str
    ) -> None:
        write(here / "app.py", "VALUE = 1\n" + handler + APP)
        seen = terminal(*options)
        seen.sees("up 1 True")
        write(here / "app.py", "VALUE = 2\n" + APP)
        seen.sees("up 2 True")
        seen.presses("c")
        seen.ends(0)


class TestForeground:
    def test_one_ctrl_c_ends_a_command_that_exits_with_0(self, terminal: Any, here: Path) -> None:
        write(here / "app.py", "import signal, sys\nsignal.signal(2, lambda *_: sys.exit(0))\nVALUE = 1\n" + APP)
        seen = terminal()
        seen.sees("up 1 True")
        seen.presses("c")
        seen.ends(0)

    def test_the_process_that_notices_ctrl_c_does_not_delay_a_stop(self, tmp_path: Path) -> None:
        """It ignores the stop signal, as do all programs that do not handle it."""
        command = "import signal; signal.signal(signal.SIGWINCH, lambda *_: exit()); open('up', 'w'); signal.pause()"
        program = f"""if True:
            import asyncio, os, signal, sys
            from lifecycle.cli.watch.terminal import Foreground
            from lifecycle.workers import ProcessWorker

            async def main():
                terminal = Foreground()
                asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, terminal.child_changed)
                how = dict(stdio=terminal, stop_signal=signal.SIGWINCH, stop_timeout=1000, contain="group")
                async with ProcessWorker("app", sys.executable, "-c", {command!r}, **how) as worker:
                    while not os.path.exists("up"):
                        await asyncio.sleep(0.01)
                print("is", worker.status)

            asyncio.run(main())
        """
        tty = pexpect.spawn(sys.executable, ["-c", program], cwd=str(tmp_path), timeout=LIMIT, encoding="utf-8")
        try:
            tty.expect("is stopped")
        finally:
            tty.close(force=True)

    def test_failure_rings_the_bell_and_notifies_and_success_only_notifies(self, terminal: Any, here: Path) -> None:
        write(here / "app.py", "raise SystemExit(3)\n")
        seen = terminal("--bell", "--notify", "--color", "never")
        seen.sees("\a\x1b\\]9;the command exited with status 3 after .* s\a")
        seen.sees(r"\r?\n?\[lifecycle\] the command exited")
        write(here / "app.py", "raise SystemExit(0)\n")
        seen.sees("[^\a]\x1b\\]9;the command exited with status 0")

    def test_a_command_can_ask_questions(self, terminal: Any, here: Path) -> None:
        write(here / "app.py", "print('hello', input('your name? '))\n")
        seen = terminal()
        seen.sees(r"your name\? ")
        seen.types("Bob")
        seen.sees("hello Bob")
        seen.sees("exited with status 0")
        seen.presses("c")
        seen.ends(0)

    def test_the_command_has_the_terminal_itself(self, terminal: Any) -> None:
        seen = terminal()
        seen.sees(r"up 1 True \(100, 30\)")
        [child] = seen.children()
        # The command may have printed this line before it received the terminal.
        until_blocking(lambda: os.tcgetpgrp(seen.tty.child_fd) == child.pid)
        seen.presses("c")
        seen.ends(0)
        assert not child.is_running()

    def test_pdb_works_after_a_restart_too(self, terminal: Any, here: Path) -> None:
        write(here / "app.py", PDB)
        seen = terminal()
        seen.sees(r"\(Pdb\)")
        seen.types("p answer + 1")
        seen.sees("43")
        write(here / "app.py", PDB.replace("6 * 7", "5 * 5"))
        seen.sees(r"changed: app\.py; restarting")
        seen.sees(r"\(Pdb\)")
        seen.types("p answer")
        seen.sees("25")
        seen.types("c")
        seen.sees("after 25")
        seen.presses("c")
        seen.sees("Program interrupted")
        seen.types("import os; os._exit(1)")
        seen.sees("exited with status 1")
        seen.presses("c")
        seen.ends(0)

    def test_ctrl_c_after_a_crash_goes_to_watch(self, terminal: Any, here: Path) -> None:
        write(
            here / "app.py",
            "import termios, sys\nmodes = termios.tcgetattr(0)\nmodes[3] &= ~termios.ECHO\n"
            "termios.tcsetattr(0, 0, modes)\nsys.exit(3)\n",
        )
        seen = terminal()
        seen.sees("exited with status 3")
        until_blocking(seen.tty.getecho)
        seen.presses("c")
        seen.ends(0)

    def test_sigterm_takes_the_command_along(self, terminal: Any) -> None:
        seen = terminal()
        seen.sees("up 1")
        [child] = seen.children()
        os.kill(seen.tty.pid, signal.SIGTERM)
        seen.ends(0)
        assert not child.is_running()
