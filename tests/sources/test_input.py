from __future__ import annotations

import asyncio
import fcntl
import io
import logging
import os
import pty
import shlex
import socket
import struct
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.control import Command, CommandEvent, Commands, Event, Router
from lifecycle.control.commands import split
from lifecycle.events import (
    EndOfInputEvent,
    LineEvent,
    ReloadEvent,
    ResumeEvent,
    ShutdownEvent,
    SuspendEvent,
    TerminateEvent,
    UnknownCommandEvent,
)
from lifecycle.sources import InputSource
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


END = EndOfInputEvent()
LIMIT = 30
#: The length of the longest accepted line in bytes.
MAX_LINE = 1_048_576


async def events_of(source: InputSource) -> list[Any]:
    events: list[Any] = []

    async def emit(event: Any) -> None:
        events.append(event)

    async with asyncio.timeout(LIMIT):
        await source.run(emit)  # type: ignore[arg-type]  # the deliveries are ignored
    return events


async def lines_of(data: bytes) -> list[str]:
    events = await events_of(InputSource(raw=True, stream=io.BytesIO(data)))
    assert events.pop() == END
    return [event.line for event in events]


@contextmanager
def pipe() -> Iterator[tuple[IO[str], int]]:
    read, write = os.pipe()
    with os.fdopen(read) as stream:
        try:
            yield stream, write
        finally:
            os.close(write)


@contextmanager
def terminal() -> Iterator[tuple[IO[str], int]]:
    leader, follower = pty.openpty()
    with os.fdopen(follower) as stream:
        try:
            yield stream, leader
        finally:
            os.close(leader)


# -- meaning of a line ------------------------------------------------------------------------------------------


async def test_built_in_commands_become_lifecycle_events() -> None:
    text = "suspend\ns\nresume\nr\nreload\nterminate\nx\nquit\nq\nexit\n"
    assert await events_of(InputSource(stream=io.StringIO(text))) == [
        SuspendEvent(),
        SuspendEvent(),
        ResumeEvent(),
        ResumeEvent(),
        ReloadEvent(),
        TerminateEvent(),
        TerminateEvent(),
        ShutdownEvent("quit"),
        ShutdownEvent("quit"),
        ShutdownEvent("quit"),
        END,
    ]


LIFECYCLE = ("exit", "q", "quit", "r", "reload", "resume", "s", "suspend", "terminate", "x")


@pytest.mark.parametrize("line", ["exit the building", "x marks the spot", "quit extra", "r u there", "reload 'now'"])
async def test_a_built_in_command_takes_no_arguments(line: str) -> None:
    assert await events_of(InputSource(stream=io.StringIO(f" {line} \n"))) == [
        UnknownCommandEvent(line, LIFECYCLE),
        END,
    ]
    source = InputSource(fallback=LineEvent, stream=io.StringIO(f"{line}\nquit\n"))
    assert await events_of(source) == [LineEvent(line), ShutdownEvent("quit"), END]


async def test_arguments_are_split_as_a_shell_does() -> None:
    source = InputSource(commands=["deploy"], stream=io.StringIO("""deploy "the web" 'a b'\\ c now\n"""))
    assert await events_of(source) == [CommandEvent("deploy", ("the web", "a b c", "now")), END]


async def test_unclosed_quotes_are_split_at_blanks() -> None:
    source = InputSource(commands=["say"], stream=io.StringIO("say it's fine\n"))
    assert await events_of(source) == [CommandEvent("say", ("it's", "fine")), END]


@given(st.text(alphabet="ab \t'\"\\\n", max_size=12))
def test_splitting_agrees_with_the_standard_library(line: str) -> None:
    try:
        expected = shlex.split(line)
    except ValueError:
        expected = line.split()
    assert split(line) == expected


async def test_an_unknown_command_lists_the_known_ones() -> None:
    source = InputSource(commands=["up", "down"], stream=io.StringIO("sideways now\n"))
    assert await events_of(source) == [UnknownCommandEvent("sideways", ("down", "up")), END]


async def test_blank_lines_are_ignored() -> None:
    assert await events_of(InputSource(stream=io.StringIO("\n  \n\t\n"))) == [END]


async def test_commands_map_to_events_or_functions_of_their_arguments() -> None:
    source = InputSource(
        commands={"go": ResumeEvent(), "mail": lambda args: Event("mail/new", args), "note": None},
        stream=io.StringIO("go\nmail a b\nnote c\n"),
    )
    assert await events_of(source) == [ResumeEvent(), Event("mail/new", ("a", "b")), CommandEvent("note", ("c",)), END]


async def test_a_registry_is_read_again_for_every_line() -> None:
    registry = Commands(Command("one"))
    source = InputSource(commands=registry, stream=io.StringIO("one\ntwo\n"))
    registry.add(Command("two"))
    assert await events_of(source) == [CommandEvent("one"), CommandEvent("two"), END]


