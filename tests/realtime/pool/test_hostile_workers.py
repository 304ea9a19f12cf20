"""Programs that are not valid workers: the pool detects each one, and its calls fail immediately."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

import pytest

from lifecycle.errors import RemoteError
from lifecycle.workers.pool.connection import ConnectionClosed
from lifecycle.workers.pool.protocol import VERSION, ProtocolError
from tests.realtime.pool.workers import LIMIT, outcome, python

if TYPE_CHECKING:
    from tests.realtime.pool.workers import Spawn, Up

# A task in the fixture manages and stops the worker.
pytestmark = pytest.mark.keeps_tasks

#: A minimal worker without this library.
WORKER = f"""
import json, os, struct, sys, time

def send(*frame):
    body = json.dumps(frame).encode()
    sys.stdout.buffer.write(struct.pack(">I", len(body)) + body)
    sys.stdout.buffer.flush()

def receive():
    return json.loads(sys.stdin.buffer.read(*struct.unpack(">I", sys.stdin.buffer.read(4))))

def answer(*frames):
    "Greet, be ready, wait for a call, and send these; then stay."
    send("hello", {VERSION}, os.getpid(), "test")
    receive()
    send("ready")
    receive()
    for frame in frames:
        send(*frame)
    stay()

def stay():
    while sys.stdin.buffer.read(1):
        pass
