"""Makes docs/_static/first.svg: ``python -m docs.make_recording``.

The first program of the README runs in a terminal that tmux draws, and is typed at. The screens that this gives become
one picture that moves: they hang one below the other, as on a film, and the style of the SVG lets them pass, each for
as long as it stood. A viewer that moves nothing shows the last one.
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
NAME = "first.py"
COLUMNS, ROWS = 92, 20
LIMIT = 30.0
LONGEST, LAST = 1.5, 5.0  # seconds that a screen is shown at most, and the last one

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
    """What a terminal showed, and for how many seconds."""

    text: str
    seconds: float


class Terminal:
    """A shell in a terminal, what is typed into it, and what it has shown so far."""

    def __init__(self, here: str) -> None:
        self.screens: list[Screen] = []
        self._socket = f"lifecycle-{uuid.uuid4().hex[:8]}"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._env = {"PATH": path, "HOME": here, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        size = ["-x", str(COLUMNS), "-y", str(ROWS), "-c", here]
        self.tmux("-f", "/dev/null", "new-session", "-d", *size, "env PS1='$ ' sh")
        self._shown, self._since = "", time.monotonic()

    def tmux(self, *argv: str) -> str:
        command = ["tmux", "-L", self._socket, *argv]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=self._env)  # noqa: S603  # ours
        return done.stdout

    def look(self) -> str:
        """What is shown; what was shown until now is kept."""
        text, now = self.tmux("capture-pane", "-p"), time.monotonic()
        if text != self._shown:
            self.screens.append(Screen(self._shown, now - self._since))
            self._shown, self._since = text, now
        return text

    def watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(0.02)

    def types(self, line: str) -> None:
        for letter in line:
            self.tmux("send-keys", "-l", letter)
            self.watch(0.07)
        self.tmux("send-keys", "Enter")

    def sees(self, pattern: str) -> None:
        """Watch until ``pattern`` is shown."""
        end = time.monotonic() + LIMIT
        while not re.search(pattern, self.look()):
            if time.monotonic() > end:
                raise TimeoutError(f"{pattern!r} did not come; the terminal showed:\n{self.look()}")
            time.sleep(0.02)


def first_program() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.partition(f"<!-- file: {NAME} -->\n```python\n")[2].partition("```\n")[0]


def played() -> list[Screen]:
    """The program runs, is suspended, resumed, and restarted by a file that is saved; Ctrl+C ends it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, NAME).write_text(first_program(), encoding="utf-8")
        terminal = Terminal(folder)
        try:
            terminal.sees(r"\$")
            terminal.screens.clear()
            terminal.types(f"python {NAME}")
            terminal.sees(r":\d\d\n.*:\d\d\n")
            terminal.types("suspend")
            terminal.sees("suspended;")
            terminal.watch(LONGEST)
            terminal.types("resume")
            terminal.sees(r"resumed\n.*:\d\d\n")
            Path(folder, "page.html").touch()
            terminal.sees(r"page.html was \w+\n(.*\n)+?.*:\d\d\n.*:\d\d\n")
            terminal.tmux("send-keys", "C-c")
            terminal.sees("(?s)suspended;.*suspended;")
            terminal.watch(LONGEST)
            terminal.tmux("send-keys", "C-c")
            terminal.sees(r"force\n\s*\$")
            return [*terminal.screens, Screen(terminal.look(), LAST)]
        finally:
            terminal.tmux("kill-server")


def film(screens: list[Screen], title: str) -> str:
    """The SVG in which ``screens`` pass by."""
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
    """Play, and write the picture."""
    title = "The program runs, is suspended and resumed, starts again when a file is saved, and ends on Ctrl+C."
    PICTURE.write_text(film(played(), title), encoding="utf-8")


if __name__ == "__main__":
    main()
