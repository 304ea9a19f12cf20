"""Leader processes that die and freeze, and `tests.chaos.leader` for a few seconds.

With ``LIFECYCLE_CHAOS`` (`make chaos`), `tests.chaos.leader` runs for a minute.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.leader import Result, Write, read, storm
from tests.realtime.bridges.workers import Worker, result_of, workers
from tests.waiting import until

if TYPE_CHECKING:
    from tests.nats_servers import NatsProcess

SECONDS, STRIKES = (60.0, 30) if "LIFECYCLE_CHAOS" in os.environ else (0.0, 2)
SEED = int(os.environ.get("LIFECYCLE_SEED", random.randrange(2**32)))


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
    assert late.wrong() == [f"two leaders: {[Write(23, 10, 1)]}"]
    unseen = Result([Write(22, 10, 1)], tokens={10, 20})
    assert unseen.wrong() == [f"two leaders: {[Write(22, 10, 1)]}"]
    shared = Result([Write(11, 10, 1), Write(12, 10, 2)])
    assert shared.wrong() == ["shared tokens: [10]"]
    assert Result(acknowledged={11}).wrong() == ["lost: [11]"]


@pytest.mark.timeout(300)
async def test_never_two_leaders_whose_writes_both_succeed() -> None:
    print(f"LIFECYCLE_SEED={SEED}")
    result = await storm(SECONDS, seed=SEED, strikes=STRIKES)
    print(result)
    assert result.wrong() == []
    assert result.kills + result.freezes >= STRIKES
