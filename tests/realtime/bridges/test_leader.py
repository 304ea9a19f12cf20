"""Leader election: one leader at a time, loss of the lease, and writes that the server rejects."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.backoff import Backoff
from lifecycle.bridges import (
    BridgeError,
    Leader,
    LeaderEvent,
    NatsBridge,
    NatsServer,
    NotLeader,
    UnfitServer,
    Unpublishable,
)
from lifecycle.bridges.lease import BUCKET, STREAM
from lifecycle.control import Event, Router
from lifecycle.errors import SourceFailed
from lifecycle.testing import running
from tests.nats_servers import NatsProcess
from tests.realtime.bridges.receiving import Box, by_hand
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


class Candidate:
    """A router with a leader, and the leader events that it received."""

    def __init__(self, server: NatsProcess, name: str = "cron", *, lease: float = 60.0) -> None:
        self.router = Router()
        self.leader = Leader(name, server.url, lease=lease)
        self.router.add_source(self.leader, backoff=Backoff(initial=0.01))
        self.router.handle("leader/**", box := Box())
        self.box = box

    @property
    def notices(self) -> list[str]:
        return [topic.rpartition("/")[2] for topic in self.box.topics]


async def test_the_next_candidate_leads_as_soon_as_the_leader_stops(server: NatsProcess) -> None:
    first, second = Candidate(server), Candidate(server)
    async with running(second.router), running(first.router):
        [gained] = await second.box.wait(1)
        assert gained == LeaderEvent("cron", leading=True, token=second.leader.token or 0)
        assert gained.topic == "leader/cron/gained"
        await until(lambda: first.leader.state().holder == second.leader.state().holder != "")
        assert first.leader.token is None
        second.router.stop()
        [later] = await first.box.wait(1)
        assert later.token > gained.token
        assert first.leader.token == later.token
    assert second.notices == first.notices == ["gained", "lost"]
    assert second.box.events[1] == LeaderEvent("cron", leading=False, token=gained.token, reason="this process stops")
    assert first.leader.token is None
    assert first.leader.state().holder == ""


async def test_leaders_of_two_names_have_nothing_to_do_with_each_other(server: NatsProcess) -> None:
    one, other = Candidate(server, "one"), Candidate(server, "ü/x".replace("/", " . * >"))
    async with running(one.router), running(other.router):
        await one.box.wait(1)
        await other.box.wait(1)
        await one.leader.put("key", b"1")
        assert await other.leader.get("key") is None
        assert one.leader.state().up


async def test_the_lease_is_kept_until_the_last_handler_has_ended(server: NatsProcess) -> None:
    """A running handler may finish and write before another process becomes leader."""
    first, second = Candidate(server, "drain"), Candidate(server, "drain")
    begun, finish = asyncio.Event(), asyncio.Event()

    async def work(_: Event) -> None:
        begun.set()
        await finish.wait()
        await first.leader.put("done", b"yes")

    first.router.handle("work", work)
    async with running(first.router):
        await first.box.wait(1)
        async with running(second.router):
            await first.router.emit(Event("work"))
            await begun.wait()
            first.router.stop()
            await first.box.wait(2)
            assert first.notices == ["gained", "lost"]
            assert second.notices == []
            finish.set()
            await second.box.wait(1)
            assert await second.leader.get("done") == b"yes"


async def test_a_candidate_that_does_not_lead_cannot_write(server: NatsProcess) -> None:
    first, second = Candidate(server, "fence"), Candidate(server, "fence")
    async with running(first.router):
        await first.box.wait(1)
        async with running(second.router):
            revision = await first.leader.put("last/run", b"noon")
            assert await second.leader.get("last/run") == b"noon"
            with pytest.raises(NotLeader, match=r"'last/run' was not written: this process is not the leader"):
                await second.leader.put("last/run", b"night")
            assert await first.leader.put("last/run", b"one") > revision
            with pytest.raises(Unpublishable):
                await first.leader.put("x" * 2000, b"")
            with pytest.raises(Unpublishable):
                await first.leader.put("x", bytes(2**20))
            assert first.leader.token is not None


async def test_a_lease_taken_by_another_is_lost_at_the_next_write(server: NatsProcess) -> None:
    """The leader's clock cannot detect the change, but the server can."""
    member = Candidate(server, "taken")
    async with running(member.router), by_hand(server) as js:
        await member.box.wait(1)
        await js.publish(f"$KV.{BUCKET}.taken", b"mine, says an operator")
        assert member.leader.token is not None
        with pytest.raises(NotLeader, match="another program has the lease"):
            await member.leader.put("key", b"value")
        assert member.leader.state().token is None
        await member.box.wait(2)
        assert member.notices == ["gained", "lost"]
        await js.publish(f"$KV.{BUCKET}.taken", b"", headers={"KV-Operation": "DEL"})
        await member.box.wait(3)
        old, new = member.box.events[0].token, member.box.events[2].token
        assert new > old
        with pytest.raises(NotLeader):
            await member.leader.put("key", b"of before", token=old)
        await member.leader.put("key", b"of now", token=new)


