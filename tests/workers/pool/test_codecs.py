"""Codecs: what they carry, what they refuse in the sender, and that one that is missing says what to install."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from lifecycle.workers.pool.codecs import CODECS, codec

NESTED: list[Any] = []
for _ in range(100_000):
    NESTED = [NESTED]


@pytest.mark.parametrize("name", sorted(CODECS))
def test_plain_data_comes_back_as_it_was(name: str) -> None:
    value = [None, True, 1, -1.5, "grüße", {"a": [1, {"b": "c"}]}]
    assert codec(name).loads(codec(name).dumps(value)) == value


@pytest.mark.parametrize("name", ["msgpack", "pickle"])
def test_bytes_are_carried_where_there_are_bytes(name: str) -> None:
    assert codec(name).loads(codec(name).dumps(b"\x00\xff")) == b"\x00\xff"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("msgpack", object(), "object"),
        ("msgpack", iter(()), "iterator"),
        ("msgpack", 2**70, "msgpack cannot carry it"),
        ("msgpack", "\ud800", "surrogates"),
        ("msgpack", NESTED, "recursion"),
        ("json", b"bytes", "bytes"),
        ("json", object(), "object"),
        ("json", float("nan"), "Out of range"),
        ("json", NESTED, "recursion"),
        ("pickle", threading.Lock(), "lock"),
        ("pickle", NESTED, "recursion"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else type(value).__name__,
)
def test_what_cannot_be_carried_is_refused_with_a_word_on_what_it_is(name: str, value: object, why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        codec(name).dumps(value)


@pytest.mark.parametrize("name", sorted(CODECS))
@pytest.mark.parametrize("data", [b"", b"\xc1", b"[1", b"\x91" * 100_000, b"[" * 100_000], ids=len)
def test_what_cannot_be_read_is_a_value_error(name: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        codec(name).loads(data)


def test_a_name_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="codec='yaml' is none; give one of 'msgpack', 'json', 'pickle'"):
        codec("yaml")


def test_a_codec_whose_library_is_missing_says_what_to_install_and_the_others_do_not_need_it() -> None:
    program = """
import sys
sys.modules["msgspec"] = None
from lifecycle.workers.pool.codecs import codec
print(codec("json").dumps([1]), codec("pickle").loads(codec("pickle").dumps(1)))
try:
    codec("msgpack")
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.startswith("b'[1]' 1\nmsgspec codec='msgpack' needs msgspec, which is not installed; install")
    assert "lifecycle-control[pool]" in done.stdout


def test_msgpack_leaves_typing_extensions_as_they_were() -> None:
    program = """
import sys
from lifecycle.workers.pool.codecs import codec
codec("msgpack")
assert "typing_extensions" not in sys.modules, "it was not needed"
import msgspec
class Point(msgspec.Struct):
    x: int
assert msgspec.json.decode(b'{"x": 1}', type=Point) == Point(1)
"""
    subprocess.run([sys.executable, "-c", program], timeout=50, check=True)
