"""The interactive router at a real terminal, with real pipes, and without stdin."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pexpect
import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

REPL = Path(__file__).parents[2] / "examples" / "repl.py"
LIMIT = 20

#: A program with all the features that the tests below use.
PROGRAM = """
import asyncio, logging, os, sys, time
from lifecycle import CommandEvent, NotHandled, SuspendHandler, new_interactive_router, run

logging.basicConfig(format="LOG %(message)s")

class Part:
    async def suspend(self):
        print("part suspends")
        await asyncio.sleep(float(os.environ.get("SLOW", "0")))
        if "FAIL" in os.environ:
            raise OSError("will not")

    def resume(self):
        print("part resumes")

def interrupt(event):
    print("interrupt", event)
    if "FAIL" in os.environ:
        raise NotHandled

kind = os.environ.get("KIND", "suspend")
repl = new_interactive_router(
    suspend=Part() if kind == "suspend" else None,
    interrupt=interrupt if kind == "interrupt" else None,
    default=(lambda event: print("line", repr(event.line))) if kind == "default" else None,
    shutdown=lambda: print("shutdown ran"),
    history=os.environ.get("HISTORY"),
    toolbar=os.environ.get("TOOLBAR"),
)

@repl.command
async def wait(event: CommandEvent) -> None:
    "Wait for ever."
    print("waiting")
    await asyncio.Event().wait()

@repl.command
def block(event: CommandEvent) -> None:
    "Block the loop for ever."
    os.write(1, b"blocking")
    while True:
        time.sleep(1)

def ship(event):
    print("shipped", *event.args)

repl.command("ship", ship, complete=["alpha", "beta"])

@repl.command
def note(event):
    "Log a warning."
    logging.getLogger("app").warning("a warning")

async def ready():
    print("ready")
    await asyncio.Event().wait()

run(ready, repl)
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "TERM": "xterm", "PYTHONUNBUFFERED": "1", **more}


UNKNOWN = "Unknown command 'what'. Try: wait"


class Terminal:
    """A program that runs at its own terminal."""

    def __init__(self, *argv: str, **more: str) -> None:
        self.child = pexpect.spawn(
            sys.executable, list(argv), env=environment(**more), encoding="utf-8", timeout=LIMIT, dimensions=(30, 100)
        )
        self.child.delaybeforesend = None
        self.modes = termios.tcgetattr(self.child.child_fd)

    def see(self, text: str) -> None:
        self.child.expect_exact(text)

    def sees_erased(self) -> None:
        self.child.expect(r"\x1b\[[JK]")

    def type(self, text: str) -> None:
        if text == "\x03":
            # Two presses within 50 ms would be treated as one.
            time.sleep(0.1)
        self.child.send(text)

    def interrupt(self) -> None:
        time.sleep(0.1)  # two signals within 50 ms would be treated as one press
        self.child.kill(signal.SIGINT)

    def ends(self, status: int = 0) -> str:
        """Wait for the exit, check the exit status and that no child is left, and return the remaining output."""
        children = psutil.Process(self.child.pid).children(recursive=True)
        rest = self.child.read()
        self.child.wait()
        assert self.child.exitstatus == status, rest
        assert not [child for child in children if child.is_running()]
        return str(rest)


@contextmanager
def at_terminal(*argv: str, **more: str) -> Iterator[Terminal]:
    terminal = Terminal(*(argv or ("-c", PROGRAM)), **more)
    try:
        terminal.see("ready" if not argv else ">")
        if not argv:
            terminal.see(">")
        yield terminal
    finally:
        terminal.child.close(force=True)


def piped(lines: str, *argv: str, **more: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *(argv or ("-c", PROGRAM))],
        input=lines,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


# -- Ctrl+C ----------------------------------------------------------------------------------------------------


def test_ctrl_c_suspends_then_quits() -> None:
    with at_terminal() as terminal:
        terminal.type("\x03")
        terminal.see("suspended; `resume` continues")
        terminal.type("\x03")
        assert "shutdown ran" in terminal.ends()


def test_after_a_resume_ctrl_c_suspends_again() -> None:
    with at_terminal() as terminal:
        for _ in range(3):
            terminal.type("\x03")
            terminal.see("suspended; `resume` continues")
            terminal.type("resume\r")
            terminal.see("resumed")
        terminal.type("\x03")
        terminal.see("suspended; `resume` continues")
        terminal.type("\x03")
        terminal.ends()


def test_a_second_ctrl_c_while_suspending_quits() -> None:
    with at_terminal(SLOW="1") as terminal:
        terminal.type("\x03")
        terminal.see("part suspends")
        terminal.type("\x03")
        terminal.see("shutdown ran")
        terminal.ends()


