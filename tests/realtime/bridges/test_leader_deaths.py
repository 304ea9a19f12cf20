"""Leader processes that die and freeze."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.leader import Result, Write, read
from tests.realtime.bridges.workers import Worker, result_of, workers
from tests.waiting import until

if TYPE_CHECKING:
    from tests.nats_servers import NatsProcess


async def test_another_leads_when_one_is_frozen_or_killed_and_the_thawed_one_writes_nothing_more(
    own_server: NatsProcess, tmp_path: Path
) -> None:
    place = (own_server.url, ())
    async with workers(tmp_path, place, place) as both:
        frozen, other = await freeze(both)
        before, token = len(frozen.turns()), frozen.token
        await until(lambda: other.token > token)
        frozen.process.send_signal(signal.SIGCONT)
        await until(lambda: len(frozen.turns()) > before)
        assert frozen.turns()[before] == ("lost", token)

        await other.kill()
        await until(lambda: frozen.token > other.last)
        await until(lambda: frozen.wrote > other.wrote)
    assert result_of(both, await read(own_server.url)).wrong() == []


async def freeze(both: list[Worker]) -> list[Worker]:
    """Freeze the leader, and return both the leader and the other process.

    If the process loses its lease just before it is frozen, let it continue, and try again with the next leader.
    """
    while True:
        await until(lambda: any(worker.token for worker in both))
        leader, other = sorted(both, key=lambda worker: worker.token, reverse=True)
        leader.process.send_signal(signal.SIGSTOP)
        await stopped(leader.process.pid)
        if leader.token > other.token:
            return [leader, other]
        leader.process.send_signal(signal.SIGCONT)


async def stopped(pid: int) -> None:
    await until(lambda: "stopped" in Path(f"/proc/{pid}/status").read_text())


def test_the_chaos_test_detects_two_leaders_and_a_lost_write() -> None:
    good = Result([Write(11, 10, 1), Write(22, 20, 2)], {10, 20}, {11, 22})
    assert good.wrong() == []
    late = Result([Write(11, 10, 1), Write(22, 20, 2), Write(23, 10, 1)])
    assert late.wrong() == [f"double: {Write(23, 10, 1)} came after another process had become leader"]
    unseen = Result([Write(22, 10, 1)], tokens={10, 20})
    assert unseen.wrong() == [f"double: {Write(22, 10, 1)} came after another process had become leader"]
    shared = Result([Write(11, 10, 1), Write(12, 10, 2)])
    assert shared.wrong() == ["double: two processes wrote with the token 10"]
    assert Result(acknowledged={11}).wrong() == ["lost: the acknowledged revision 11 is missing"]
