"""Events become dead letters after handler failures, but not after restarts, prefetching or other crashes."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lifecycle.backoff import Backoff
from lifecycle.bridges import BusEvent, NatsBridge, dedupe
from lifecycle.control import Event, Router
from lifecycle.testing import running
from tests.nats_servers import LIMIT, NatsProcess
from tests.realtime.bridges.receiving import Box, by_hand
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeBridge = Callable[..., NatsBridge]

ROOT = Path(__file__).parents[3]

#: A group member that dies when it handles the event "pill", and records the other events.
KILLED_BY_A_PILL = """
import asyncio, os, signal, sys
from lifecycle import Router, run
from lifecycle.bridges import NatsBridge

url, stream, prefix = sys.argv[1:]
router = Router()
router.add_source(
    NatsBridge(url, stream=stream, prefix=prefix, group="there", subscribe=("job/*",), ack_wait=1.0, max_deliver=2)
)

@router.on("job/*")
async def handle(event):
    if event.data == "pill":
        os.kill(os.getpid(), signal.SIGKILL)
    print(event.data, flush=True)

run(router)
"""


async def deliver(server: NatsProcess, receiver: NatsBridge, times: int) -> None:
    """Deliver all events to the group ``times`` times, and return each one without running a handler."""
    async with by_hand(server) as js:
        subscription = await js.pull_subscribe_bind("there", receiver._settings.stream)
        count = (await js.consumer_info(receiver._settings.stream, "there")).num_pending or 0
        for _ in range(times):
            left = count
            while left:
                messages = await subscription.fetch(left, timeout=LIMIT)
                left -= len(messages)
                for message in messages:
                    await message.nak()
        await subscription.unsubscribe()


async def set_up(here: Router, receiver: NatsBridge, *data: object) -> None:
    """Create the group, and send it events that none of its members has received yet."""
    group = Router()
    group.add_source(receiver)
    async with running(group):
        pass
    for each in data:
        await (await here.emit(Event("job/x", each)))


async def test_events_that_were_only_given_back_by_stopped_members_are_never_dead_letters(bridge: MakeBridge) -> None:
    here = Router()
    here.add_source(bridge(group="here", publish=("job/*",)))

    async with running(here):
        for number in range(5):
            await (await here.emit(Event("job/x", number)))
        for _ in range(5):
            there, began = Router(), asyncio.Event()
            receiver = bridge(group="there", subscribe=("job/*",), max_deliver=2)
            there.add_source(receiver)

            async def for_ever(event: BusEvent, began: asyncio.Event = began) -> None:
                began.set()
                await asyncio.Event().wait()

            there.handle("job/*", for_ever)
            task = asyncio.create_task(there.run())
            await began.wait()
            await until(lambda receiver=receiver: receiver.state().in_flight == 5)  # type: ignore[misc]
            task.cancel()
            await asyncio.wait([task])
        last = Router()
        last.add_source(bridge(group="there", subscribe=("job/*",), max_deliver=2))
        last.handle("job/*", box := Box())
        async with running(last):
            events = await box.wait(5)
    assert sorted(event.data for event in events) == [0, 1, 2, 3, 4]
    assert {event.attempt for event in events} == {1}


async def test_failures_are_counted_over_all_processes_of_a_group(bridge: MakeBridge) -> None:
    """A bridge remembers its own failures, and the server stores the failures of other bridges."""
    here = Router()
    here.add_source(bridge(group="here", publish=("job/*",), subscribe=("dead/**",)))
    here.handle("dead/**", dead := Box())
    attempts: list[int] = []
    async with running(here):
        await (await here.emit(Event("job/x")))
        for number in range(1, 4):
            there = Router()
            there.add_source(bridge(group="there", subscribe=("job/*",), max_deliver=3))

            @there.on("job/*")
            async def fail(event: BusEvent) -> None:
                attempts.append(event.attempt)
                if len(attempts) > event.attempt:
                    await asyncio.Event().wait()
                raise ValueError(f"no {event.attempt}")

            task = asyncio.create_task(there.run())
            await until(lambda number=number: len(attempts) > number or dead.events)  # type: ignore[misc]
            task.cancel()
            await asyncio.wait([task])
        [letter] = await dead.wait(1)
    assert sorted(set(attempts)) == [1, 2, 3]
    assert letter.headers["dead-reason"] == "ValueError: no 3"
    assert letter.headers["dead-attempts"] == "3"


async def test_an_event_that_kills_its_process_is_a_dead_letter_and_those_prefetched_with_it_are_not(
    bridge: MakeBridge, server: NatsProcess
) -> None:
    here = Router()
    receiver = bridge(group="there", subscribe=("job/*",), ack_wait=1.0)
    here.add_source(bridge(group="here", publish=("job/*",), subscribe=("dead/**",)))
    here.handle("dead/**", dead := Box())
    innocent = [f"innocent {number}" for number in range(10)]
    async with running(here):
        await set_up(here, receiver, "pill", *innocent)
        await deliver(server, receiver, 21)
        settings = receiver._settings
        arguments = [server.url, settings.stream, settings.prefix]
        handled: list[str] = []
        crashes = 0

        def is_over() -> bool:
            return len(handled) >= len(innocent) and bool(dead.events)

        # The server redelivers them in any order, so the poison event may be the last one.
        while not is_over():
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", KILLED_BY_A_PILL, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            reading = asyncio.create_task(read_lines(process.stdout, handled))
            await until(lambda reading=reading: is_over() or reading.done())  # type: ignore[misc]
            if not reading.done():
                process.terminate()
            await reading
            crashes += await process.wait() != 0
        [letter] = await dead.wait(1)
    assert sorted(handled) == innocent
    assert letter.data == "pill"
    assert "stopped or died while handling only this event" in letter.headers["dead-reason"]
    assert crashes == 2


async def read_lines(stream: asyncio.StreamReader, lines: list[str]) -> None:
    while line := await stream.readline():
        lines.append(line.decode().strip())


async def test_a_stop_while_a_suspicious_event_is_handled_alone_is_not_a_failure(
    bridge: MakeBridge, server: NatsProcess
) -> None:
    here, there = Router(), Router()
    here.add_source(bridge(group="here", publish=("job/*",)))
    receiver = bridge(group="there", subscribe=("job/*",), max_deliver=1)
    there.add_source(receiver)
    began = asyncio.Event()

    @there.on("job/*")
    async def for_ever(event: BusEvent) -> None:
        began.set()
        await asyncio.Event().wait()

    async with running(here):
        await set_up(here, bridge(group="there", subscribe=("job/*",)), 0)
        await deliver(server, receiver, 21)
        task = asyncio.create_task(there.run())
        await began.wait()
        task.cancel()
        await asyncio.wait([task])
        last = Router()
        last.add_source(bridge(group="there", subscribe=("job/*",), max_deliver=1))
        last.handle("job/*", box := Box())
        async with running(last):
            [event] = await box.wait(1)
    assert event.attempt == 1


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[NatsProcess]:
    """Yield a server that allows one stream."""
    limits = "accounts { A: { jetstream: { max_streams: 1 }, users: [{ user: me, password: pw }] } }"
    with NatsProcess(tmp_path, settings=f"{limits}\nno_auth_user: me") as server:
        yield server


async def test_where_no_bucket_can_be_made_failures_are_counted_by_each_process(
    limited: NatsProcess, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router()
    both = NatsBridge(
        limited.url,
        group="g",
        publish=("job/*",),
        subscribe=("job/*", "dead/**"),
        max_deliver=2,
        backoff=Backoff(initial=0.05, maximum=0.1),
    )
    router.add_source(both)
    router.handle("dead/**", dead := Box())
    router.handle("job/*", broken)
    async with running(router):
        await (await router.emit(Event("job/x")))
        [letter] = await dead.wait(1)
    assert letter.headers["dead-attempts"] == "2"
    assert [
        record.message for record in caplog.records if "counting only the failures in this process" in record.message
    ]


async def test_without_a_bucket_an_endlessly_redelivered_event_is_a_dead_letter(
    limited: NatsProcess,
) -> None:
    here = Router()
    receiver, last = [NatsBridge(limited.url, group="there", subscribe=("job/*",), max_deliver=2) for _ in range(2)]
    here.add_source(NatsBridge(limited.url, group="here", publish=("job/*",), subscribe=("dead/**",)))
    here.handle("dead/**", dead := Box())
    async with running(here):
        await set_up(here, receiver, 7)
        await deliver(limited, receiver, 22)
        there = Router()
        there.add_source(last)
        there.handle("job/*", handled := Box())
        async with running(there):
            [letter] = await dead.wait(1)
    assert letter.data == 7
    assert handled.events == []


@pytest.fixture
def denying(tmp_path: Path) -> Iterator[NatsProcess]:
    """Yield a server that allows its user to access only the event stream."""
    allowed = ["ev.>", "$JS.API.INFO", "$JS.API.STREAM.*.EVENTS", "$JS.API.CONSUMER.>", "$JS.ACK.>", "_INBOX.>"]
    user = f"{{ user: me, password: pw, permissions: {{ publish: {{ allow: {json.dumps(allowed)} }} }} }}"
    accounts = f"accounts {{ A: {{ jetstream: enabled, users: [{user}] }} }}"
    with NatsProcess(tmp_path, settings=f"{accounts}\nno_auth_user: me") as server:
        yield server


async def test_where_the_bucket_is_denied_the_server_is_not_asked_for_every_event(
    denying: NatsProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The bucket does not respond. An event that waits for the bucket delays the events after it."""
    monkeypatch.setattr(dedupe, "_ANSWER", 0.5)
    assert await dead_letters(denying, 20) == {"2"}
    logged = [
        record.message for record in caplog.records if "counting only the failures in this process" in record.message
    ]
    assert len(logged) == 1
    assert "permissions violation" in logged[0].lower()


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[NatsProcess]:
    """Yield a server that does not respond to requests for stored failures."""
    with NatsProcess(tmp_path, settings='mappings: { "$JS.API.STREAM.MSG.GET.KV_FAILURES": "nowhere" }') as server:
        yield server


async def test_a_bucket_that_does_not_answer_is_not_asked_for_a_while(
    silent: NatsProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dedupe, "_ANSWER", 0.5)
    async with by_hand(silent) as js:
        await js._nc.subscribe("nowhere")
        assert await dead_letters(silent, 20) == {"2"}
    assert len([record for record in caplog.records if "cannot use the bucket 'FAILURES'" in record.message]) == 1


async def dead_letters(server: NatsProcess, count: int) -> set[str]:
    """Let ``count`` events fail twice, and return the attempts that their dead letters contain."""
    router = Router()
    router.add_source(
        NatsBridge(
            server.url,
            group="g",
            publish=("job/*",),
            subscribe=("job/*", "dead/**"),
            max_deliver=2,
            backoff=Backoff(initial=0.05, maximum=0.1),
        )
    )
    router.handle("dead/**", dead := Box())
    router.handle("job/*", broken)
    async with running(router):
        for _ in range(count):
            await (await router.emit(Event("job/x")))
        return {letter.headers["dead-attempts"] for letter in await dead.wait(count)}


async def broken(event: BusEvent) -> None:
    raise ValueError("no")