def test_a_ctrl_c_after_a_failed_suspension_quits() -> None:
    with at_terminal(FAIL="1") as terminal:
        terminal.type("\x03")
        terminal.see("suspending failed: will not")
        terminal.type("\x03")
        terminal.see("shutdown ran")
        terminal.ends()


def test_ctrl_c_clears_half_typed_text_every_time() -> None:
    with at_terminal() as terminal:
        for _ in range(6):
            terminal.type("quit")
            terminal.see("quit")
            terminal.type("\x03")
            terminal.sees_erased()
        terminal.type("status\r")
        terminal.see("state      running")
        terminal.type("quit\r")
        terminal.ends()


def test_a_running_command_is_cancelled() -> None:
    with at_terminal() as terminal:
        for _ in range(4):
            terminal.type("wait\r")
            terminal.see("waiting")
            terminal.type("\x03")
            terminal.see("wait was cancelled")
        terminal.type("status\r")
        terminal.see("state      running")
        terminal.type("quit\r")
        terminal.ends()


def test_the_toolbar_is_shown() -> None:
    with at_terminal(TOOLBAR="three jobs wait") as terminal:
        terminal.see("three jobs wait")
        terminal.type("quit\r")
        terminal.ends()


def test_sigint_from_outside_works_like_ctrl_c() -> None:
    with at_terminal() as terminal:
        terminal.type("half")
        terminal.see("half")
        terminal.interrupt()
        terminal.sees_erased()
        terminal.interrupt()
        terminal.see("suspended; `resume` continues")
        terminal.interrupt()
        terminal.see("shutdown ran")
        terminal.ends()


def test_with_nothing_to_suspend_a_second_ctrl_c_is_needed() -> None:
    with at_terminal(KIND="none") as terminal:
        terminal.type("\x03")
        terminal.see("press Ctrl+C again to quit")
        terminal.type("\x03")
        terminal.see("shutdown ran")
        terminal.ends()


def test_the_interrupt_handler_gets_ctrl_c_until_it_raises_not_handled() -> None:
    with at_terminal(KIND="interrupt") as terminal:
        terminal.type("\x03")
        terminal.see("interrupt InterruptEvent()")
        terminal.type("quit\r")
        terminal.ends()
    with at_terminal(KIND="interrupt", FAIL="1") as terminal:
        terminal.type("\x03")
        terminal.see("interrupt InterruptEvent()")
        terminal.see("shutdown ran")
        terminal.ends()


def test_ctrl_c_ends_a_program_whose_loop_is_blocked() -> None:
    with at_terminal() as terminal:
        terminal.type("block\r")
        terminal.see("blocking")
        while terminal.child.isalive():
            with suppress(OSError):  # the program has just exited
                terminal.type("\x03")
            select.select([], [], [], 0.05)  # the kernel merges signals that arrive at the same time
        assert "\r\nforced to exit: SIGINT was signal number 3 in a row\r\n" in terminal.child.read()
        assert terminal.child.exitstatus == 1


# -- other ways to quit -----------------------------------------------------------------------------------------


def test_ctrl_d_quits() -> None:
    with at_terminal() as terminal:
        terminal.type("\x04")
        assert "shutdown ran" in terminal.ends()


def test_sigterm_runs_shutdown_and_restores_the_terminal() -> None:
    with at_terminal() as terminal:
        terminal.child.kill(signal.SIGTERM)
        assert "shutdown ran" in terminal.ends()


def test_terminate_suspends_first() -> None:
    with at_terminal() as terminal:
        terminal.type("x\r")
        terminal.see("part suspends")
        terminal.see("shutdown ran")
        terminal.ends()


@pytest.mark.parametrize("way", ["quit\r", "\x04", "\x03\x03"])
def test_the_terminal_is_restored(way: str) -> None:
    """A shell would restore the terminal's modes, so the test reads them while the program runs and afterwards."""
    script = f"""import signal, subprocess, sys, termios
signal.signal(signal.SIGINT, lambda *_: None)
before = termios.tcgetattr(0)
subprocess.run([sys.executable, {str(REPL)!r}])
print("same" if termios.tcgetattr(0) == before else "changed")
"""
    with at_terminal("-c", script) as terminal:
        for key in (way,) if way.endswith("\r") else way:
            terminal.type(key)
            if key == "\x03":
                terminal.child.expect_exact(["suspended;", "counted to"])
        terminal.see("same")
        terminal.ends()


def test_a_terminal_that_hangs_up_ends_the_program() -> None:
    terminal = Terminal("-c", PROGRAM)
    terminal.see(">")
    process = psutil.Process(terminal.child.pid)
    os.close(terminal.child.child_fd)
    terminal.child.closed = True
    terminal.child.child_fd = -1
    process.wait(LIMIT)


# -- at the prompt ---------------------------------------------------------------------------------------------


