"""What a child is told, and how what it shows gets above the prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lifecycle.cli.watch.launcher import changes_env
from lifecycle.cli.watch.runner import changed
from lifecycle.cli.watch.terminal import AboveThePrompt


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


def test_lines_are_written_whole(capsys: pytest.CaptureFixture[str]) -> None:
    screen = AboveThePrompt()
    seen = []
    for data in (b"one", b"\r\ntw", b"o\n\xc3", b"\xa4", b""):
        screen.write(data)
        seen.append(capsys.readouterr().out)

    assert seen == ["", "one\r\n", "two\n", "", "ä\n"]


def test_colours_are_kept_and_no_line_is_held_back_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    screen = AboveThePrompt()
    screen.write(b"\x1b[31mred\x1b[0m\n")
    screen.write(b"." * 100_000)

    assert capsys.readouterr().out == "\x1b[31mred\x1b[0m\n" + "." * 100_000 + "\n"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"a.py": "modified"}, "changed: a.py"),
        ({"a.py": "added", "b.py": "deleted"}, "changed: a.py (added), b.py (deleted)"),
        (dict.fromkeys("abcde", "modified"), "changed: a, b, c (+2)"),
    ],
)
def test_a_few_names_are_shown_and_the_others_counted(names: dict[str, str], said: str) -> None:
    assert changed({Path(name): change for name, change in names.items()}, str) == said  # type: ignore[misc]  # literals