async def test_commands_of_the_router_that_was_added_last_come_first() -> None:
    one, other = Router(), Router()
    one.commands.add(Command("quit", event=lambda _: Event("one")))
    other.commands.add(Command("quit", event=lambda _: Event("other")))
    stream = io.StringIO("quit\nnothing\n")
    source = InputSource(stream=stream)
    for router, topic in ((one, "one"), (other, "other"), (one, "one")):
        source.use_router(router)
        stream.seek(0)
        event, unknown, _ = await events_of(source)
        assert event == Event(topic)
        assert unknown == UnknownCommandEvent("nothing", LIFECYCLE)


async def test_the_fallback_gets_lines_that_are_not_commands() -> None:
    source = InputSource(fallback=LineEvent, stream=io.StringIO("quit\nhello  there\n"))
    assert await events_of(source) == [ShutdownEvent("quit"), LineEvent("hello  there"), END]


async def test_a_fallback_may_return_none() -> None:
    assert await events_of(InputSource(fallback=lambda _: None, stream=io.StringIO("hello\n"))) == [END]


async def test_an_error_in_a_command_function_skips_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def number(args: tuple[str, ...]) -> Event:
        return Event("number", int(args[0]))

    source = InputSource(commands={"n": number}, stream=io.StringIO("n one\nn 2\n"))
    assert await events_of(source) == [Event("number", 2), END]
    assert "could not be turned into an event" in caplog.text


async def test_raw_makes_every_line_a_line_event() -> None:
    assert await lines_of(b"quit\n\n 'x\n") == ["quit", "", " 'x"]


@pytest.mark.parametrize("commands", ["deploy", {"deploy": 3}, ["two words"], [""], 7])
def test_invalid_commands_raise(commands: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        InputSource(commands=commands)


def test_raw_with_commands_or_fallback_raises() -> None:
    with pytest.raises(ValueError, match="raw"):
        InputSource(raw=True, commands=["x"])


# -- bad input -------------------------------------------------------------------------------------------------


async def test_line_endings_and_the_last_line() -> None:
    assert await lines_of(b"a\r\nb\rc\r\r\n\r\nlast") == ["a", "b\rc\r", "", "last"]


async def test_invalid_utf_8_is_replaced_and_nul_is_kept() -> None:
    assert await lines_of(b"\xff\xfe\n\x00a\xc3\n") == ["\ufffd\ufffd", "\x00a\ufffd"]


async def test_characters_split_between_chunks_are_decoded() -> None:
    text = "é€😀" * 50_000
    assert await lines_of(f"{text}\nend\n".encode()) == [text, "end"]


async def test_the_longest_line_is_a_megabyte(caplog: pytest.LogCaptureFixture) -> None:
    longest = b"x" * MAX_LINE
    assert await lines_of(longest + b"\n" + longest + b"y\nnext\n" + longest + b"yy") == [longest.decode(), "next"]
    assert "discarded" in caplog.text


@pytest.mark.parametrize("letter", ["x", " x", "'", '"', "\\"])
async def test_a_line_of_a_megabyte_is_an_unknown_command_like_any_other(letter: str) -> None:
    line = "go" + letter * ((MAX_LINE - 2) // len(letter))
    unknown, end = await events_of(InputSource(commands=["quit"], stream=io.StringIO(line + "\n")))
    assert isinstance(unknown, UnknownCommandEvent)
    assert end == END


@given(st.lists(st.binary(max_size=9).filter(lambda line: b"\n" not in line and not line.endswith(b"\r"))))
async def test_no_line_is_lost_or_changed(lines: list[bytes]) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    assert await lines_of(whole) == [line.decode("utf-8", "replace") for line in lines]


# -- input files ------------------------------------------------------------------------------------------------


async def test_a_pipe_is_read_as_data_arrives_and_ends_when_its_writer_closes() -> None:
    with pipe() as (stream, write):
        copy = os.dup(write)
        seen: list[Any] = []

        async def emit(event: Any) -> None:
            seen.append(event)

        running = asyncio.create_task(InputSource(raw=True, stream=stream).run(emit))  # type: ignore[arg-type]
        os.write(copy, b"one\ntw")
        await until(lambda: seen == [LineEvent("one")])
        os.write(copy, b"o\nthree")
        os.close(copy)
        await until(lambda: len(seen) == 2)
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])


async def test_the_end_of_a_pipe_delivers_the_last_line() -> None:
    read, write = os.pipe()
    os.write(write, b"one\ntwo")
    os.close(write)
    with os.fdopen(read) as stream:
        assert await events_of(InputSource(raw=True, stream=stream)) == [LineEvent("one"), LineEvent("two"), END]


