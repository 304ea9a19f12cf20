"""The little reader of KEY=VALUE files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lifecycle.cli.failures import ConfigError
from lifecycle.cli.variables import parse_env, read_env

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
        (r'A="\"\\\$\n\t\x"', '"\\$\n\t\\x'),
        ('A="one\ntwo"', "one\ntwo"),
        ("A=it's", "it's"),
        ("A=a=b", "a=b"),
        ("A=ä", "ä"),
        ("A=1\r\nA=2\r\n", "2"),
    ],
)
def test_values(text: str, value: str) -> None:
    assert parse_env(f"# first\n\n{text}\n", ".env") == {"A": value}


@pytest.mark.parametrize("line", ["A", "=1", "1A=1", "A='1", 'A="1', "A='1' 2", "A B=1", "A=\0"])
def test_a_line_that_cannot_be_read_is_named(line: str) -> None:
    with pytest.raises(ConfigError, match=r"^\.env:2: .*write KEY=VALUE"):
        parse_env(f"B=1\n{line}", ".env")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none"):
        read_env(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"A=\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_env(tmp_path / "bytes")


def test_a_mark_of_the_encoding_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    """Some editors write one."""
    (tmp_path / ".env").write_text("A=1\n", encoding="utf-8-sig")
    assert read_env(tmp_path / ".env") == {"A": "1"}
