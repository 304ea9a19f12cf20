"""`tools.prose`, which finds phrases that are hard to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools import prose

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.other]\n")
    return tmp_path


def found(path: Path, text: str) -> list[tuple[int, str]]:
    path.write_text(text)
    return sorted((each.line, each.rule) for each in prose.check(path))


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("A process who ends is replaced.", "person"),
        ("Nobody holds the lease.", "nobody"),
        ("The option says when to stop.", "speaking"),
        ("It is started anew.", "old"),
        ("The run goes on.", "standing"),
        ("A path is no glob.", "no"),
        ("See the result, and what became of it.", "became"),
        ("What the worker returns is kept.", "opening"),
    ],
)
def test_each_rule_reports_a_sentence_in_every_place(root: Path, sentence: str, rule: str) -> None:
    assert found(root / "a.md", f"# Title\n\n- Fine.\n- {sentence}\n") == [(4, rule)]
    assert found(root / "b.py", f'"""Fine.\n\n{sentence}\n"""\n') == [(3, rule)]
    assert found(root / "c.py", f"x = 1\n# {sentence}\n") == [(2, rule)]
    assert found(root / "d.py", f'def f():\n    raise ValueError("{sentence}")\n') == [(2, rule)]
    assert found(root / "e.py", f'log.warning("{sentence}")\nparser.add_argument("a", help="{sentence}")\n') == [
        (1, rule),
        (2, rule),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Users who write a prompt start here.",
        "There is no default.",
        "Who may call this?",
        "What does a restart do?",
        "The name `nobody` and the call ``says(who)``.",
        "```console\n$ echo nobody says\n```\n",
        "<!-- not run: nobody says so -->\nA line.",
    ],
)
def test_plain_sentences_and_code_are_accepted(root: Path, text: str) -> None:
    assert found(root / "a.md", text) == []


def test_findings_end_with_status_1(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "a.md").write_text("Nobody waits.\n")
    assert prose.main(["a.md"]) == 1
    assert capsys.readouterr().out.startswith("a.md:1: nobody (name the actor")


def test_an_exception_needs_a_text_that_it_matches(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "README.md").write_text("Nobody waits.\n")
    table = '[[tool.prose.exceptions]]\npath = "README.md"\nphrase = "Nobody waits"\nreason = "a quotation"\n'
    (root / "pyproject.toml").write_text(table)
    assert prose.main([]) == 0
    (root / "README.md").write_text("No process waits.\n")
    assert prose.main([]) == 1
    assert "the exception 'Nobody waits' for README.md is not needed" in capsys.readouterr().out
