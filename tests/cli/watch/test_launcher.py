"""The environment and the program of a run, and its output above the prompt."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from lifecycle.cli.output import UsageError
from lifecycle.cli.watch.launcher import arguments, changes_env, find_program, interpreter, own_reload_option
from lifecycle.cli.watch.terminal import AboveThePrompt

ENV = {"PATH": os.environ["PATH"]}


def test_changes_are_a_json_list() -> None:
    env = changes_env({Path("/a/ü.py"): "modified", Path("/b"): "deleted"})

    assert list(env) == ["LIFECYCLE_CHANGES"]
    assert json.loads(env["LIFECYCLE_CHANGES"]) == [
        {"path": "/a/ü.py", "change": "modified"},
        {"path": "/b", "change": "deleted"},
    ]


def test_no_changes_are_an_empty_list() -> None:
    assert changes_env({}) == {"LIFECYCLE_CHANGES": "[]"}


def test_too_many_changes_for_an_environment_are_cut_and_counted() -> None:
    env = changes_env({Path(f"/{'x' * 100}/{number}"): "added" for number in range(10_000)})

    assert len(env["LIFECYCLE_CHANGES"]) < 128 * 1024
    assert len(json.loads(env["LIFECYCLE_CHANGES"])) + int(env["LIFECYCLE_CHANGES_CUT"]) == 10_000


async def test_lines_are_written_whole(capsys: pytest.CaptureFixture[str]) -> None:
    screen = AboveThePrompt()
    seen = []
    for data in (b"one", b"\r\ntw", b"o\n\xc3", b"\xa4", b""):
        screen.write(data)
        seen.append(capsys.readouterr().out)

    assert seen == ["", "one\r\n", "two\n", "", "ä\n"]


async def test_an_incomplete_line_is_written_when_no_more_follows(capsys: pytest.CaptureFixture[str]) -> None:
    screen = AboveThePrompt()
    screen.write(b"your ")
    screen.write(b"name? ")
    assert capsys.readouterr().out == ""
    await asyncio.sleep(0.5)
    assert capsys.readouterr().out == "your name? \n"
    screen.write(b"hello\n")
    assert capsys.readouterr().out == "hello\n"


async def test_colours_are_kept_and_long_lines_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    screen = AboveThePrompt()
    screen.write(b"\x1b[31mred\x1b[0m\n")
    screen.write(b"." * 100_000)

    assert capsys.readouterr().out == "\x1b[31mred\x1b[0m\n" + "." * 100_000 + "\n"


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_program_is_looked_up_on_the_path() -> None:
    assert arguments(["sh", "-c", "true"], shell=False, env=ENV)[0].endswith("/sh")


def test_a_shell_gets_one_line() -> None:
    env = {**ENV, "SHELL": "/bin/sh"}
    assert arguments(["echo", "a", "|", "cat"], shell=True, env=env) == ("/bin/sh", "-c", "echo a | cat")


def test_reason_why_a_program_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("app.py").touch()
    Path("dir").mkdir()
    for name, said in {
        "no-such-command": "command not found on PATH; is it installed",
        "app.py": r"command not found on PATH; to run the file in this directory, use \./app\.py",
        "./none.py": "no such file",
        "./app.py": r"not executable; run chmod \+x \./app\.py, or use python",
        "./dir": "is a directory",
    }.items():
        with pytest.raises(UsageError, match=f"'{name}': {said}"):
            find_program(name, ENV)


class TestInterpreter:
    def test_python_is_its_own_interpreter(self) -> None:
        assert interpreter([sys.executable, "app.py"], ENV) == sys.executable
        assert interpreter(["/opt/x/python3.13t", "-m", "app"], ENV) == "/opt/x/python3.13t"

    def test_shebang_of_console_script_names_the_interpreter(self, tmp_path: Path) -> None:
        assert interpreter([script(tmp_path / "flask", f"#!{sys.executable}\n")], ENV) == sys.executable

    def test_node_is_an_interpreter(self, tmp_path: Path) -> None:
        assert interpreter(["/usr/bin/node", "app.js"], ENV) == "/usr/bin/node"
        (tmp_path / "node").symlink_to(sys.executable)
        found = interpreter([script(tmp_path / "npm", "#!/usr/bin/env node\n")], {"PATH": str(tmp_path)})
        assert found == str(tmp_path / "node")

    def test_shebang_may_use_env(self, tmp_path: Path) -> None:
        (tmp_path / "python3").symlink_to(sys.executable)
        found = interpreter([script(tmp_path / "app", "#!/usr/bin/env -S python3 -u\n")], {"PATH": str(tmp_path)})
        assert found == str(tmp_path / "python3")

    def test_the_long_form_of_pip_is_understood(self, tmp_path: Path) -> None:
        (tmp_path / "python").symlink_to(sys.executable)
        text = f"#!/bin/sh\n'''exec' \"{tmp_path}/python\" \"$0\" \"$@\"\n' '''\n"
        assert interpreter([script(tmp_path / "app", text)], ENV) == f"{tmp_path}/python"

    @pytest.mark.parametrize("text", ["#!/bin/sh\nexec python app.py\n", "\x7fELF", "", "#!\n", "#!'\n"])
    def test_interpreter_of_other_programs_is_unknown(self, tmp_path: Path, text: str) -> None:
        assert interpreter([script(tmp_path / "app", text)], ENV) is None

    def test_interpreter_behind_a_runner_is_unknown(self) -> None:
        assert interpreter(["/usr/bin/uv", "run", "app.py"], ENV) is None
        assert interpreter(["/no/such/thing"], ENV) is None


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("uvicorn app:app --reload", "--reload"),
        ("uvicorn app:app", None),
        ("python manage.py runserver", "runserver without --noreload"),
        ("python manage.py runserver --noreload", None),
        ("/venv/bin/flask --app app run --debug", "--debug without --no-reload"),
        ("flask --app app run --debug --no-reload", None),
        ("python app.py --debug", None),
    ],
)
def test_a_reloader_of_the_command_is_noticed(line: str, option: str | None) -> None:
    assert own_reload_option(line.split()) == option
