"""`lifecycle watch` as users run it: from a shell, in a terminal whose screen is drawn."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.guards import is_guard
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 30.0
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.engine("tmux")


class Screen:
    """A shell in a terminal with 160 columns and 45 lines."""

    def __init__(self, here: Path) -> None:
        self._socket = f"lifecycle-{uuid.uuid4().hex[:8]}"
        self._is_open = True
        # The shell does not inherit the test's environment, because a user's shell has no PYTHONUNBUFFERED.
        keep = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        self._env = {**keep, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
        self._tmux(
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "160",
            "-y",
            "45",
            "-c",
            str(here),
            "env PS1='shell> ' bash --norc",
        )
        self.sees("shell>")

    def _tmux(self, *argv: str) -> str:
        command = ["tmux", "-L", self._socket, *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=self._env, timeout=LIMIT).stdout

    def types(self, line: str) -> None:
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def presses(self, key: str) -> None:
        self._tmux("send-keys", key)

    def text(self) -> str:
        """Return the whole screen, with wrapped lines joined."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-500")

    def sees(self, pattern: str, *, times: int = 1) -> list[str]:
        def found() -> list[str]:
            hits = re.findall(pattern, self.text())
            return hits if len(hits) >= times else []

        hits: list[str] = until_blocking(found, lambda: f"{pattern!r} x {times} is not there:\n{self.text()}")
        return hits

    def processes(self) -> list[psutil.Process]:
        """Return the processes below the shell."""
        shell = psutil.Process(int(self._tmux("display-message", "-p", "#{pane_pid}")))
        return shell.children(recursive=True)

    def hangs_up(self) -> None:
        """Close the terminal, as the close button of its window does."""
        self._tmux("kill-session")
        self._is_open = False

    def close(self) -> None:
        if not self._is_open:
            return
        left = self.processes()
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._tmux("kill-server")
        psutil.wait_procs(left, LIMIT)


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    here = tmp_path / "here"
    here.mkdir()
    screen = Screen(here)
    yield screen
    screen.close()


DEBUGGED = """\
answer = 6 * 7
breakpoint()
print("after", answer)
import time
while True:
    time.sleep(0.05)
"""

#: Counts while it is not stopped.
COUNT = """\
import itertools, time
for n in itertools.count(1):
    print("tick", n)
    time.sleep(0.1)
"""


def watch(*argv: str) -> str:
    return shlex.join([sys.executable, "-m", "lifecycle", "watch", *argv, "--", sys.executable, "app.py"])


def test_ctrl_z_fg_and_bg_work_as_if_the_shell_had_started_it(screen: Screen, tmp_path: Path) -> None:
    (tmp_path / "here" / "app.py").write_text("while True: print('got', input())\n")
    screen.types(watch())
    screen.sees("started")
    screen.types("one")
    screen.sees("got one")

    screen.presses("C-z")
    screen.sees("Stopped")
    screen.types("echo the shell is $((40 + 2))")
    screen.sees("the shell is 42")

    screen.types("fg")
    screen.sees("lifecycle watch --", times=3)
    screen.types("two")
    screen.sees("got two")

    screen.presses("C-c")
    screen.sees(r"shell>\s*$")
    screen.types("echo ended with $?")
    screen.sees("ended with 0")
    assert screen.processes() == []


def test_a_restart_in_the_background_leaves_the_shell_its_terminal(screen: Screen, tmp_path: Path) -> None:
    app = tmp_path / "here" / "app.py"
    app.write_text("import time\nprint('up', 1)\ntime.sleep(600)\n")
    screen.types(watch())
    screen.sees("up 1")
    screen.presses("C-z")
    screen.sees("Stopped")
    screen.types("bg")
    edit(app, "1", "2")
    screen.sees("up 2")

    screen.types("echo the shell is $((40 + 2))")
    screen.sees("the shell is 42")
    screen.types("fg")
    screen.sees("lifecycle watch --", times=4)
    screen.presses("C-c")
    screen.sees(r"shell>\s*$")
    assert screen.processes() == []


def test_command_that_reads_in_the_background_stops_with_watch(screen: Screen, tmp_path: Path) -> None:
    (tmp_path / "here" / "app.py").write_text("while True: print('got', input())\n")
    screen.types(watch())
    screen.sees("started")
    screen.types("one")
    screen.sees("got one")
    screen.presses("C-z")
    screen.sees("Stopped")
    screen.types("bg")
    screen.sees(r"\[1\]\+ .* &")
    until_blocking(
        lambda: {each.status() for each in screen.processes() if not is_guard(each)} == {psutil.STATUS_STOPPED},
        screen.text,
    )

    screen.types("fg")
    screen.types("two")
    screen.sees("got two")
    screen.presses("C-c")
    screen.sees(r"shell>\s*$")
    assert screen.processes() == []


