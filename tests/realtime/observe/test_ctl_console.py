"""`ControlSocket(console=True)` and `lifecycle ctl console`: a Python prompt inside a running program."""

from __future__ import annotations

import asyncio
import builtins
import logging
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pexpect
import psutil
import pytest

from lifecycle.control import Event, Router
from lifecycle.observe import ControlSocket
from lifecycle.runtime import lifetime
from lifecycle.testing import running
from tests.programs import LIMIT
from tests.realtime.observe.requests import ask, streaming, tell
from tests.realtime.observe.shops import at_terminal, ctl, ends, environment, home, started
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

    from tests.programs import Running
    from tests.realtime.observe.requests import Stream

Env = dict[str, str]


@asynccontextmanager
async def program() -> AsyncGenerator[Path]:
    """Yield the control socket of a program that allows consoles."""
    async with lifetime(signals=False), running(_router()), ControlSocket("api", console=True) as control:
        assert control.path is not None
        yield control.path


def _router() -> Router:
    router = Router("main")

    @router.on("greet/*")
    async def greet(event: Event) -> None:
        print("greeted", event.topic)

    return router


class Prompt:
    """A client of a Python console, without the terminal."""

    def __init__(self, path: Path, stream: Stream, greeting: dict[str, Any]) -> None:
        self.path = path
        self.stream = stream
        self.greeting = greeting
        self.target = f"/api/console/{greeting['console']}"
        self.failed = False

    async def send(self, code: str) -> None:
        assert await tell(self.path, self.target, {"line": code}) == (200, {})

    async def interrupt(self) -> None:
        assert await tell(self.path, f"{self.target}/interrupt", {}) == (200, {})

    async def run(self, code: str) -> str:
        """Send ``code``, and return the output up to the next prompt, followed by that prompt unless it is ``>>> ``."""
        await self.send(code)
        return await self.rest()

    async def rest(self) -> str:
        """Return the output up to the next prompt."""
        text = ""
        while "prompt" not in (message := await self.stream.next()):
            text += message["text"]
        self.failed = message["failed"]
        return text if message["prompt"] == ">>> " else text + message["prompt"]

    async def text(self) -> str:
        """Return the next output."""
        return str((await self.stream.next())["text"])


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[Prompt]:
    async with streaming(path, "/api/console") as stream:
        prompt = Prompt(path, stream, await stream.next())
        assert await prompt.rest() == ""
        yield prompt


# -- running code ----------------------------------------------------------------------------------------------------


