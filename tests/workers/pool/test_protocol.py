"""The wire format: values and frames arrive unchanged or are rejected, and invalid data is detected."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import pickle
import struct
import subprocess
import sys
import threading
import uuid
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.workers.pool.protocol import (
    CODECS,
    FROM_PARENT,
    FROM_WORKER,
    LARGE,
    LIMIT,
    Decoder,
    ProtocolError,
    codec,
    encode,
    size_of,
)

NESTED: list[Any] = []
for _ in range(200_000):
    NESTED = [NESTED]


@pytest.mark.parametrize("name", sorted(CODECS))
def test_plain_data_comes_back_as_it_was(name: str) -> None:
    value = [None, True, 1, -1.5, "grüße", {"a": [1, {"b": "c"}]}]
    assert codec(name).loads(codec(name).dumps(value)) == value


@pytest.mark.parametrize("name", ["msgpack", "pickle"])
def test_bytes_are_transferred_unless_the_codec_has_none(name: str) -> None:
    assert codec(name).loads(codec(name).dumps(b"\x00\xff")) == b"\x00\xff"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("msgpack", object(), "type object"),
        ("msgpack", iter(()), "type tuple_iterator"),
        ("msgpack", 2**70, "msgpack cannot encode the value"),
        ("msgpack", "\ud800", "surrogates"),
        ("msgpack", NESTED, "recursion|Stack overflow"),
        ("json", b"bytes", "type bytes"),
        ("json", object(), "type object"),
        ("json", float("nan"), "Out of range"),
        ("json", NESTED, "recursion|Stack overflow"),
        ("pickle", threading.Lock(), "lock"),
        ("pickle", NESTED, "recursion|Stack overflow"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else type(value).__name__,
)
def test_a_value_that_a_codec_cannot_carry_is_refused_with_its_type(name: str, value: object, why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        codec(name).dumps(codec(name).encode_payload(value))


@pytest.mark.parametrize("name", sorted(CODECS))
@pytest.mark.parametrize("data", [b"", b"\xc1", b"[1", b"\x91" * 100_000, b"[" * 100_000], ids=len)
def test_invalid_data_raises_value_error(name: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        codec(name).loads(data)


class Attack:
    """An object whose pickle runs code when it is decoded."""

    ran: ClassVar[list[str]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return _attack, ()


def _attack() -> None:
    Attack.ran.append("attack")


@pytest.mark.parametrize("name", sorted(CODECS))
def test_a_pickle_runs_code_only_with_the_codec_pickle(name: str) -> None:
    body = pickle.dumps(["result", 1, Attack()])
    Attack.ran.clear()
    with pytest.raises(ProtocolError) if name != "pickle" else nullcontext():
        Decoder(codec(name), FROM_WORKER).feed(struct.pack(">I", len(body)) + body)
    assert Attack.ran == (["attack"] if name == "pickle" else [])


def test_an_unknown_codec_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="codec must be one of 'pickle', 'msgpack', 'json', got 'yaml'"):
        codec("yaml")


def test_a_codec_without_its_library_names_the_extra_and_others_do_not_need_it() -> None:
    program = """
import sys
sys.modules["msgspec"] = None
from lifecycle.workers.pool.protocol import codec
print(codec("json").dumps([1]), codec("pickle").loads(codec("pickle").dumps(1)))
try:
    codec("msgpack")
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.startswith("b'[1]' 1\nmsgspec codec='msgpack' needs msgspec; install the extra 'pool'")
    assert "lifecycle-control[pool]" in done.stdout


def test_msgpack_hides_no_module_from_other_threads() -> None:
    """During its import, msgspec searches for typing_extensions, which a program may be importing at the same time."""
    program = """
import sys
hidden = []

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("msgspec"):
            hidden.append("typing_extensions" in sys.modules and sys.modules["typing_extensions"] is None)

sys.meta_path.insert(0, Watch())
from lifecycle.workers.pool.protocol import codec
codec("msgpack")
assert hidden and not any(hidden)
"""
    subprocess.run([sys.executable, "-c", program], timeout=50, check=True)


class Color(enum.StrEnum):
    RED = "red"


class Number(int):
    """A subclass of int."""


@dataclasses.dataclass
class Point:
    x: int


ALTERED: list[Any] = [
    (1, 2),
    {1, 2},
    frozenset({1}),
    Point(1),
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.date(2026, 1, 1),
    dt.timedelta(1),
    decimal.Decimal("1.5"),
    uuid.UUID(int=1),
    Color.RED,
    Number(3),
    bytearray(b"x"),
    collections.OrderedDict(a=1),
    {(1, 2): 3},
]


@pytest.mark.parametrize("value", ALTERED, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ["msgpack", "json"])
def test_a_value_that_would_arrive_altered_is_refused(name: str, value: Any) -> None:
    for wrapped in (value, [1, value], {"a": [value]}):
        with pytest.raises(TypeError, match=f"{name} cannot encode a (value|key) of type .* codec='pickle'"):
            codec(name).encode_payload(wrapped)