async def test_reading_does_not_change_flags_of_a_shared_file() -> None:
    for kind in (pipe, terminal):
        with kind() as (stream, other):
            seen: list[Any] = []

            async def emit(event: Any, seen: list[Any] = seen) -> None:
                seen.append(event)

            before = fcntl.fcntl(stream.fileno(), fcntl.F_GETFL)
            running = asyncio.create_task(InputSource(raw=True, stream=stream).run(emit))  # type: ignore[arg-type]
            os.write(other, b"line\n")
            await until(lambda seen=seen: seen)  # type: ignore[misc]
            assert fcntl.fcntl(stream.fileno(), fcntl.F_GETFL) == before
            running.cancel()
            await asyncio.wait([running])
            assert fcntl.fcntl(stream.fileno(), fcntl.F_GETFL) == before


async def test_a_socket_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rb") as stream:
        theirs.sendall(b"one\ntwo\n")
        theirs.shutdown(socket.SHUT_WR)
        assert await events_of(InputSource(raw=True, stream=stream)) == [LineEvent("one"), LineEvent("two"), END]


async def test_a_file_on_disk_is_read(tmp_path: Path) -> None:
    path = tmp_path / "commands"
    path.write_text("suspend\nresume\n" * 20_000)
    with path.open() as stream:
        events = await events_of(InputSource(stream=stream))
    assert events == [SuspendEvent(), ResumeEvent()] * 20_000 + [END]


async def test_the_null_device_ends_immediately() -> None:
    with Path(os.devnull).open() as stream:
        assert await events_of(InputSource(stream=stream)) == [END]


async def test_a_missing_stdin_counts_as_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert await events_of(InputSource()) == [END]


async def test_a_closed_stream_counts_as_empty() -> None:
    stream = io.StringIO("never seen\n")
    stream.close()
    assert await events_of(InputSource(stream=stream)) == [END]


class Slow(io.RawIOBase):
    """A file of an unknown kind, which only a thread can read."""

    def __init__(self, *lines: bytes, error: Exception | None = None) -> None:
        self.lines, self.error = list(lines), error

    def readline(self, _: int | None = -1, /) -> bytes:
        if self.lines:
            return self.lines.pop(0)
        if self.error is not None:
            raise self.error
        return b""


async def test_any_other_file_is_read_in_a_thread() -> None:
    stream: Any = Slow(b"one\n", b"tw", b"o\n")
    assert await events_of(InputSource(raw=True, stream=stream)) == [LineEvent("one"), LineEvent("two"), END]


