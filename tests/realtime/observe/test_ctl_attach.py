"""`lifecycle ctl attach` at a terminal and from a pipe, and other output that differs at a terminal."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pexpect
import pytest

from tests.realtime.observe.shops import at_terminal, ctl, ends, environment, home, started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.programs import Running

Env = dict[str, str]


@pytest.fixture(scope="module")
def env() -> Iterator[Env]:
    with home() as env:
        yield env


@pytest.fixture(scope="module")
def shop(env: Env) -> Iterator[Running]:
    with started(env) as program:
        yield program


def leaves(child: pexpect.spawn[str]) -> str:
    """Press Ctrl+D until the command exits. A terminal may lose a key while text is printed above the prompt."""
    said = ""
    while child.isalive():
        with suppress(OSError):  # the process has exited
            child.send("\x04")
        child.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=1)
        said += str(child.before)
    child.wait()
    assert child.exitstatus == 0, said
    return said


def test_attach_opens_the_prompt_of_the_program(env: Env, shop: Running) -> None:
    """Commands, completions and output come from the program. Ctrl+C and Ctrl+D are handled locally."""
    with at_terminal(env, "attach") as child:
        child.expect_exact("shop>")
        child.send("ship al\t\r")
        child.expect_exact("shipped alpha\r\n")
        child.send("status\r")
        child.expect(r"program +running")
        child.send("fail\r")
        child.expect_exact(r"no such \x1b[31mtarget")
        child.send("help\r")
        child.expect_exact("Ship it.")
        # The slow command must not delay the commands after it.
        child.send("emit hold/it\r")
        child.send("nonsense\r")
        child.expect_exact("unknown command 'nonsense'")

        child.send("half typed")
        child.expect_exact("half typed")
        child.send("\x03")
        child.expect(r"\x1b\[[JK]")
        child.send("\x03")
        child.expect_exact("press Ctrl+D to leave the prompt; shop keeps running")
        assert "has exited" not in leaves(child)
    shop.process.send_signal(signal.SIGUSR1)
    shop.until("shipped alpha")
    assert shop.process.poll() is None


def test_lines_from_a_pipe_are_carried_out_one_after_the_other(env: Env, shop: Running) -> None:
    status, out, err = ctl(env, "attach", given="ship one\n\n--\nship 'two words'\nstatus\n")
    assert status == 1
    assert "unknown command '--'" in err
    assert out.index("shipped one") < out.index("shipped two words")
    assert re.search(r"^program +running", out, re.MULTILINE)
    shop.until("shipped two words")
    assert ctl(env, "attach", given="") == (0, "", "")


SLOW = """
import asyncio, signal
from lifecycle import Router, run
from lifecycle.observe import ControlSocket

router, released = Router(), asyncio.Event()

async def slow(_):
    print("slow has begun", flush=True)
    await released.wait()

async def note(event):
    print("noted", *event.args, flush=True)

async def main():
    await router.wait_running()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, released.set)
    print("up", flush=True)
    await asyncio.Event().wait()

router.command("slow", slow)
router.command("note", note)
run(ControlSocket("slow"), router, main)
"""


def test_lines_from_a_pipe_that_wait_for_another_are_not_carried_out_after_ctrl_c(env: Env) -> None:
    with started(env, "-c", SLOW) as program:
        lines = "slow\n" + "note the rest\n" * 3
        command = [sys.executable, "-m", "lifecycle", "ctl", "-p", "slow", "attach"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment(env), text=True) as attached:
            assert attached.stdin is not None
            attached.stdin.write(lines)
            attached.stdin.flush()
            program.until("slow has begun")
            attached.send_signal(signal.SIGINT)
            assert attached.wait(30) == 0
        program.process.send_signal(signal.SIGUSR1)
        assert ctl(env, "-p", "slow", "note", "the end")[0] == 0
        program.until("noted the end")
        assert "noted the rest" not in program.text


# -- other output ----------------------------------------------------------------------------------------------------


def test_a_table_has_colours_and_fits(env: Env, shop: Running) -> None:
    with at_terminal(env, "status") as child:
        out = ends(child)
    assert re.search(r"\x1b\[32mrunning", out)
    assert r"odd\n\x1b[31m'" + '"<b>[red]🐙' in out
    assert "\x1b[31m'" not in out


def test_status_watch_draws_again(env: Env, shop: Running) -> None:
    with at_terminal(env, "status", "--watch") as child:
        child.expect(r"letters")
        ctl(env, "hold", "letters")
        child.expect(r"held")
        ctl(env, "release", "letters")
        child.sendintr()
        assert "Traceback" not in ends(child)