def test_debugger_works_after_ctrl_c_ctrl_z_and_fg(screen: Screen, tmp_path: Path) -> None:
    (tmp_path / "here" / "app.py").write_text(DEBUGGED)
    screen.types(watch())
    screen.sees(r"\(Pdb\)\s*$")
    screen.types("p answer + 1")
    screen.sees(r"\n43\n\(Pdb\)")
    screen.presses("C-c")
    screen.sees(r"KeyboardInterrupt--\s+\(Pdb\)")

    screen.presses("C-z")
    screen.sees("Stopped")
    screen.types("fg")
    screen.sees("lifecycle watch --", times=3)
    screen.types("p answer + 2")
    screen.sees(r"\n44\n\(Pdb\)")
    screen.types("c")
    screen.sees("after 42")
    screen.presses("C-c")
    screen.sees("Program interrupted")
    screen.types("import os; os._exit(1)")
    screen.sees("exited with status 1 .*; waiting for a change")
    screen.presses("C-c")
    screen.sees(r"shell>\s*$")
    assert screen.processes() == []


def test_debugger_gets_no_input_with_a_prompt(screen: Screen, tmp_path: Path) -> None:
    """The reply explains that. Ctrl+C suspends the command instead of reaching the debugger."""
    (tmp_path / "here" / "app.py").write_text(DEBUGGED)
    screen.types(watch("--prompt"))
    screen.sees(r"\(Pdb\)\s+lifecycle>")
    screen.types("p answer + 1")
    screen.sees("Unknown command 'p'")
    screen.sees("the command gets no input at the prompt; fg gives it the terminal")
    screen.presses("C-c")
    screen.sees("suspended; `resume` continues")
    screen.types("quit")
    screen.sees(r"shell>\s*$")
    assert screen.processes() == []


def test_ctrl_z_at_the_prompt_does_not_stop_the_command(screen: Screen, tmp_path: Path) -> None:
    (tmp_path / "here" / "app.py").write_text(COUNT)
    screen.types(watch("--prompt"))
    screen.sees("tick 3")
    screen.sees("lifecycle>")
    screen.presses("C-z")
    screen.sees("Stopped")
    screen.types("echo the shell is $((40 + 2))")
    screen.sees("the shell is 42")
    until_blocking(
        lambda: (
            {each.status() for each in screen.processes() if not is_guard(each)}
            == {psutil.STATUS_STOPPED, psutil.STATUS_SLEEPING}
        ),
        screen.text,
    )

    screen.types("fg")
    screen.sees(r"(?s)\bfg\b.*tick .*lifecycle>\s*$")
    screen.types("quit")
    screen.sees(r"shell>\s*$")
    assert screen.processes() == []


@pytest.mark.parametrize("options", [(), ("--prompt",)])
def test_closed_terminal_ends_everything(screen: Screen, tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "here" / "app.py").write_text(DEBUGGED)
    screen.types(watch(*options))
    screen.sees(r"\(Pdb\)")
    left = screen.processes()
    screen.hangs_up()
    _, alive = psutil.wait_procs(left, LIMIT)
    assert alive == []


def test_the_demo_works_as_its_first_lines_describe(screen: Screen, tmp_path: Path) -> None:
    """The page changes, a broken file leaves the old page in place, and the printed curl command and keys work."""
    shutil.copytree(ROOT / "examples", tmp_path / "here" / "examples")
    site = tmp_path / "here" / "examples" / "site"
    screen.types(f"{sys.executable} -m examples.demo")
    [url] = screen.sees(r"open +(http://\S+/)")
    screen.sees(r"serving http://.*\[\]")
    assert "Change this line" in page(url)

    edit(site / "page.html", "Change this line", "I changed it")
    until_blocking(lambda: "I changed it" in page(url), screen.text)

    edit(site / "app.py", "def index(", "def index(:")
    screen.sees("SyntaxError")
    assert "I changed it" in page(url)

    edit(site / "app.py", "def index(:", "def index(")
    screen.sees("serving", times=3)
    [curl] = screen.sees(r"send +(curl .*)")
    assert send(curl) == "202"
    screen.sees("webhook: POST /reload; restarting")
    screen.sees("serving", times=4)
    assert send(curl.replace("sha256=", "sha256=00", 1)) == "401"

    [dashboard] = screen.sees(r"dashboard: (http://\S+)#token=\S+")
    assert "<!doctype html" in page(dashboard).lower()

    [lifecycle] = screen.sees(r"ask +(\S+) ctl status --watch")
    assert (tmp_path / "here" / lifecycle).exists() or shutil.which(lifecycle)
    screen.types("status")
    screen.sees(r"running for .*, pid \d+, started 4 times")
    screen.presses("C-c")
    screen.sees("suspended")
    screen.types("resume")
    screen.sees("resumed")
    screen.types("help")
    screen.sees("reload +React as if a file had changed")
    screen.sees("restart +Restart the command")
    screen.types("quit")
    screen.sees(r"shell>\s*$")
    assert screen.processes() == []


def page(url: str) -> str:
    """Return the page as a browser receives it, or an empty string during a restart."""
    try:
        with urllib.request.urlopen(url, timeout=LIMIT) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def edit(file: Path, old: str, new: str) -> None:
    """Edit a file as editors do, so that readers never see half of it."""
    draft = file.with_name(f".{file.name}.draft~")
    draft.write_text(file.read_text().replace(old, new))
    draft.replace(file)


def send(curl: str) -> str:
    """Run the printed command, and return the response's status."""
    line = curl.replace("curl ", "curl -s -o /dev/null -w '%{http_code}' ", 1)
    return subprocess.run(["bash", "-c", line], check=True, capture_output=True, text=True, timeout=LIMIT).stdout
