"""The functions that `tests.chaos.fuzz` calls with arbitrary bytes.

A target returns if the code under test gives the documented result or error. Anything else is a finding: another
exception, a hang, or a disagreement with a simple reference.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import DecodeError, msgpack

from lifecycle.bridges.cloudevents import from_binary, from_json, to_json
from lifecycle.cli.files import parse_env
from lifecycle.cli.output import ConfigError
from lifecycle.cli.paths import GitIgnore
from lifecycle.control.commands import Command, Commands, completions, split
from lifecycle.control.patterns import Pattern
from lifecycle.errors import InvalidPattern, Unpublishable
from lifecycle.sources.signatures import (
    GitHub,
    GitLab,
    Hmac,
    Slack,
    StandardWebhooks,
    Stripe,
    VerificationError,
)
from lifecycle.workers.pool.protocol import FROM_PARENT, FROM_WORKER, Decoder, ProtocolError, codec
from tests.control import reference_patterns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["TARGETS", "Target"]


@dataclass(frozen=True)
class Target:
    """A function to call with arbitrary bytes, valid inputs to begin with, and words that have a meaning in them."""

    check: Callable[[bytes], None]
    corpus: tuple[bytes, ...]
    words: tuple[str, ...] = ()


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# -- patterns ---------------------------------------------------------------------------------------------------------


def patterns(data: bytes) -> None:
    """A line with a pattern, and a line with a topic."""
    text, _, topic = text_of(data).partition("\n")
    try:
        pattern = Pattern(text)
    except InvalidPattern:
        return
    found = pattern.params(topic)
    assert (found is not None) is pattern.matches(topic) is Pattern(pattern.canonical).matches(topic)
    assert found is None or tuple(found) == pattern.names
    # The reference takes exponential time. It also reads a quoted slash as two characters.
    if text.count("*") + text.count("{") <= 6 and len(topic) <= 60 and "\\/" not in text:
        assert found == reference_patterns.params(text, topic)


# -- commands ---------------------------------------------------------------------------------------------------------

COMMANDS = Commands(
    Command("deploy", complete=("api", "web")), Command("quit", takes_arguments=False), Command("tell", aliases=("t",))
)


def commands(data: bytes) -> None:
    """A line at a prompt."""
    line = text_of(data)
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r\n\f\v", True, ""
        expected = list(lexer)
    except ValueError:
        expected = line.split()
    words = split(line)
    assert words == expected
    event = COMMANDS.parse(line)
    assert (event is None) is (not words)
    typed, found = completions(line, COMMANDS.words(), COMMANDS.get)
    assert line.endswith(typed)
    assert all(each.startswith(typed) for each in found)


# -- signatures -------------------------------------------------------------------------------------------------------

NOW = 1_700_000_000
BODY = '{"ref": "main", "who": "jürgen"}'.encode()
SHARED = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PRIVATE = "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk="
SCHEMES: tuple[Any, ...] = (
    GitHub("hush", b"\xff\x00"),
    StandardWebhooks(SHARED),
    StandardWebhooks(PRIVATE, SHARED),
    Stripe("hush", b"\xff\x00"),
    Slack("hush"),
    GitLab("hush", b"\xff"),
    Hmac("hush", header="X-Sig", algorithm="sha512", encoding="base64", prefix="v="),
)


def signatures(data: bytes) -> None:
    """The seconds since the request was signed, a line for each header, an empty line, and the body."""
    head, _, body = data.partition(b"\n\n")
    late, *lines = text_of(head).split("\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    now = NOW + (int(late) if re.fullmatch("-?[0-9]{1,12}", late) else 0)
    for scheme in SCHEMES:
        try:
            scheme.verify(headers, body, now=now)
        except VerificationError:
            continue
        # Only requests with this body were signed. GitLab signs nothing, and the last four schemes sign no time.
        assert body == BODY or isinstance(scheme, GitLab), scheme
        assert abs(now - NOW) <= 300 or isinstance(scheme, (GitHub, GitLab, Hmac)), scheme


def signed(scheme: Any) -> bytes:
    headers = scheme.sign(BODY, now=NOW, delivery_id="msg_1")
    return "\n".join(["0", *(f"{name}: {value}" for name, value in headers.items())]).encode() + b"\n\n" + BODY


# -- frames -----------------------------------------------------------------------------------------------------------

CODECS: dict[str, Callable[[bytes], Any]] = {"json": json.loads, "msgpack": msgpack.Decoder().decode}


def frames(data: bytes) -> None:
    """A byte that selects the codec and the sender, and the stream that a peer sends."""
    choice, stream = data[:1] or b"\0", data[1:]
    name = sorted(CODECS)[choice[0] & 1]
    known = (FROM_WORKER, FROM_PARENT)[choice[0] >> 1 & 1]
    expected = reference_frames(stream, name, known)
    for size in (1, 7, len(stream) or 1):
        decoder = Decoder(codec(name), known)
        found: list[Any] = []
        try:
            for at in range(0, len(stream), size):
                found += decoder.feed(stream[at : at + size])
        except ProtocolError:
            found.append(None)
        # A decoder that fails does not return the frames before the error in the same piece.
        complete = size == 1 or None not in expected
        assert repr(found) == repr(expected) if complete else found[-1:] == expected[-1:], size


def reference_frames(stream: bytes, name: str, known: Mapping[str, tuple[Any, ...]]) -> list[Any]:
    """Return the frames in a stream. The last item is None if the peer violates the protocol there."""
    found: list[Any] = []
    while len(stream) >= 4:
        size = int.from_bytes(stream[:4], "big")
        if size > 64 * 2**20:
            return [*found, None]
        if len(stream) < 4 + size:
            return found
        try:
            frame = CODECS[name](stream[4 : 4 + size])
        except (ValueError, DecodeError, RecursionError):
            return [*found, None]
        match frame:
            case [str(tag), *items] if tag in known and len(items) == len(known[tag]):
                if not all(isinstance(item, kind) for item, kind in zip(items, known[tag], strict=True)):
                    return [*found, None]
            case _:
                return [*found, None]
        found.append(frame)
        stream = stream[4 + size :]
    return found


def framed(name: str, *sent: list[Any]) -> bytes:
    encode: Callable[[Any], bytes] = {"json": lambda frame: json.dumps(frame).encode(), "msgpack": msgpack.encode}[name]
    bodies = [encode(frame) for frame in sent]
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


# -- .env files -------------------------------------------------------------------------------------------------------


def env_files(data: bytes) -> None:
    """The text of a file."""
    text = text_of(data)
    try:
        found = parse_env(text, ".env")
    except ConfigError:
        return
    # The system accepts them in an environment.
    assert all(name and "=" not in name and "\0" not in name + value for name, value in found.items()), found
    for value in (text.replace("\0", ""), *found.values()):
        # In quotes, only these characters and references have a meaning.
        quoted = value.replace("\\", "\\\\").replace("'", "\\'").replace("${", "$ {")
        again = parse_env(f"FIRST=1\nNAME='{quoted}'\nLAST=2\n", ".env")
        assert again == {"FIRST": "1", "NAME": value.replace("${", "$ {"), "LAST": "2"}, again


# -- gitignore --------------------------------------------------------------------------------------------------------

#: Names in ASCII: git compares bytes, so its ``?`` does not match an é.
PATHS = (
    *("a", "b.txt", "a b", "#x", "!x", "back\\slash", "[a]", "*", "end ", ".hidden"),
    *("dir/a", "dir/b.txt", "dir/sub/a", "dir/sub/deep/b.txt", "other/dir/a", "other/x.py"),
)


@cache
def repository() -> Path:
    """Return a repository with `PATHS`, which is deleted when the process ends."""
    holder = tempfile.TemporaryDirectory()
    _kept.append(holder)
    root = Path(holder.name).resolve()
    subprocess.run(["git", "init", "-q", root], check=True)
    for path in PATHS:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


_kept: list[tempfile.TemporaryDirectory[str]] = []


UNLIKE_GIT = re.compile(rb"[^ -~\r\n]|[\[\\]|\r(?!\n)|\*/ *(?:\r?\n|\Z)|[^/\n!]\*\*|\*\*[^/\r\n]").search


def gitignore(data: bytes) -> None:
    """The text of a ``.gitignore`` file. Git itself is the reference."""
    root = repository()
    (root / ".gitignore").write_bytes(data)
    ours = GitIgnore(root)
    known: Any = {}
    found = {path for path in PATHS if ours.ignores(root / path, known)}
    # pathspec differs from git in classes with slashes or quoted characters, in ``dir/**/`` and ``a**b``, and in blanks
    # other than spaces at the end of a line. For git, a line ends at a null byte, and names are bytes.
    if UNLIKE_GIT(data):
        return
    asked = "\0".join(PATHS).encode() + b"\0"
    done = subprocess.run(
        ["git", "-c", "core.excludesFile=/dev/null", "check-ignore", "--no-index", "--stdin", "-z"],
        cwd=root,
        input=asked,
        capture_output=True,
        check=False,
    )
    expected = set(done.stdout.decode().split("\0")) - {""}
    assert found == expected, (found - expected, expected - found)


# -- CloudEvents ------------------------------------------------------------------------------------------------------


def cloudevents(data: bytes) -> None:
    """Structured JSON, or lines of headers, an empty line, and a body."""
    try:
        event = from_json(data)
    except ValueError:
        assert reference_event(data) is None
    else:
        assert repr((event.topic, event.id, event.data)) == repr(reference_event(data))
        came_back(event)
    head, _, body = data.partition(b"\n\n")
    headers = dict(line.split(": ", 1) for line in text_of(head).split("\n") if ": " in line)
    with contextlib.suppress(ValueError):
        came_back(from_binary("some/topic", headers, body, id="1"))


def reference_event(text: bytes) -> tuple[str, str, Any] | None:
    """Return the topic, the id and the data of structured JSON, or None if it is not a CloudEvent."""
    try:
        record = {name: value for name, value in json.loads(text).items() if value is not None}
        if "data_base64" in record:
            # The decoder raises TypeError for anything but text.
            record["data"] = base64.b64decode(record["data_base64"], validate=True)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    texts = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in record.items() if name != "data"
    }
    topic, name = texts.get("subject") or texts.get("type"), texts.get("id")
    return (topic, name, record.get("data")) if record.get("specversion") == "1.0" and topic and name else None


def came_back(event: Any) -> None:
    """Check that the event is the same after it is written and read again, unless it cannot be written."""
    try:
        written = to_json(event)
    except Unpublishable:
        return
    again = from_json(written)
    assert (again.topic, again.data, again.id) == (event.topic, event.data, event.id or again.id), (event, again)


TARGETS: dict[str, Target] = {
    "patterns": Target(
        patterns,
        (b"file/*\nfile/x", b"{a}/**/[!a-c\\]]?/{b:**}\nx/y/d1/z", b"\\*/a*b*c/**\n*/abc", b"**/x/**\nx"),
        ("**", "*", "?", "[", "]", "[!", "{a}", "{b:**}", "/", "\\", "-"),
    ),
    "commands": Target(
        commands,
        (b"deploy api", b'tell \'a b\' "c \\" d" e\\ f', b"t ''\"\"", b"quit now"),
        ("'", '"', "\\", " ", "deploy", "\u3000", "\v"),
    ),
    "signatures": Target(
        signatures,
        tuple(map(signed, SCHEMES)),
        ("v1,", "v1a,", "t=", "v1=", "v0=", "sha256=", "v=", ",", "-301", "99999999999999999999", *map(str, (NOW, 0))),
    ),
    "frames": Target(
        frames,
        (
            b"\0" + framed("json", ["hello", 1, 2, "python"], ["ready"], ["result", 1, {"a": [1.5, None]}]),
            b"\1" + framed("msgpack", ["pong", 1, None, 0.5, 3], ["error", 1, "a", "b", "c", True], ["end", 1]),
            b"\2" + framed("json", ["setup", {"init": []}], ["call", 1, "f", [1], {}, None, 16], ["cancel", 1, "x"]),
            b"\3" + framed("msgpack", ["credit", 1, 2], ["ping", 1], ["trace", 1, "00-ab-cd-01"], ["bye", 2.5]),
        ),
        tuple({*FROM_WORKER, *FROM_PARENT}),
    ),
    "env-files": Target(
        env_files,
        (b"A=1\n# note\nexport B='x y' # more\nC=\"a\\n${A}\"\n", b"A\nB=${NONE:-x}\n", b"'A'=`b`\r\nC==\n"),
        ("export ", "=", "'", '"', "${", "}", ":-", "#", "\\", "\r\n"),
    ),
    "gitignore": Target(
        gitignore,
        (b"*.txt\n!b.txt\n/dir/\n", b"dir/**/b.txt\n**/a\n", b"\\#x\n\\!x\nend\\ \n[a-c]*\n", b"# note\r\na b \n"),
        ("*", "**", "/", "!", "#", "\\", "[", "]", "[!", "[^", "?", "\n", "\r\n", " ", "dir", "a", "[[:alpha:]]"),
    ),
    "cloudevents": Target(
        cloudevents,
        (
            b'{"specversion": "1.0", "id": "1", "source": "/s", "type": "T", "subject": "a/b", "data": [1, 2.5]}',
            b'{"specversion":"1.0","id":"1","type":"T","data_base64":"' + base64.b64encode(b"\0\xff") + b'","extra":3}',
            b"ce-specversion: 1.0\nce-id: %C3%A4\nce-type: T\ncontent-type: application/json\n\n[1, null]",
            b"ce-id: 1\nce-datacontenttype: text/plain; charset=utf-8\nce-time: 2020-01-01T00:00:00Z\n\nhi",
            b"content-type: application/cloudevents+json\n\n" + b'{"specversion":"1.0","id":"2","subject":"s"}',
        ),
        (
            "specversion",
            "1.0",
            "subject",
            "type",
            "data",
            "data_base64",
            "time",
            "NaN",
            "null",
            ": null",
            "1e999",
            "\\ud800",
        ),
    ),
}
