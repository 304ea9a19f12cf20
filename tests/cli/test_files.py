"""Files of KEY=VALUE lines, parsed the way python-dotenv does."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from dotenv import dotenv_values

from lifecycle.cli.files import load_table, parse_env, read_env
from lifecycle.cli.output import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=1", "1"),
        ("  export A = 1  ", "1"),
        ("A=", ""),
        ("A=   # nothing", ""),
        ("A=a b  # a comment", "a b"),
        ("A=a#b", "a#b"),
        ("A='a # $b \\n'", "a # $b \\n"),
        ('A="a # b"# c', "a # b"),
        (r'A="\"\\\n\t\$x"', '"\\\n\t\\$x'),
        ('A="one\ntwo"', "one\ntwo"),
        ("A=it's", "it's"),
        ("A=a=b", "a=b"),
        ("A=ä", "ä"),
        ("A=1\r\nA=2\r\n", "2"),
    ],
)
def test_values(text: str, value: str) -> None:
    assert parse_env(f"# first\n\n{text}\n", ".env") == {"A": value}


@pytest.mark.parametrize(
    "text",
    [
        "B=1\nA=${B}/x",
        "A=${NOT_SET_ANYWHERE:-default}",
        'A="x${B}y"',
        r"A='it\'s'",
        r'A="\$x"',
        r"A=\n",
        "A-B=1",
        "1A=2",
        "A=don't stop",
        'MSG=say "hi"',
        "export A=1",
        "A='x'#c",
    ],
)
def test_a_file_is_read_as_python_dotenv_reads_it(text: str) -> None:
    assert parse_env(text, ".env") == dict(dotenv_values(stream=io.StringIO(text)))


def test_an_error_about_a_line_does_not_show_its_secret() -> None:
    with pytest.raises(ConfigError, match=r"\.env:2: .*PASSWORD=\*\*\*.* cannot be read") as caught:
        parse_env("A=1\nPASSWORD='hunter2\n", ".env")
    assert "hunter2" not in str(caught.value)


def test_set_variable_wins_also_in_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOT_OF_IT", "/set")
    assert parse_env("ROOT_OF_IT=/file\nA=${ROOT_OF_IT}/a", ".env")["A"] == "/set/a"


def test_a_name_without_a_value_sets_nothing() -> None:
    assert parse_env("A\nB=1", ".env") == {"B": "1"}


@pytest.mark.parametrize("line", ["'A=B'=1", "''=1", "A: 1", "=1", "A='1", 'A="1', "A='1' 2", "A B=1", "A=\0"])
def test_a_line_that_cannot_be_read_is_named(line: str) -> None:
    with pytest.raises(ConfigError, match=r"^\.env:2: .*write KEY=VALUE"):
        parse_env(f"B=1\n{line}", ".env")


def test_references_that_multiply_are_refused() -> None:
    lines = ["V0=" + "x" * 1000, *(f"V{n + 1}=" + f"${{V{n}}}" * 10 for n in range(30))]
    message = r"\.env:4: with its references, the value of V3 is too long for an environment variable; shorten it"
    with pytest.raises(ConfigError, match=message):
        parse_env("\n".join(lines), ".env")
    many = "\n".join(["A=" + "x" * 100_000, *(f"B{n}=${{A}}" for n in range(1000))])
    with pytest.raises(ConfigError, match=r"\.env:63: .* B61 is too long"):
        parse_env(many, ".env")


def test_a_table_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lifecycle.toml").write_text(f"a = {'[' * 20_000}{']' * 20_000}")
    with pytest.raises(ConfigError, match=r"lifecycle\.toml: is nested too deeply; remove this nesting"):
        load_table(tmp_path / "lifecycle.toml", "processes")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none"):
        read_env(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"A=\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_env(tmp_path / "bytes")


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    """Some editors write a byte order mark."""
    (tmp_path / ".env").write_text("A=1\n", encoding="utf-8-sig")
    assert read_env(tmp_path / ".env") == {"A": "1"}
