"""Descriptions of runs: how their flows are structured, and the state of each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lifecycle.flows import Flows, ItemInfo, Times, graph, linear, task, unordered
from lifecycle.observe import mermaid

if TYPE_CHECKING:
    from lifecycle.testing import Clock


@task
def dump() -> str:
    return "dump"


@task
def alter(dump: str) -> str:
    raise OSError("disk full")


@task
def mail() -> None: ...


# The tasks are passed in an order that differs from the order of execution.
FLOW = linear("deploy", graph("migrate", alter, dump, retry=Times(2)), unordered("tell", mail, task(mail, name="chat")))


def names(item: ItemInfo) -> object:
    return (item.name, [names(each) for each in item.items]) if item.items else item.name


async def test_run_info_shows_how_a_flow_is_built(clock: Clock) -> None:
    async with Flows() as flows:
        info = flows.start(FLOW, id="d-1").info()
        assert (info.id, info.name, info.state, info.error) == ("d-1", "deploy", "PENDING", "")
        assert names(info.root) == (
            "deploy",
            [("migrate", ["migrate_retry", "dump", "alter"]), ("tell", ["mail", "chat"])],
        )
        assert info.root.follow == ((1,), ())
        migrate, tell = info.root.items
        assert (migrate.kind, migrate.follow) == ("graph", ((1,), (2,), ()))
        assert (tell.kind, tell.follow) == ("unordered", ((), ()))
        assert info.root.counts() == {"PENDING": 5}


async def test_run_info_shows_the_state_and_error_of_each_step(clock: Clock) -> None:
    async with Flows() as flows:
        run = flows.start(FLOW)
        with pytest.raises(OSError, match="disk full"):
            await run
        retry, first, second = run.info().root.items[0].items
        assert (retry.state, retry.attempt) == ("REVERTED", 2)
        assert (first.state, first.attempt, first.error) == ("REVERTED", 2, "")
        assert (second.state, second.attempt, second.error) == ("REVERTED", 2, "OSError: disk full")


async def test_run_info_describes_a_single_task(clock: Clock) -> None:
    async with Flows() as flows:
        run = flows.start(mail)
        await run
        assert run.info().root == ItemInfo("mail", "task", "SUCCESS", "EXECUTE", 1)


async def test_the_state_of_flows_lists_unfinished_runs(clock: Clock) -> None:
    async with Flows() as flows:
        await flows.start(mail, id="1")
        run = flows.start(linear("wait", mail), id="2")
        await run.suspend()
        assert [(each.id, each.state) for each in flows.state().runs] == [("2", "SUSPENDED")]
        assert 'subgraph flow["wait 2, SUSPENDED"]' in mermaid.flow(run.info())
        assert "**wait**\n2\nSUSPENDED\n1 PENDING" in mermaid.system(flows.state())
