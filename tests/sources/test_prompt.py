from __future__ import annotations

import asyncio
import io
import logging
import os
import pty
import stat
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import Command, CommandEvent, Commands
from lifecycle.control.commands import completions
from lifecycle.events import EndOfInputEvent, SuspendEvent
from lifecycle.sources import PromptSource
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = 30


class Screen:
    """The remote end of a terminal. The local end is connected to stdin and stdout."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys, follower = pty.openpty()
        os.set_blocking(self.keys, False)
        self.near = os.fdopen(follower, "r+b", buffering=0)
        self.stdin = io.TextIOWrapper(self.near, "utf-8", write_through=True)
        self.stdout = io.TextIOWrapper(io.FileIO(os.dup(follower), "w"), "utf-8", write_through=True)
        self._monkeypatch = monkeypatch
        self.shown = ""

    def connect(self) -> None:
        """Connect the terminal.

        Tests call this themselves, because pytest replaces stdin and stdout after it sets up fixtures.
        """
        self._monkeypatch.setattr(sys, "stdin", self.stdin)
        self._monkeypatch.setattr(sys, "stdout", self.stdout)
        self._monkeypatch.setenv("TERM", "xterm")

    def run(self, source: PromptSource, emit: Emitted) -> asyncio.Task[None]:
        self.connect()
        return asyncio.create_task(source.run(emit))

    def type(self, text: str) -> None:
        os.write(self.keys, text.encode())

    def shows(self, text: str) -> bool:
        with suppress(BlockingIOError):
            self.shown += os.read(self.keys, 65_536).decode()
        return text in self.shown

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.near.fileno())

    def hang_up(self) -> None:
        if self.keys >= 0:
            os.close(self.keys)
            self.keys = -1

    def close(self) -> None:
        self.hang_up()
        self.stdin.close()
        self.stdout.close()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    screen = Screen(monkeypatch)
    yield screen
    screen.close()


class Emitted:
    def __init__(self) -> None:
        self.events: list[Any] = []

    async def __call__(self, event: Any) -> Any:
        self.events.append(event)


async def test_lines_become_events_and_ctrl_d_ends_the_input(screen: Screen) -> None:
    emit, before = Emitted(), screen.modes()
    running = screen.run(PromptSource(prompt="? "), emit)
    await until(lambda: screen.shows("?"))
    screen.type("suspend\r")
    await until(lambda: emit.events)
    screen.type("\x04")
    await running
    assert emit.events == [SuspendEvent(), EndOfInputEvent()]
    assert screen.modes() == before


async def test_cancelling_a_half_typed_prompt_restores_the_terminal(screen: Screen) -> None:
    """The terminal, stdout and the log handlers are restored. The suite also checks that no thread is left."""
    emit, before = Emitted(), screen.modes()
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger("lifecycle.test").addHandler(handler)
    stream = handler.stream
    running = screen.run(PromptSource(), emit)
    await until(lambda: screen.shows(">"))
    screen.type("half")
    await until(lambda: screen.shows("half"))
    assert screen.modes() != before
    assert handler.stream is not stream
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert emit.events == []
    assert screen.modes() == before
    assert sys.stdout is screen.stdout
    assert handler.stream is stream
    logging.getLogger("lifecycle.test").removeHandler(handler)


async def test_clear_line_clears_a_half_typed_line(screen: Screen) -> None:
    emit, source = Emitted(), PromptSource(commands=["go"])
    assert not source.clear_line()
    running = screen.run(source, emit)
    await until(lambda: screen.shows(">"))
    assert not source.clear_line()
    screen.type("suspend")
    await until(lambda: screen.shows("suspend"))
    assert source.clear_line()
    screen.type("go\r\x04")
    await running
    assert emit.events == [CommandEvent("go"), EndOfInputEvent()]
    assert not source.clear_line()


async def test_ctrl_c_sends_sigint(screen: Screen) -> None:
    """The terminal sends the signal itself, because no code reads keys while the loop is blocked."""
    running = screen.run(PromptSource(), Emitted())
    await until(lambda: screen.shows(">"))
    local_modes: int = screen.modes()[3]
    assert local_modes & termios.ISIG
    assert not local_modes & termios.ICANON
    running.cancel()
    await asyncio.wait({running})


async def test_a_terminal_that_hangs_up_ends_the_prompt(screen: Screen) -> None:
    emit = Emitted()
    running = screen.run(PromptSource(), emit)
    await until(lambda: screen.shows(">"))
    screen.hang_up()
    async with asyncio.timeout(LIMIT):
        await running
    assert emit.events == [EndOfInputEvent()]


async def test_printed_text_appears_above_the_prompt(screen: Screen) -> None:
    running = screen.run(PromptSource(), Emitted())
    await until(lambda: screen.shows(">"))
    print("some output")
    await until(lambda: screen.shows("some output\r\n"))
    sys.stdout.writelines(["one\n", "two\n", "three\n"])
    await until(lambda: screen.shows("three\r\n"))
    # All lines at once: the prompt is drawn below them.
    assert screen.shows("one\r\ntwo\r\nthree\r\n\x1b")
    running.cancel()
    await asyncio.wait({running})


async def test_text_printed_before_the_cancellation_is_shown(screen: Screen) -> None:
    running = screen.run(PromptSource(), Emitted())
    await until(lambda: screen.shows(">"))
    print("first")
    print("last words")
    running.cancel()
    await asyncio.wait({running})
    await until(lambda: screen.shows("last words\r\n"))


async def test_an_incomplete_line_is_shown_when_it_is_flushed(screen: Screen) -> None:
    running = screen.run(PromptSource(), Emitted())
    await until(lambda: screen.shows(">"))
    print("not yet", end="")
    print(" \x1b[31mcomplete\x07", end="\t", flush=True)
    await until(lambda: screen.shows("not yet ") and screen.shows("complete"))
    print("10 %", end="\r", file=sys.stderr, flush=True)
    await until(lambda: screen.shows("10 %"))
    print("77 %", end="\r", file=sys.stderr, flush=True)
    await until(lambda: screen.shows("77"))
    running.cancel()
    await asyncio.wait({running})
    # The prompt does not redraw what it has shown, so this is the line as it was written.
    await until(lambda: screen.shows("not yet \x1b[31mcomplete\x07\t\r\n77 %\r"))


async def test_output_of_others_does_not_split_an_incomplete_line(screen: Screen) -> None:
    """Each task and each thread has its own line. The end of a task ends its line."""
    running = screen.run(PromptSource(), Emitted())
    await until(lambda: screen.shows(">"))
    cues = [asyncio.Event(), asyncio.Event()]

    async def write(name: str, cue: asyncio.Event) -> None:
        print(name, end=" ", flush=True)
        await cue.wait()
        print(f"{name} ends", end="", flush=True)

    writers = [asyncio.create_task(write(name, cue)) for name, cue in zip(("one", "two"), cues, strict=True)]
    await until(lambda: screen.shows("two"))
    await asyncio.to_thread(print, "thread")
    print("loop")
    await until(lambda: screen.shows("thread\r\n") and screen.shows("loop\r\n"))
    for name, cue in zip(("one", "two"), cues, strict=True):
        cue.set()
        await until(lambda name=name: screen.shows(f"{name} {name} ends\r\n"))  # type: ignore[misc]
    await asyncio.gather(*writers)
    running.cancel()
    await asyncio.wait({running})


async def test_a_long_incomplete_line_leaves_space_for_the_prompt(screen: Screen) -> None:
    termios.tcsetwinsize(screen.near.fileno(), (10, 20))
    running = screen.run(PromptSource(), Emitted())
    await until(lambda: screen.shows(">"))
    for number in range(20):
        print(f"{number:03}", end=" ", flush=True)
    # The line takes four of ten rows, so it is drawn with the prompt.
    await until(lambda: screen.shows("019"))
    assert not screen.shows("018 019 \r\n")
    for number in range(20, 40):
        print(f"{number:03}", end=" ", flush=True)
    await until(lambda: screen.shows("038 039 \r\n"))
    print("end")
    await until(lambda: screen.shows("end\r\n"))
    running.cancel()
    await asyncio.wait({running})


async def test_a_toolbar_is_shown(screen: Screen) -> None:
    running = screen.run(PromptSource(toolbar=lambda: "all is well"), Emitted())
    await until(lambda: screen.shows("all is well"))
    running.cancel()
    await asyncio.wait({running})


async def test_without_a_terminal_it_reads_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("suspend\n"))
    emit = Emitted()
    async with PromptSource() as source:
        await source.run(emit)
    assert emit.events == [SuspendEvent(), EndOfInputEvent()]
    assert source.lines == 1


async def test_a_history_file_that_cannot_be_written_fails_the_start(screen: Screen, tmp_path: Path) -> None:
    screen.connect()
    with pytest.raises(OSError, match="no/such"):
        await PromptSource(history=tmp_path / "no/such").__aenter__()


async def test_only_the_user_can_read_a_new_history_file(screen: Screen, tmp_path: Path) -> None:
    """A history file that already exists keeps its lines and its mode."""
    screen.connect()
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("line")
    old.chmod(0o640)
    before = os.umask(0)
    try:
        for path in (old, new):
            async with PromptSource(history=path):
                pass
    finally:
        os.umask(before)
    assert [stat.filemode(path.stat().st_mode) for path in (old, new)] == ["-rw-r-----", "-rw-------"]
    assert old.read_text() == "line"


# -- completion ------------------------------------------------------------------------------------------------


def completed(text: str, *commands: Command) -> list[str]:
    registry = Commands(*commands)
    return completions(text, [each.name for each in registry], registry.get)[1]


def fail(_: str) -> list[str]:
    raise OSError("no")


DEPLOY = Command("deploy", complete=["web", "worker", "db"])
COMMANDS = (
    DEPLOY,
    Command("delete", complete=lambda typed: [typed + "1", typed + "2"]),
    Command("fail", complete=fail),
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["delete", "deploy", "fail"]),
        ("de", ["delete", "deploy"]),
        ("x", []),
        ("deploy ", ["db", "web", "worker"]),
        ("deploy w", ["web", "worker"]),
        ("deploy web w", ["web", "worker"]),
        ("delete a", ["a1", "a2"]),
        ("nobody ", []),
        ("  de", ["delete", "deploy"]),
    ],
)
def test_tab_completes_the_command_then_its_arguments(text: str, words: list[str]) -> None:
    assert completed(text, *COMMANDS) == words


def test_a_completion_that_fails_completes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert completed("fail a", *COMMANDS) == []
    assert "completing the arguments of 'fail' failed" in caplog.text