def test_tab_completes_commands_and_their_arguments() -> None:
    with at_terminal() as terminal:
        terminal.type("shi\t")
        terminal.see("p")
        terminal.type(" a\t")
        terminal.see("lpha")
        terminal.type("\r")
        terminal.see("shipped alpha")
        terminal.type("quit\r")
        terminal.ends()


def test_arrow_keys_show_the_history_of_earlier_runs(tmp_path: Path) -> None:
    path = str(tmp_path / "history")
    with at_terminal(HISTORY=path) as terminal:
        terminal.type("ship one\r")
        terminal.see("shipped one")
        terminal.type("\x1b[A\r")
        terminal.see("shipped one")
        terminal.type("quit\r")
        terminal.ends()
    with at_terminal(HISTORY=path) as terminal:
        terminal.type("\x1b[A\x1b[A\r")
        terminal.see("shipped one")
        terminal.type("quit\r")
        terminal.ends()


def test_a_history_file_that_cannot_be_written_is_reported_at_the_start(tmp_path: Path) -> None:
    terminal = Terminal("-c", PROGRAM, HISTORY=str(tmp_path / "no" / "such" / "folder"))
    rest = terminal.ends(1)
    assert "source 'prompt' could not start" in rest
    assert "FileNotFoundError" in rest


def test_help_and_a_typo() -> None:
    with at_terminal() as terminal:
        terminal.type("?\r")
        terminal.see("wait           Wait for ever.")
        terminal.type("hlep\r")
        terminal.see("Unknown command 'hlep'. Try: help")
        terminal.type("quit\r")
        terminal.ends()


def test_log_lines_appear_above_the_prompt() -> None:
    with at_terminal() as terminal:
        terminal.type("note\r")
        terminal.see("LOG a warning")
        terminal.see(">")
        terminal.type("quit\r")
        terminal.ends()


def test_pasted_lines_are_commands_one_by_one() -> None:
    with at_terminal() as terminal:
        terminal.type("\x1b[200~ship one\nship two\x1b[201~\r")
        terminal.see("shipped one")
        terminal.see("shipped two")
        terminal.type("quit\r")
        terminal.ends()


def test_without_a_terminal_for_output_lines_are_read_without_a_prompt(tmp_path: Path) -> None:
    script = f"import subprocess, sys; subprocess.run([sys.executable, {str(REPL)!r}], stdout=open(sys.argv[1], 'w'))"
    out = tmp_path / "out"
    terminal = Terminal("-c", "print('> ');" + script, str(out))
    terminal.see(">")
    terminal.type("suspend\nquit\n")
    terminal.ends()
    assert "suspended" in out.read_text()


# -- from a pipe, and without stdin ------------------------------------------------------------------------------


def test_commands_from_a_pipe_run_one_by_one() -> None:
    status, said = piped("suspend\nstatus\nresume\nship 'a b' c\nwhat\nquit\nship late\n")
    assert status == 0
    said = re.sub(r"\d+", "N", said)
    assert said.split("\n")[1:] == [
        "part suspends",
        "suspended",
        "program    running, N tasks, N workers",
        "state      suspended",
        "router     N routes, N sources",
        "events     N handled, N failed, N dropped, N unrouted",
        "part resumes",
        "resumed",
        "shipped a b c",
        UNKNOWN,
        "shutdown ran",
        "",
    ]


def test_the_end_of_a_pipe_quits_after_its_commands() -> None:
    status, said = piped("suspend\nship last", SLOW="0.2")
    assert status == 0
    assert "shipped last\nshutdown ran" in said


def test_the_example_from_a_pipe() -> None:
    status, said = piped("suspend\nresume\nquit\n", str(REPL))
    assert status == 0
    assert "suspended" in said
    assert "resumed" in said


def test_lines_go_to_a_default_handler() -> None:
    _, said = piped("hello  'there\nship x\n", KIND="default")
    assert 'line "hello  \'there"\nshipped x' in said


def test_invalid_lines_are_answered() -> None:
    status, said = piped("\x00\n\xff\n" + "y" * 2_000_000 + "\n" + "z" * 1_000_000 + "\nship on\n")
    assert status == 0
    assert "discarded an input line longer than" in said
    assert len(said) < 5_000
    assert "shipped on" in said


@pytest.mark.usefixtures("every_loop")
@pytest.mark.parametrize("stdin", ["</dev/null", "<&-"])
def test_an_empty_stdin_ends_the_input_only(stdin: str) -> None:
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$0" -c "$1" {stdin}', sys.executable, PROGRAM],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as out:
        assert out.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        assert "shutdown ran" in out.read()
    assert process.wait(LIMIT) == 0


def test_an_open_pipe_does_not_delay_the_exit() -> None:
    """A thread that blocks while it reads stdin would delay the exit."""
    process: Any = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process.stdin, process.stdout as out:
        assert out.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0