"""


async def start(spawn: Spawn, code: str) -> Up:
    return await spawn(python(WORKER + code), by="json")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('hello there', flush=True); stay()", "b'hell'"),
        ("send('ready'); stay()", "sent ready unexpectedly"),
        ("send('pong', 1, None, 0, 0); stay()", "answered ping 1, which was not sent"),
        ("send('result', 1, 2); stay()", "answered call 1, which is not running"),
        ("send('hello', 99, 1, 'test 1.0'); stay()", "uses version 99 of the protocol (test 1.0) instead of version 1"),
        ("send('hello', 1, 1, 'test'); send('hello', 1, 1, 'test'); stay()", "sent hello twice"),
        ("send('hello', 1, 1, 'test', 'more'); stay()", "is not a valid 'hello' frame"),
        ("send('hello', 1, 1, 'test'); receive(); send('ready'); send('ready'); stay()", "sent ready unexpectedly"),
    ],
)
async def test_an_invalid_greeting_closes_the_connection(spawn: Spawn, code: str, why: str) -> None:
    worker = await start(spawn, code)
    async with asyncio.timeout(LIMIT):
        if code.count("send('ready')") < 2:
            with pytest.raises(ProtocolError):
                await worker.connection.ready()
        while not worker.broken:
            await asyncio.sleep(0.001)
    assert why in str(worker.broken[0])
    assert worker.connection.closed


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("answer(['result', 2, 'x'])", "answered call 2, which is not running"),
        ("answer(['result', 1])", "is not a valid 'result' frame"),
        ("answer(['surprise', 1])", "'surprise' is not a known tag"),
        ("answer(['chunk', 1, 'x'])", "sent more chunks than it was granted"),
        ("answer(['end', 1])", "ended as a stream, but is not one"),
        ("answer(['pong', 7, None, 0, 0])", "answered ping 7"),
        ("answer({'a': 1})", "is not a known tag"),
        ("answer(['call', 1, 'f', [], {}, None, 0])", "'call' is not a known tag"),
    ],
)
async def test_an_invalid_answer_fails_the_call(spawn: Spawn, code: str, why: str) -> None:
    worker = await start(spawn, code)
    await worker.connection.ready()
    error = await outcome(worker.call("f"))
    assert isinstance(error, ConnectionClosed)
    assert isinstance(error.__cause__, ProtocolError)
    assert [str(each) for each in worker.broken] == [str(error.__cause__)]
    assert why in str(error.__cause__)
    assert isinstance(await worker.result("f"), ConnectionClosed)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff\xff\xff\xff garbage", "exceeds the limit of 67108864"),
        (struct.pack(">I", 5) + b"abcde", "is not valid json"),
        (b"GET / HTTP/1.1\r\n", "b'GET '"),
        (struct.pack(">I", 0), "is not valid json"),
    ],
)
async def test_garbage_closes_the_connection(spawn: Spawn, data: bytes, why: str) -> None:
    code = f"sys.stdout.buffer.write({data!r}); sys.stdout.buffer.flush(); stay()"
    worker = await start(spawn, f"send('hello', {VERSION}, 1, 'test'); receive(); send('ready'); receive(); {code}")
    await worker.connection.ready()
    error = await outcome(worker.call("f"))
    assert isinstance(error, ConnectionClosed)
    assert why in str(error)
    assert len(worker.broken) == 1


async def test_more_chunks_than_granted_close_the_connection(spawn: Spawn) -> None:
    worker = await start(spawn, "answer(*[['chunk', 1, number] for number in range(4)])")
    await worker.connection.ready()
    request = worker.call("f", window=3)
    assert isinstance(await outcome(request), ConnectionClosed)
    assert [await request.next_chunk() for _ in range(3)] == [0, 1, 2], "earlier chunks must arrive"
    with pytest.raises(ConnectionClosed):
        await request.next_chunk()


async def test_an_end_in_the_middle_of_a_frame_is_not_a_protocol_error(spawn: Spawn) -> None:
    """The worker may have been killed, and its exit status shows how."""
    worker = await start(
        spawn,
        f"send('hello', {VERSION}, 1, 'test'); receive(); send('ready'); receive();"
        "sys.stdout.buffer.write(b'\\0\\0\\0\\xffabc'); sys.stdout.buffer.flush(); os._exit(7)",
    )
    await worker.connection.ready()
    error = await outcome(worker.call("f"))
    assert isinstance(error, ConnectionClosed)
    assert "within a frame" in str(error)
    assert (await worker.end()).exit_code == 7
    assert not worker.broken


async def test_a_program_that_ends_at_once_closes_the_connection(spawn: Spawn) -> None:
    worker = await start(spawn, "sys.exit('I am no worker')")
    with pytest.raises(ConnectionClosed):
        await worker.connection.ready()
    end = await worker.end()
    assert (end.exit_code, "I am no worker" in end.stderr) == (1, True)


async def test_a_worker_that_closes_its_output_fails_its_calls(spawn: Spawn) -> None:
    worker = await start(
        spawn,
        f"send('hello', {VERSION}, 1, 'test'); receive(); send('ready'); receive(); os.close(1); time.sleep(1000)",
    )
    await worker.connection.ready()
    assert isinstance(await outcome(worker.call("f")), ConnectionClosed)
    assert worker.connection.closed
    assert not worker.broken


async def test_writing_to_a_worker_that_never_reads_does_not_wait(spawn: Spawn) -> None:
    worker = await start(spawn, f"send('hello', {VERSION}, 1, 'test'); receive(); send('ready'); time.sleep(1000)")
    await worker.connection.ready()
    requests = [worker.call("f", "x" * 1_000_000) for _ in range(5)]
    ping = asyncio.ensure_future(worker.connection.ping())
    await asyncio.sleep(0)
    assert not any(each.future.done() for each in requests)
    worker.connection.bye(1.0)
    worker.connection.pipes.close()
    for each in requests:
        assert isinstance(await outcome(each), ConnectionClosed)
    with pytest.raises(ConnectionClosed):
        await ping


async def test_an_answer_just_before_the_end_is_delivered(spawn: Spawn) -> None:
    worker = await start(
        spawn,
        f"send('hello', {VERSION}, 1, 'test'); receive(); send('ready'); receive();"
        "send('result', 1, 'x' * 50000); os._exit(0)",
    )
    await worker.connection.ready()
    assert await worker.result("f") == "x" * 50000


async def test_stderr_without_line_ends_is_bounded(spawn: Spawn) -> None:
    worker = await start(
        spawn,
        f"send('hello', {VERSION}, 1, 'test'); receive(); send('ready'); receive();"
        "sys.stderr.write('x' * 5_000_000); sys.stderr.flush(); send('error', 1, 'E', 'm', 't', False); stay()",
    )
    await worker.connection.ready()
    error = await outcome(worker.call("f"))
    assert isinstance(error, RemoteError)
    assert (error.type, error.message, error.traceback) == ("E", "m", "t")
    assert len(worker.connection.pipes.tail()) == 4096


async def test_late_cancellations_and_credits_are_ignored(spawn: Spawn) -> None:
    """The worker ignores a cancellation and a credit for a call that it has already answered."""
    worker = await spawn("tests.realtime.pool.worker_targets:Plain")
    await worker.connection.ready()
    request = worker.call("echo", 1)
    assert await outcome(request) == 1
    # The pool could have sent both frames before the answer arrived.
    for frame in (["cancel", request.number, "late"], ["credit", request.number, 5], ["cancel", 999, "never"]):
        worker.connection.send(frame)
    assert await worker.result("echo", 2) == 2