@pytest.mark.parametrize("value", ALTERED, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("way", ["encode_payload", "encode_payload_in_thread"])
@pytest.mark.parametrize("back", ["decode_payload", "decode_payload_in_thread"])
def test_pickle_keeps_the_type_of_a_value(way: str, back: str, value: Any) -> None:
    pickle = codec("pickle")
    came = getattr(pickle, back)(getattr(pickle, way)([value]))[0]
    assert (came, type(came)) == (value, type(value))


def test_json_refuses_keys_that_it_would_make_text() -> None:
    with pytest.raises(TypeError, match="json cannot encode a key of type int without altering it"):
        codec("json").encode_payload({1: "a"})
    assert codec("msgpack").loads(codec("msgpack").dumps(codec("msgpack").encode_payload({1: "a", b"b": None}))) == {
        1: "a",
        b"b": None,
    }


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for name in ("msgpack", "json"):
        with pytest.raises(ValueError, match="cannot encode the value"):
            codec(name).dumps(codec(name).encode_payload(endless))


def test_pickle_refuses_what_is_defined_in_main() -> None:
    program = """
from lifecycle.workers.pool.protocol import codec
pickle = codec("pickle")
class Point: pass
def function(): pass
for value in (Point(), Point, function, [{"a": Point()}]):
    for encode in (pickle.encode_payload, pickle.encode_payload_in_thread):
        try:
            encode(value)
        except TypeError as error:
            assert "is defined in __main__, which no worker imports; move it to a module" in str(error), error
        else:
            raise AssertionError(value)
assert pickle.decode_payload(pickle.encode_payload("__main__")) == "__main__"
"""
    subprocess.run([sys.executable, "-c", program], timeout=50, check=True)


def test_the_size_of_a_value_is_estimated() -> None:
    rows = [{"id": number, "name": "n" * 20} for number in range(10_000)]
    assert LARGE < size_of([rows]) < 2_000_000
    assert size_of([b"x" * LARGE]) >= LARGE
    assert size_of([1, "text", [1, 2], {"a": (1,)}, None]) < 1000
    assert size_of([Point(1)]) < 1000


HUGE = b"x" * LARGE


@pytest.mark.parametrize(
    "value",
    [["k", HUGE], ("k", 1, None, HUGE), {"k": 1, "v": HUGE}, [["k", [1, HUGE]]], [1] * 6 + [HUGE], [[1], [[HUGE]]]],
    ids=["list", "tuple", "dict", "nested", "late", "second list"],
)
def test_a_large_item_behind_small_ones_makes_a_value_large(value: object) -> None:
    assert size_of([value]) >= LARGE


# -- frames ----------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=8,
)
FRAMES = st.lists(st.builds(lambda number, value: ["result", number, value], st.integers(0, 2**31), VALUES), max_size=5)


@given(st.sampled_from(sorted(CODECS)), FRAMES, st.lists(st.integers(1, 40), min_size=1))
def test_frames_are_decoded_from_any_pieces(name: str, frames: list[list[Any]], sizes: list[int]) -> None:
    data = b"".join(encode(codec(name), frame) for frame in frames)
    decoder = Decoder(codec(name), FROM_WORKER)
    read: list[list[Any]] = []
    while data:
        size = sizes[len(read) % len(sizes)]
        read += decoder.feed(data[:size])
        data = data[size:]
    assert read == frames
    assert not decoder.midway


def test_a_large_frame_is_joined_once() -> None:
    data = encode(codec("msgpack"), ["result", 1, b"x" * 5_000_000])
    decoder = Decoder(codec("msgpack"), FROM_WORKER)
    read = [frame for at in range(0, len(data), 65536) for frame in decoder.feed(data[at : at + 65536])]
    assert len(read) == 1
    assert read[0][2] == b"x" * 5_000_000


def test_a_frame_of_more_than_64_mib_is_not_encoded() -> None:
    with pytest.raises(ValueError, match=f"exceeds the limit of {LIMIT}"):
        encode(codec("msgpack"), ["result", 1, bytes(65 * 1024 * 1024)])


def test_a_length_of_more_than_64_mib_is_refused_immediately() -> None:
    decoder = Decoder(codec("msgpack"), FROM_WORKER)
    with pytest.raises(ProtocolError, match=r"b'HTTP'.* exceeds the limit"):
        decoder.feed(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("7", "is not a frame; a frame is an array"),
        ("{}", "is not a frame; a frame is an array"),
        ("[]", "is not a frame; a frame is an array"),
        ("[[]]", "not a known tag"),
        ('["call", 1, "f", [], {}, null, 0]', "'call' is not a known tag; the known tags are hello, ready"),
        ('["nonsense"]', "not a known tag"),
        ('["result", 1]', "is not a valid 'result' frame; the item types are int, object"),
        ('["result", 1, 2, 3]', "is not a valid 'result' frame"),
        ('["result", "1", 2]', "is not a valid 'result' frame"),
        ('["pong", 1, null, "long", 0]', "item types are int, int | None, int | float, int"),
        ("[1", "is not valid json"),
        ("\x00\x01", "is not valid json"),
        ("", "is not valid json"),
    ],
)
def test_an_invalid_frame_is_refused_with_the_expected_form(body: str, why: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        Decoder(codec("json"), FROM_WORKER).feed(len(body).to_bytes(4, "big") + body.encode())
    assert why in str(refused.value)


@given(st.binary(max_size=200), st.sampled_from(["msgpack", "json"]))
def test_garbage_is_refused_or_incomplete(data: bytes, name: str) -> None:
    for known in (FROM_WORKER, FROM_PARENT):
        try:
            frames = Decoder(codec(name), known).feed(data)
        except ProtocolError:
            continue
        assert all(frame[0] in known for frame in frames)