async def test_an_error_of_a_file_read_in_a_thread_is_raised() -> None:
    stream: Any = Slow(b"one\n", error=RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        await events_of(InputSource(raw=True, stream=stream))


async def test_a_read_error_ends_the_input_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    stream: Any = Slow(b"one\n", error=OSError("the disk is broken"))
    assert await events_of(InputSource(raw=True, stream=stream)) == [LineEvent("one"), END]
    assert "the disk is broken" in warnings_of(caplog)


async def test_a_connection_that_is_reset_ends_the_input_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as peer:
        ours, _ = server.accept()
        with ours, ours.makefile("rb") as stream:
            peer.sendall(b"one\n")
            await until(lambda: ours.recv(1, socket.MSG_PEEK))
            # With this option, closing the socket resets the connection.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            assert (await events_of(InputSource(raw=True, stream=stream)))[-1] == END
    assert "Connection reset by peer" in warnings_of(caplog)


def warnings_of(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


async def test_a_terminal_that_hangs_up_ends_the_input() -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower) as stream:
        os.write(leader, b"one\n")
        seen: list[Any] = []

        async def emit(event: Any) -> None:
            seen.append(event)

        running = asyncio.create_task(InputSource(raw=True, stream=stream).run(emit))  # type: ignore[arg-type]
        await until(lambda: seen)
        os.close(leader)
        async with asyncio.timeout(LIMIT):
            await running
        assert seen == [LineEvent("one"), END]


# -- pace ------------------------------------------------------------------------------------------------------


class Held:
    """An `emit` whose deliveries finish when the test lets them."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.ends: list[asyncio.Future[None]] = []

    async def __call__(self, event: Any) -> asyncio.Future[None]:
        self.events.append(event)
        self.ends.append(asyncio.get_running_loop().create_future())
        return self.ends[-1]


async def test_from_a_pipe_the_next_line_waits_for_the_last_one() -> None:
    emit = Held()
    with pipe() as (stream, write):
        os.write(write, b"one\ntwo\n")
        running = asyncio.create_task(InputSource(raw=True, stream=stream).run(emit))  # type: ignore[arg-type]
        await until(lambda: emit.events)
        await asyncio.sleep(0.01)
        assert emit.events == [LineEvent("one")]
        emit.ends[0].set_exception(OSError("a handler that failed is no reason to stop"))
        await until(lambda: len(emit.events) == 2)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()


async def test_at_a_terminal_lines_do_not_wait_for_each_other() -> None:
    emit = Held()
    with terminal() as (stream, keys):
        os.write(keys, b"one\ntwo\n")
        running = asyncio.create_task(InputSource(raw=True, stream=stream).run(emit))  # type: ignore[arg-type]
        await until(lambda: len(emit.events) == 2)
        running.cancel()
        await asyncio.wait([running])


async def test_a_line_of_a_pipe_that_arrives_with_the_cancellation_is_emitted() -> None:
    emit = Held()
    with pipe() as (stream, write):
        running = asyncio.create_task(InputSource(raw=True, stream=stream).run(emit))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        os.write(write, b"one\nhalf")
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        assert emit.events == [LineEvent("one")]


@pytest.mark.parametrize(
    ("piped", "emitted"),
    [
        (b"one\ntwo\nthree\n", ["one", "two", "three"]),
        (b"one\ntwo\nquit\nthree\n", ["one", "two", "quit"]),
        (b"terminate\none\n", ["terminate"]),
    ],
)
async def test_unhandled_lines_of_a_pipe_are_emitted_on_cancellation_up_to_a_quit(
    piped: bytes, emitted: list[str]
) -> None:
    commands = {"quit": lambda _: ShutdownEvent("quit"), "terminate": lambda _: TerminateEvent()}
    emit = Held()
    with pipe() as (stream, write):
        os.write(write, piped)
        source = InputSource(commands=commands, fallback=LineEvent, stream=stream)
        running = asyncio.create_task(source.run(emit))  # type: ignore[arg-type]
        await until(lambda: emit.events)
        os.write(write, b"last\n")
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
    made = {"quit": ShutdownEvent("quit"), "terminate": TerminateEvent()}
    last = [] if made.keys() & emitted else ["last"]
    assert emit.events == [made.get(line, LineEvent(line)) for line in [*emitted, *last]]


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_stop_handles_more_lines_of_a_pipe_than_a_lane_can_hold(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router(buffer=2)
    seen: list[str] = []
    begun = asyncio.Event()

    @router.on("input/line")
    async def handle(event: LineEvent) -> None:
        seen.append(event.line)
        begun.set()
        await asyncio.sleep(0)

    lines = [f"line {number}" for number in range(50)]
    with pipe() as (stream, write):
        os.write(write, "".join(f"{line}\n" for line in lines).encode())
        router.add_source(InputSource(raw=True, stream=stream))
        running = asyncio.create_task(router.run())
        await begun.wait()
        router.stop() if how == "stop" else running.cancel()
        await asyncio.wait([running])
    assert seen == (lines if how == "stop" else lines[:1])
    # A cancelled router does not drain: its source stops immediately and logs the number of dropped lines.
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert ("dropped 46 input lines" in caplog.text) is (how == "cancel")


async def test_at_a_terminal_a_line_that_arrives_with_the_cancellation_is_dropped() -> None:
    emit = Held()
    with terminal() as (stream, keys):
        running = asyncio.create_task(InputSource(raw=True, stream=stream).run(emit))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        os.write(keys, b"one\n")
        running.cancel()
        await asyncio.wait([running])
        assert emit.events == []


# -- in a router -----------------------------------------------------------------------------------------------


async def test_commands_of_the_router_are_known() -> None:
    router = Router()
    seen: list[Any] = []
    router.add_source(InputSource(stream=io.StringIO("deploy web\nsuspend\nwhat\n")))

    @router.command
    async def deploy(event: CommandEvent) -> None:
        """Deploy TARGET."""
        await asyncio.sleep(0.01)
        seen.append(event)

    router.handle("lifecycle/*", seen.append)
    router.handle("input/unknown", seen.append)
    router.handle("input/eof", lambda _: router.stop())
    async with asyncio.timeout(LIMIT):
        await router.run()
    assert seen[:2] == [CommandEvent("deploy", ("web",)), SuspendEvent()]
    assert seen[2].command == "what"
    assert {"deploy", "suspend", "q"} <= set(seen[2].known)


async def test_a_handler_that_fails_does_not_end_the_input(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lifecycle")
    router = Router()
    seen: list[Any] = []

    @router.command
    def fail(_: CommandEvent) -> None:
        raise asyncio.CancelledError if seen else OSError("no")

    router.command("note", seen.append)
    router.handle("input/eof", lambda _: router.stop())
    router.add_source(InputSource(stream=io.StringIO("fail\nnote\nfail\nnobody\nreload\nnote\n")))
    async with asyncio.timeout(LIMIT):
        await router.run()
    assert seen == [CommandEvent("note")] * 2
