"""Record docs/_static/first.svg: ``python -m docs.make_recording``.

In tmux, ``lifecycle watch`` runs in one pane, and a shell in the pane below edits the program. The screens become one
animated SVG. They are stacked like the frames of a film, and the style moves them past the window. Each is visible for
as long as the terminal showed it. A viewer without animation shows the last frame.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "_static" / "first.svg"
COLUMNS, ROWS, SHELL_ROWS = 92, 22, 5
LIMIT = 30.0
LONGEST, LAST = 2.0, 5.0  # maximum seconds per screen, and seconds for the last screen
PROGRAM = """\
import time

while True:
    print("hello")
    time.sleep(2)
"""
WATCH, SHELL = "0.0", "0.1"  # the panes

FILM = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>{title}</title>
<!-- made by docs/make_recording.py -->
<style>
text {{ font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #c8ccd4; white-space: pre }}
.typed {{ fill: #98c379; font-weight: bold }}
.film {{ transform: translateY(-{last}px); animation: film {seconds:.2f}s step-end infinite }}
@media (prefers-reduced-motion: reduce) {{ .film {{ animation: none }} }}
@keyframes film {{
{moves}
}}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#20232a"/>
<svg y="10" width="{width}" height="{window}"><g class="film">
{lines}
</g></svg>
</svg>
"""
CELL, ROW = 8.5, 18  # pixels


@dataclass(frozen=True)
class Screen:
    """The text of a terminal, and the seconds for which it was shown."""

    text: str
    seconds: float


class Terminal:
    """A terminal with two panes, and the screens that it has shown so far."""

    def __init__(self, here: str) -> None:
        self.screens: list[Screen] = []
        self._socket = f"lifecycle-{uuid.uuid4().hex[:8]}"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._env = {"PATH": path, "HOME": here, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        size = ["-x", str(COLUMNS), "-y", str(ROWS), "-c", here]
        self.tmux("-f", "/dev/null", "new-session", "-d", *size, "env PS1='$ ' sh", ";", "set", "status", "off")
        self.tmux("split-window", "-d", "-l", str(SHELL_ROWS), "-c", here, "env PS1='$ ' sh")
        self._shown, self._since = "", time.monotonic()

    def tmux(self, *argv: str) -> str:
        command = ["tmux", "-L", self._socket, *argv]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=self._env)  # noqa: S603  # ours
        return done.stdout

    def look(self) -> str:
        """Return the current screen, and record the previous one if it was different."""
        panes = [self.tmux("capture-pane", "-p", "-t", pane) for pane in (WATCH, SHELL)]
        text, now = ("\u2500" * COLUMNS + "\n").join(panes), time.monotonic()
        if text != self._shown:
            self.screens.append(Screen(self._shown, now - self._since))
            self._shown, self._since = text, now
        return text

    def watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(0.02)

    def types(self, line: str, pane: str = SHELL) -> None:
        for letter in line:
            self.tmux("send-keys", "-t", pane, "-l", letter)
            self.watch(0.06)
        self.tmux("send-keys", "-t", pane, "Enter")

    def sees(self, pattern: str) -> None:
        """Watch until ``pattern`` is shown."""
        end = time.monotonic() + LIMIT
        while not re.search(pattern, self.look()):
            if time.monotonic() > end:
                raise TimeoutError(f"{pattern!r} was not shown; the terminal showed:\n{self.look()}")
            time.sleep(0.02)


def played() -> list[Screen]:
    """Start a command, edit the program, break it, repair it, and press Ctrl+C twice."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(PROGRAM, encoding="utf-8")
        terminal = Terminal(folder)
        try:
            terminal.sees(r"(?s)\$.*\$")
            terminal.screens.clear()
            terminal.types("lifecycle watch --prompt -- python app.py", WATCH)
            terminal.sees(r"hello\n(.*\n)*hello\n")
            terminal.types("sed -i 's/hello/good evening/' app.py")
            terminal.sees(r"(good evening\n(.*\n)*?){2}")
            terminal.types("sed -i 's/True:/True/' app.py")
            terminal.sees(r"SyntaxError")
            terminal.watch(3)
            terminal.types("sed -i -e 's/True/True:/' -e 's/evening/night/' app.py")
            terminal.sees(r"(good night\n(.*\n)*?){2}")
            terminal.tmux("send-keys", "-t", WATCH, "C-c")
            terminal.sees("suspended")
            terminal.watch(LONGEST)
            terminal.tmux("send-keys", "-t", WATCH, "C-c")
            terminal.sees(r"to force\n\s*\$")
            return [*terminal.screens, Screen(terminal.look(), LAST)]
        finally:
            terminal.tmux("kill-server")


def film(screens: list[Screen], title: str) -> str:
    """Return an SVG that shows ``screens`` one after the other."""
    window = ROWS * ROW
    seconds = [min(screen.seconds, LONGEST) for screen in screens[:-1]] + [LAST]
    begins = [0.0, *accumulate(seconds)]
    return FILM.format(
        title=escape(title),
        width=COLUMNS * CELL + 32,
        height=window + 24,
        window=window,
        last=(len(screens) - 1) * window,
        seconds=begins[-1],
        moves="\n".join(
            f"{begin / begins[-1]:.2%} {{ transform: translateY(-{number * window}px) }}"
            for number, begin in enumerate(begins[:-1])
        ),
        lines="\n".join(
            drawn(line, y=(number * ROWS + row) * ROW)
            for number, screen in enumerate(screens)
            for row, line in enumerate(screen.text.split("\n"), 1)
            if line.strip()
        ),
    )


def drawn(line: str, *, y: int) -> str:
    typed = ' class="typed"' if line.startswith(("$", ">")) else ""
    return f'<text x="16" y="{y}"{typed}>{escape(line, quote=False)}</text>'


def main() -> None:
    """Run the commands, and write the SVG."""
    title = "lifecycle watch restarts a program on a change, keeps it on a broken edit, and ends on Ctrl+C."
    PICTURE.write_text(film(played(), title), encoding="utf-8")


if __name__ == "__main__":
    main()