# -- in tmux, as a user sees it ----------------------------------------------------------------------------------

#: A chat whose answers come word by word. It also logs.
CHAT = """
import asyncio, logging
from lifecycle import LineEvent, new_interactive_router, run

logging.basicConfig(format="LOG %(message)s")
released = asyncio.Event()

async def answer(event: LineEvent) -> None:
    for word in ("The", "sea", event.line):
        print(word, end=" ", flush=True)
        await asyncio.sleep(0)
    await released.wait()
    released.clear()
    print("deep", end="!", flush=True)

chat = new_interactive_router(default=answer, command_prefix="/", prompt="chat> ")

@chat.command
def model(name: str) -> None:
    released.set()
    logging.warning("the model is %s", name)

run(chat)
"""


class Tmux:
    """A shell in tmux."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tmux = ["tmux", "-S", str(path / "socket"), "-f", "/dev/null"]

    def do(self, *words: str) -> str:
        if words[-1] == "C-c":
            time.sleep(0.1)  # two presses within 50 ms would be treated as one
        return subprocess.run([*self._tmux, *words], check=True, capture_output=True, text=True).stdout

    def type(self, *keys: str) -> None:
        self.do("send-keys", *keys)

    def see(self, pattern: str) -> None:
        with_limit = time.monotonic() + LIMIT
        while not re.search(pattern, screen := self.do("capture-pane", "-p"), re.MULTILINE):
            assert time.monotonic() < with_limit, screen


@contextmanager
def in_tmux(path: Path) -> Iterator[Tmux]:
    tmux = Tmux(path)
    tmux.do("new-session", "-d", "-x", "100", "-y", "40", "-c", str(path), "env", "PS1=shell ", "sh")
    try:
        tmux.see("^shell")
        yield tmux
    finally:
        tmux.do("kill-server")


@pytest.mark.usefixtures("every_loop")
@pytest.mark.engine("tmux")
def test_in_a_shell_in_tmux(tmp_path: Path) -> None:
    """Typed, cleared, completed and printed text appears in the right place, and the shell continues afterwards."""
    with in_tmux(tmp_path) as tmux:
        tmux.type(f"stty -a > before; {sys.executable} {REPL}", "Enter")
        tmux.see("^>")
        tmux.type("half")
        tmux.see("^> half$")
        tmux.type("C-c")
        tmux.see("^>$")
        tmux.type("sho", "Tab")
        tmux.see("^> show$")
        tmux.type("Enter")
        tmux.see(r"^> show\n\d+\n>$")
        tmux.type("Up")
        tmux.see("^> show$")
        tmux.type("C-c")
        tmux.see("^>$")
        tmux.type("C-z")
        tmux.see("Stopped")
        tmux.type("stty -a | cmp before - && echo like 'before'", "Enter")
        tmux.see("^like before$")
        tmux.type("fg", "Enter")
        tmux.see("^>$")
        tmux.type("C-c")
        tmux.see(r"^suspended;.*\n>$")
        tmux.type("C-c")
        tmux.see(r"^counted to(.*\n)+shell$")
        tmux.type("stty -a | cmp before - && echo as 'before'", "Enter")
        tmux.see("^as before$")


@pytest.mark.usefixtures("every_loop")
@pytest.mark.engine("tmux")
def test_a_chat_in_tmux(tmp_path: Path) -> None:
    """An answer appears as it is written, above the prompt and below other output, and Ctrl+C cancels it."""
    (tmp_path / "chat.py").write_text(CHAT)
    with in_tmux(tmp_path) as tmux:
        tmux.type(f"{sys.executable} chat.py", "Enter")
        tmux.see("^chat>$")
        tmux.type("model", "Enter")
        tmux.see(r"^chat> model\nThe sea model\nchat>$")
        tmux.type("/mo", "Tab")
        tmux.see(r"^The sea model\nchat> /model$")
        tmux.type(" big", "Enter")
        tmux.see(r"^chat> /model big\nLOG the model is big\nThe sea model deep!\nchat>$")
        tmux.type("again", "Enter")
        tmux.see(r"^The sea again\nchat>$")
        tmux.type("C-c")
        tmux.see(r"^The sea again\nthe line was cancelled\nchat>$")
        tmux.type("C-r")
        tmux.see("^.reverse-i-search")
        tmux.type("mod")
        tmux.see("^.reverse-i-search.*mod.*model")
        tmux.type("C-c")
        tmux.see(r"^the line was cancelled\nchat>$")
        tmux.type("C-c")
        tmux.see(r"^the line was cancelled\npress Ctrl\+C again to quit\nchat>$")
        tmux.type("C-c")
        tmux.see("^shell$")