async def test_results_and_printed_text_go_to_the_client_only(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with program() as path, opened(path) as prompt:
        assert await prompt.run("x = 41") == ""
        assert await prompt.run("x + 1") == "42\n"
        assert await prompt.run("_ * 2") == "84\n"
        assert await prompt.run("None") == ""
        assert await prompt.run("# a comment") == ""
        assert await prompt.run("import sys; print('out'); print('err', file=sys.stderr); 'value'") == (
            "out\nerr\n'value'\n"
        )
        assert await prompt.run("await asyncio.to_thread(print, 'from a thread')") == "from a thread\n"
        print("by the program")
    assert capsys.readouterr() == ("by the program\n", "")
    assert not hasattr(builtins, "_")


async def test_await_works_at_the_top_level(runtime: Path) -> None:
    async with program() as path, opened(path) as prompt:
        assert await prompt.run("await asyncio.sleep(0, 'slept')") == "'slept'\n"
        assert await prompt.run("async with asyncio.timeout(None): print('inside')\n") == "inside\n"


async def test_the_program_is_at_hand(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with program() as path, opened(path) as prompt:
        assert prompt.greeting["variables"] == ["asyncio", "console", "lifetime", "routers"]
        assert await prompt.run("lifetime.state().stopping, list(routers), len(console.routes())") == (
            "(False, ['main'], 1)\n"
        )
        await prompt.run("from lifecycle import Event")
        # A lane handles the event for the program, not for the console.
        assert await prompt.run("await routers['main'].call(Event('greet/x'))") == ""
        assert capsys.readouterr().out == "greeted greet/x\n"


async def test_a_block_ends_at_an_empty_line_and_pasted_code_need_not(runtime: Path) -> None:
    async with program() as path, opened(path) as prompt:
        assert await prompt.run("for i in range(2):") == "... "
        assert await prompt.run("    print(i)") == "... "
        assert await prompt.run("") == "0\n1\n"
        assert await prompt.run("def double(x):\n\n    return 2 * x\n\ndouble(4)\n") == "8\n"
        assert await prompt.run("(1 +") == "... "
        assert await prompt.run("1)") == "2\n"


async def test_errors_are_shown_with_the_lines_of_the_input(runtime: Path) -> None:
    async with program() as path, opened(path) as prompt:
        await prompt.run("def fail():\n    raise ValueError('no')\n")
        assert await prompt.run("fail()") == (
            "Traceback (most recent call last):\n"
            '  File "<console>", line 1, in <module>\n'
            '  File "<console>", line 2, in fail\n'
            "ValueError: no\n"
        )
        assert prompt.failed
        assert "SyntaxError: " in await prompt.run("x = = 1")
        assert "KeyboardInterrupt" in await prompt.run("raise KeyboardInterrupt")
        # The cancellation of an awaited task is an ordinary error.
        await prompt.run("task = asyncio.create_task(asyncio.sleep(60)); task.cancel()")
        assert "CancelledError" in await prompt.run("await task")
        assert await prompt.run("1") == "1\n"
        assert not prompt.failed


@pytest.mark.parametrize("leave", ["exit()", "quit()", "raise SystemExit(3)"])
async def test_exit_leaves_the_console_and_the_program_continues(runtime: Path, leave: str) -> None:
    async with program() as path:
        async with opened(path) as prompt:
            await prompt.send(leave)
            await prompt.stream.until(lambda message: message == {"left": True})
            assert await prompt.stream.next() is None
        assert (await ask(path, "/api/state"))[1]["lifetime"]["stopping"] is False


async def test_text_that_a_client_reads_too_slowly_is_bounded(runtime: Path) -> None:
    async with program() as path, opened(path) as prompt:
        await prompt.send("print('x' * 1_000_000, end='')")
        dropped = (await prompt.stream.next())["dropped"]
        assert dropped + len(await prompt.rest()) == 1_000_000
        assert dropped > 500_000


# -- interrupting and leaving ----------------------------------------------------------------------------------------


async def test_an_interrupt_cancels_the_code_or_discards_incomplete_input(runtime: Path) -> None:
    async with program() as path, opened(path) as prompt:
        await prompt.send(
            "try:\n    print('begun')\n    await asyncio.sleep(3600)\nfinally:\n    print('cleaned up')\n"
        )
        assert await prompt.text() == "begun\n"
        await prompt.interrupt()
        assert await prompt.rest() == "KeyboardInterrupt\ncleaned up\n"
        assert await prompt.run("if True:") == "... "
        await prompt.interrupt()
        assert await prompt.rest() == "KeyboardInterrupt\n"
        assert await prompt.run("'next'") == "'next'\n"


async def test_input_is_refused_while_code_runs(runtime: Path) -> None:
    async with program() as path, opened(path) as prompt:
        await prompt.send("print('begun'); await asyncio.sleep(3600)")
        assert await prompt.text() == "begun\n"
        status, body = await tell(path, prompt.target, {"line": "1"})
        assert (status, "interrupt it" in body["error"]) == (409, True)
        # The program answers meanwhile.
        assert (await ask(path, "/api/program"))[0] == 200


async def test_a_client_that_disconnects_cancels_the_code(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with program() as path:
        async with opened(path) as prompt:
            await prompt.send(
                "try:\n    print('begun')\n    await asyncio.sleep(3600)\nfinally:\n    print('cancelled')\n"
            )
            assert await prompt.text() == "begun\n"
        async with asyncio.timeout(LIMIT):
            while "cancelled\n" not in capsys.readouterr().out:
                await asyncio.sleep(0.01)
        assert "lifecycle ctl console" not in {each.get_name() for each in asyncio.all_tasks()}
        status, body = await tell(path, prompt.target, {"line": "1"})
        assert (status, body["error"]) == (404, "this console is closed; open another")


async def test_code_that_ignores_its_cancellation_is_logged(runtime: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with program() as path:
        async with opened(path) as prompt:
            await prompt.run("released = asyncio.Event(); import builtins; builtins.released = released")
            await prompt.send(
                "try:\n    print('begun')\n    await asyncio.sleep(3600)\nexcept asyncio.CancelledError:\n"
                "    await released.wait()\n"
            )
            assert await prompt.text() == "begun\n"
        async with asyncio.timeout(LIMIT):
            while "ignored its cancellation" not in caplog.text:
                await asyncio.sleep(0.01)
        builtins.released.set()  # type: ignore[attr-defined]
        del builtins.released  # type: ignore[attr-defined]


async def test_closing_the_socket_ends_the_consoles(runtime: Path) -> None:
    async with lifetime(signals=False), ControlSocket("api", console=True) as control:
        assert control.path is not None
        async with opened(control.path) as prompt:
            await prompt.send("print('begun'); await asyncio.sleep(3600)")
            assert await prompt.text() == "begun\n"
            await control.__aexit__(None, None, None)
            assert await prompt.stream.next() is None


# -- several consoles and other readers ------------------------------------------------------------------------------


async def test_consoles_have_their_own_variables_and_output(runtime: Path) -> None:
    async with program() as path, opened(path) as first, opened(path) as second:
        await first.run("x = 1")
        assert "NameError" in await second.run("x")
        await first.send("await asyncio.sleep(3600)")
        await second.run("x = 'second'")
        assert await second.run("print('to the second'); x") == "to the second\n'second'\n"
        await first.interrupt()
        assert await first.rest() == "KeyboardInterrupt\n"
        assert await second.run("_") == "'second'\n"


async def test_a_task_prints_to_the_program_once_its_console_has_left(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stdout = sys.stdout
    async with program() as path, opened(path) as other:
        async with opened(path) as prompt:
            await prompt.run("async def say():\n    print('early')\n    await left.wait()\n    print('late')\n")
            await prompt.run("import builtins; left = builtins.left = asyncio.Event()")
            await prompt.send("task = builtins.task = asyncio.create_task(say()); await asyncio.sleep(0)")
            assert await prompt.rest() == "early\n"
        assert await other.run("left.set(); await task") == ""
        del builtins.left, builtins.task  # type: ignore[attr-defined]
    async with asyncio.timeout(LIMIT):
        while sys.stdout is not stdout:
            await asyncio.sleep(0.01)
    assert capsys.readouterr().out == "late\n"


@pytest.mark.parametrize("attach_first", [True, False])
async def test_logs_go_to_the_program_and_to_attached_clients(
    runtime: Path, capsys: pytest.CaptureFixture[str], attach_first: bool
) -> None:
    log = logging.getLogger("shop")
    log.addHandler(handler := logging.StreamHandler(sys.stderr))
    try:
        order = ["/api/attach", "/api/console"] if attach_first else ["/api/console", "/api/attach"]
        async with program() as path, streaming(path, order[0]) as first, streaming(path, order[1]) as second:
            attached, stream = (first, second) if attach_first else (second, first)
            prompt = Prompt(path, stream, await stream.next())
            assert await prompt.rest() == ""
            code = "import logging; logging.getLogger('shop').warning('logged'); print('printed')"
            assert await prompt.run(code) == "printed\n"
            assert (await attached.next())["text"] == "logged\n"
    finally:
        log.removeHandler(handler)
    assert capsys.readouterr() == ("", "logged\n")


# -- lifecycle ctl console -------------------------------------------------------------------------------------------

PROGRAM = """
import asyncio
from lifecycle import Router, run
from lifecycle.observe import ControlSocket

async def main():
    print("up", flush=True)
    await asyncio.Event().wait()

run(ControlSocket("shop", console=True), ControlSocket("closed"), Router("main"), main)
"""


@pytest.fixture(scope="module")
def env() -> Iterator[Env]:
    with home() as env:
        yield env


@pytest.fixture(scope="module")
def shop(env: Env) -> Iterator[Running]:
    with started(env, "-c", PROGRAM) as program:
        yield program


def test_a_console_at_a_terminal(env: Env, shop: Running) -> None:
    with at_terminal(env, "-p", "shop", "console") as child:
        child.expect_exact("asyncio, console, lifetime, routers")
        child.expect_exact(">>> ")
        child.send("for i in range(3):\r    print('number', i)\r\r")
        child.expect_exact("number 2")
        child.send("async def later():\r    await asyncio.sleep(0.1)\r    print('back', 'ground')\r\r")
        child.send("task = asyncio.create_task(later())\r")
        child.expect_exact("back ground")
        child.send("print('be' + 'gun'); await asyncio.sleep(3600)\r")
        child.expect_exact("begun")
        child.sendintr()
        child.expect_exact("KeyboardInterrupt")
        child.send("x = = 1\r")
        child.expect_exact("SyntaxError")
        child.send("'still ' + 'here'\r")
        child.expect_exact("'still here'")
        child.expect_exact(">>> ")
        child.sendeof()
        assert "has exited" not in ends(child)
    assert shop.process.poll() is None


def test_a_second_ctrl_c_leaves_code_that_blocks_the_program(env: Env) -> None:
    with started(env, "-c", PROGRAM.replace("shop", "blocked")) as program:
        with at_terminal(env, "-p", "blocked", "console") as child:
            child.expect_exact(">>> ")
            child.send("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)\r")
            child.expect_exact("SIGSTOP)\r\n")
            until_blocking(lambda: psutil.Process(program.process.pid).status() == psutil.STATUS_STOPPED)
            child.sendintr()
            child.expect_exact("^C")
            child.sendintr()
            child.expect_exact("left the console; the code is still running in blocked")
            ends(child, 1)
        program.process.send_signal(signal.SIGCONT)


def test_the_console_ends_with_the_program(env: Env) -> None:
    with started(env, "-c", PROGRAM.replace("shop", "short")), at_terminal(env, "-p", "short", "console") as child:
        child.expect_exact(">>> ")
        child.send("lifetime.shutdown()\r")
        child.expect_exact("short has exited")
        ends(child)


def test_a_script_from_a_pipe(env: Env, shop: Running) -> None:
    script = "def double(x):\n\n    return 2 * x\n\nprint(double(4))\nawait asyncio.sleep(0, list(routers))\n"
    assert ctl(env, "-p", "shop", "console", given=script) == (0, "8\n['main']\n", "")
    status, out, err = ctl(env, "-p", "shop", "console", given="1 / 0")
    assert (status, err) == (1, "")
    assert out.endswith("ZeroDivisionError: division by zero\n")
    status, out, err = ctl(env, "-p", "shop", "console", given="x = (")
    assert (status, out) == (1, "")
    assert "the code is incomplete" in err
    assert ctl(env, "-p", "shop", "console", given="") == (0, "", "")
    assert ctl(env, "-p", "shop", "console", given="exit()") == (0, "", "")


def test_the_console_is_off_unless_the_program_allows_it(env: Env, shop: Running) -> None:
    status, out, err = ctl(env, "-p", "closed", "console", given="1")
    assert (status, out) == (1, "")
    assert "start the program with ControlSocket(console=True)" in err


def test_ctrl_d_restores_the_terminal(env: Env, shop: Running) -> None:
    script = f"{sys.executable} -m lifecycle ctl -p shop console; stty -a; echo END"
    child: pexpect.spawn[str] = pexpect.spawn(
        "sh", ["-c", script], env=environment({**env, "TERM": "xterm"}), encoding="utf-8"
    )
    try:
        child.expect_exact(">>> ", timeout=LIMIT)
        child.sendeof()
        child.expect_exact("END", timeout=LIMIT)
        assert {"icanon", "echo"} <= set(str(child.before).split())
    finally:
        child.close(force=True)
