"""The commands themselves: fast help and version, and uniform messages."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lifecycle.cli import main
from lifecycle.cli.app import parse
from lifecycle.cli.output import Console, has_colour
from lifecycle.flows import Flows, linear, task

ROOT = Path(__file__).parents[2]
HEAVY = {"asyncio", "aiohttp", "prompt_toolkit", "blinker", "dotenv", "pathspec", "rich", "http"}

PROGRAM = """
import json, sys
from lifecycle.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0, end.code
print(json.dumps([name for name in sys.modules if "." not in name]))
"""


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--version"],
        ["watch", "--help"],
        ["up", "--help"],
        ["run", "--help"],
        ["ctl", "--help"],
        ["webhook", "send", "--help"],
    ],
)
def test_help_and_version_import_nothing_heavy(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIFECYCLE_LOOP", raising=False)  # it imports asyncio
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *argv], capture_output=True, text=True, check=True, timeout=20
    )
    assert HEAVY.isdisjoint(json.loads(ended.stdout.splitlines()[-1]))


def test_the_version_of_a_source_that_is_not_installed_is_unknown() -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from lifecycle.cli import main; main(['--version'])"
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False, timeout=20
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "lifecycle unknown (lifecycle-control is not installed; this is a copy of its source)\n"


@pytest.mark.parametrize(
    "argv",
    [["--version"], ["ctl", "ps", "--json"], ["flows", "list", "app.db"], ["flows", "show", "app.db", "--json"]],
    ids=" ".join,
)
def test_full_disk_is_a_failure(argv: list[str], tmp_path: Path) -> None:
    async def made() -> None:
        async with Flows(tmp_path / "app.db") as flows:
            await flows.start(linear("f", task(lambda: None, name="t", provides=None)), id="f")

    asyncio.run(made())
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "lifecycle", *argv],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=20,
            cwd=tmp_path,
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        )
    assert (ended.returncode, ended.stderr) == (
        1,
        "[lifecycle] cannot write the output: No space left on device\n",
    )


@pytest.mark.parametrize("argv", [[], ["wacth"], ["watch", "--nope", "--", "true"], ["run"]])
def test_usage_errors_exit_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert "usage: lifecycle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["up", "web", "--logdir=d"], "lifecycle up: error: unknown: --logdir=d; did you mean --log-dir?"),
        (["up", "-x"], "lifecycle up: error: unknown: -x\n"),
        (["watch", "src", "--no-promt", "--", "true"], "unknown: --no-promt; did you mean --no-prompt?"),
        (["run", "a:b", "c"], "lifecycle run: error: unknown: c\n"),
        (["webhook", "send", "URL", "--scheme", "github", "--secret-env", "S", "--date", ""], "did you mean --data?"),
    ],
)
def test_unknown_option_is_named_by_its_command(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(argv)
    assert said in capsys.readouterr().err


def test_names_may_be_on_both_sides_of_an_option() -> None:
    assert parse(["up", "web", "--log-dir", "d", "db"]).names == ["web", "db"]
    assert parse(["watch", "a", "--ext", "py", "b", "--", "true"]).paths == (Path("a"), Path("b"))


def test_a_refusal_is_one_line_and_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--", "no-such-command"]) == 2
    assert capsys.readouterr().err == ("[lifecycle] 'no-such-command': command not found on PATH; is it installed?\n")


def test_every_line_of_a_message_has_the_prefix() -> None:
    stream = io.StringIO()
    Console(stream=stream).error("one\n\n  two")
    assert stream.getvalue() == "[lifecycle] one\n[lifecycle]\n[lifecycle]   two\n"


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("env", "colour"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)]
)
def test_colour_is_for_terminals_and_can_be_refused(env: dict[str, str], colour: bool) -> None:
    stream = FakeTerminal()
    assert has_colour(stream, env) is colour
    assert not has_colour(io.StringIO(), env)
    Console(colour, stream).success("done")
    assert ("\x1b[" in stream.getvalue()) is colour


def test_help_needs_no_terminals() -> None:
    """Without termios (Windows), help still works and every module except those for terminals can be imported."""
    code = """
import sys
sys.modules["termios"] = sys.modules["pty"] = sys.modules["fcntl"] = None
import lifecycle.cli.watch.launcher, lifecycle.cli.watch.run, lifecycle.cli.watch.runner
lifecycle.cli.main(["watch", "--help"])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "--ready" in ended.stdout