async def test_a_lost_answer_does_not_end_the_leadership(server: NatsProcess) -> None:
    """The server has stored a renewal, but its response was lost. The next write finds the leader's own renewal."""
    member = Candidate(server, "answer")
    async with running(member.router):
        await member.box.wait(1)
        candidate = member.leader._elector
        assert candidate is not None
        known = candidate.lease._revision
        await candidate.lease.renew()
        candidate.lease._revision = known
        await member.leader.put("key", b"value")
        candidate.lease._revision = known
        await candidate.lease.renew()
        assert member.notices == ["gained"]


async def test_a_removed_leader_stops_leading(server: NatsProcess) -> None:
    first, second = Candidate(server, "removed"), Candidate(server, "removed")
    async with running(first.router):
        await first.box.wait(1)
        async with running(second.router):
            first.router.remove_source(first.leader)
            await second.box.wait(1)
            assert first.notices == ["gained", "lost"]
            with pytest.raises(NotLeader, match="is not running"):
                await first.leader.put("key", b"")
            with pytest.raises(BridgeError, match="is not running"):
                await first.leader.get("key")
            assert not first.leader.state().up


async def test_a_router_that_is_cancelled_gives_the_lease_back(server: NatsProcess) -> None:
    first, second = Candidate(server, "cancelled"), Candidate(server, "cancelled")
    running_first = asyncio.create_task(first.router.run())
    await first.box.wait(1)
    async with running(second.router):
        running_first.cancel()
        await asyncio.wait([running_first])
        await second.box.wait(1)


async def test_a_client_that_is_closed_for_good_is_replaced_and_leads_again(server: NatsProcess) -> None:
    member = Candidate(server, "closed", lease=1.0)
    async with running(member.router):
        await member.box.wait(1)
        assert member.leader._elector is not None
        await member.leader._elector.connection.client.close()
        await member.box.wait(3)
        assert member.notices[:3] == ["gained", "lost", "gained"]


async def test_a_gained_event_is_dropped_if_the_lease_is_lost_first(server: NatsProcess) -> None:
    """A `gained` event that arrives after the loss would start work that nothing stops."""
    leader = Leader("busy", server.url)
    leader._turned(5, "")
    leader._turned(0, "it could not be renewed in time")
    assert not leader._news
    leader._turned(7, "")
    leader._news.clear()
    leader._turned(0, "it could not be renewed in time")
    leader._turned(9, "")
    leader._turned(0, "again")
    assert [(each.leading, each.token) for each in leader._news] == [(False, 7)]


@pytest.mark.parametrize(("gone", "back"), [("kill", "start"), ("freeze", "thaw")])
async def test_a_server_that_is_away_for_longer_than_the_lease_makes_a_new_leader(
    own_server: NatsProcess, gone: str, back: str
) -> None:
    member = Candidate(own_server, lease=1.0)
    async with running(member.router):
        await member.box.wait(1)
        token = member.box.events[0].token
        await asyncio.to_thread(getattr(own_server, gone))
        # The data does not fit into the buffers between sender and receiver, so the sender must wait.
        writing = asyncio.create_task(member.leader.put("key", bytes(1_000_000), token=token))
        await until(lambda: member.notices[-1] == "lost")
        assert member.box.events[-1].reason == "it could not be renewed in time"
        assert member.leader.token is None
        with pytest.raises(NotLeader):
            await writing
        with pytest.raises(BridgeError, match="did not return 'key'"):
            await member.leader.get("key")
        await asyncio.to_thread(getattr(own_server, back))
        await until(lambda: member.notices[-1] == "gained")
        assert member.box.events[-1].token > token


async def test_a_deleted_bucket_is_created_again_and_tokens_still_increase(
    own_server: NatsProcess, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Candidate(own_server, lease=1.0), Candidate(own_server, lease=1.0)
    async with running(first.router), running(second.router), by_hand(own_server) as js:
        members = (first, second)
        await until(lambda: first.leader.token or second.leader.token)
        before = max(member.leader.token or 0 for member in members)
        await js.delete_stream(STREAM)
        await until(lambda: any(each.leading and each.token != before for each in first.box.events + second.box.events))
        leader = next(member.leader for member in members if member.leader.token)
        assert leader.token
        assert leader.token > before
        assert await leader.put("key", b"value") > leader.token
    assert f"the bucket '{BUCKET}' was missing" in caplog.text


async def test_a_server_that_comes_back_in_time_changes_nothing(own_server: NatsProcess) -> None:
    member = Candidate(own_server, lease=120.0)
    async with running(member.router):
        await member.box.wait(1)
        await asyncio.to_thread(own_server.kill)
        await until(lambda: not member.leader.state().up)
        writing = asyncio.create_task(member.leader.put("key", b"value"))
        await asyncio.to_thread(own_server.start)
        await writing
        assert await member.leader.get("key") == b"value"
        assert member.notices == ["gained"]


async def test_leader_events_stay_in_their_process(server: NatsProcess) -> None:
    """An event about this process's leadership would be wrong on another machine."""
    member = Candidate(server, "here")
    bridge = NatsBridge(server.url, stream="ALL", prefix="all", group="g", publish=("**",))
    member.router.add_source(bridge)
    async with running(member.router):
        await member.box.wait(1)
        await (await member.router.emit(Event("other")))
        assert bridge.state().published == 1


@pytest.mark.parametrize("name", ["", "a/b", "x" * 201])
def test_a_name_is_one_segment_of_a_topic(name: str) -> None:
    with pytest.raises(ValueError, match="a leader's name must be"):
        Leader(name, "nats://x")


@pytest.mark.parametrize("lease", [0.5, 0, -1, math.inf, math.nan])
def test_a_lease_is_a_second_or_more(lease: float) -> None:
    with pytest.raises(ValueError, match=r"lease must be (1 or more seconds|a finite number of seconds)"):
        Leader("cron", NatsServer("nats://x"), lease=lease)


@pytest.mark.parametrize(
    ("settings", "why"), [({}, "do not expire"), ({"allow_msg_ttl": True, "max_age": 60.0}, "it deletes old values")]
)
async def test_a_bucket_that_could_not_hold_a_lease_is_refused(
    own_server: NatsProcess, settings: dict[str, Any], why: str
) -> None:
    router = Router()
    router.add_source(Leader("cron", own_server.url))
    async with by_hand(own_server) as js:
        await js.add_stream(name=STREAM, subjects=[f"$KV.{BUCKET}.>"], **settings)
    with pytest.raises(SourceFailed, match=why) as caught:
        await router.run()
    assert isinstance(caught.value.__cause__, UnfitServer)


async def test_a_server_without_jetstream_is_refused(tmp_path: Path) -> None:
    router = Router()
    with NatsProcess(tmp_path, settings="jetstream: disabled") as server:
        router.add_source(Leader("cron", server.url))
        with pytest.raises(SourceFailed, match="does not support buckets; start nats-server with --jetstream"):
            await router.run()
