"""Problems outside a flow's logic: changed code, functions that raise, invalid values, and disk errors."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.errors import InvalidTopic, JournalError
from lifecycle.flows import (
    FlowError,
    Flows,
    JobQueue,
    MissingDependencies,
    SQLiteStore,
    Task,
    Times,
    linear,
    send,
    task,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: A value that contains itself.
RING: list[Any] = []
RING.append(RING)
ONE = linear("one", task(lambda: 1, name="a"))


def step(name: str, log: list[str]) -> Task:
    """Return a task that records its calls."""
    return task(lambda: log.append(name), name=name).revert(lambda: log.append(f"-{name}"))


# -- a flow that changed between a crash and the resumption ---------------------------------------------------------


async def changed(reopened: Callable[[], Flows], before: list[str], after: list[str]) -> list[str]:
    """Return the steps that run when a flow changes while it is suspended.

    The flow starts as ``before``, is suspended after its first task, and resumes as ``after``.
    """
    log: list[str] = []
    async with reopened() as flows:
        hold = asyncio.Event()
        first, *rest = [step(name, log) for name in before]
        gate = task(hold.wait, name="gate", provides=None)
        run = flows.start(linear("f", first, gate, *rest), id="one")
        while not log:
            await asyncio.sleep(0)
        await run.suspend(cancel_after=0)
    log.append("|")
    async with reopened() as flows:
        await flows.start(linear("f", *[step(name, log) for name in after]), id="one")
    return log


async def test_an_added_task_runs(reopened: Callable[[], Flows]) -> None:
    assert await changed(reopened, ["a", "c"], ["a", "b", "c"]) == ["a", "|", "b", "c"]


async def test_a_task_added_before_a_finished_one_runs_first(reopened: Callable[[], Flows]) -> None:
    assert await changed(reopened, ["b", "c"], ["a", "b", "c"]) == ["b", "|", "a", "c"]


async def test_a_removed_task_does_not_run(reopened: Callable[[], Flows]) -> None:
    assert await changed(reopened, ["a", "b", "c"], ["a", "c"]) == ["a", "|", "c"]


async def test_reordered_tasks_follow_the_new_order(reopened: Callable[[], Flows]) -> None:
    assert await changed(reopened, ["a", "b", "c"], ["c", "b", "a"]) == ["a", "|", "c", "b"]


async def test_a_renamed_task_is_another_task(reopened: Callable[[], Flows]) -> None:
    assert await changed(reopened, ["a", "b"], ["z", "b"]) == ["a", "|", "z", "b"]


async def test_a_task_that_became_a_retry_is_an_error(reopened: Callable[[], Flows]) -> None:
    log: list[str] = []
    async with reopened() as flows:
        await flows.start(linear("f", step("a", log)), id="one")
        await flows.start(linear("f", step("b", log), retry=Times(1, name="r")), id="two")
    async with reopened() as flows:
        with pytest.raises(FlowError, match="'a' is a retry now, but was a task when the flow was stored"):
            await flows.start(linear("f", step("b", log), retry=Times(1, name="a")), id="one")
        with pytest.raises(FlowError, match="'r' is a task now, but was a retry when the flow was stored"):
            await flows.start(linear("f", step("r", log)), id="two")


async def test_the_missing_argument_of_an_added_task_is_an_error(reopened: Callable[[], Flows]) -> None:
    async with reopened() as flows:
        run = flows.start(linear("f", step("a", [])), id="one")
        await run.suspend()
    async with reopened() as flows:
        with pytest.raises(MissingDependencies, match="task 'new' requires 'size'"):
            (run,) = await flows.recover(linear("f", step("a", []), task(lambda size: size, name="new")))
            await run
        assert run.state == "SUSPENDED"


# -- functions that raise --------------------------------------------------------------------------------------------


async def test_a_decider_that_raises_fails_the_flow_without_reverting(flows: Flows) -> None:
    log: list[str] = []
    a, b = step("a", log), step("b", log)
    run = flows.start(linear("f", a, b).when(a, b, lambda done: done["nothing"]))
    with pytest.raises(KeyError, match="nothing"):
        await run
    assert (run.state, run.steps["b"].state, log) == ("FAILURE", "PENDING", ["a"])


async def test_a_decider_that_returns_an_awaitable_fails_the_flow(flows: Flows) -> None:
    async def later() -> bool:
        return False

    log: list[str] = []
    a, b = step("a", log), step("b", log)
    run = flows.start(linear("f", a, b).when(a, b, lambda _: later()))
    with pytest.raises(FlowError, match="returned an awaitable"):
        await run
    assert (run.state, log) == ("FAILURE", ["a"])


async def test_an_error_without_a_message_is_a_failure(flows: Flows, caplog: pytest.LogCaptureFixture) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @task
    async def mute() -> None:
        raise MuteError

    run = flows.start(mute)
    with pytest.raises(MuteError):
        await run
    assert run.state == "REVERTED"
    assert "its message cannot be read" in caplog.text


async def test_an_id_must_be_a_string(flows: Flows) -> None:
    number: Any = 5
    with pytest.raises(TypeError, match="an id must be a string, got 5"):
        flows.start(step("a", []), id=number)
    with pytest.raises(TypeError, match="an id must be a string, got 5"):
        await JobQueue(flows).enqueue("a", id=number)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("UPDATE lifecycle_flow_steps SET state = 'ODD'", "flow 'one' is damaged.*'ODD'"),
        ("UPDATE lifecycle_flow_steps SET failure = '5', state = 'FAILURE'", "flow 'one' is damaged"),
        ("UPDATE lifecycle_flows SET state = 'ODD'", "flow 'one' is damaged.*'ODD'"),
        ("UPDATE lifecycle_flows SET store = '{'", "'{' is not JSON"),
        ("UPDATE lifecycle_flow_steps SET result = '{'", "'{' is not JSON"),
    ],
)
async def test_damaged_rows_are_named_in_the_error(tmp_path: Path, change: str, text: str) -> None:
    path, flow = tmp_path / "flows.db", linear("f", step("a", []))
    async with Flows(path) as flows:
        await flows.start(flow, id="one")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(change)
    async with Flows(path) as flows:
        with pytest.raises(FlowError, match=text):
            await flows.start(flow, id="one")


async def test_a_retry_that_raises_or_returns_no_verdict_fails_the_flow(flows: Flows) -> None:
    class Retry:
        def __init__(self, answer: Callable[[], Any]) -> None:
            self.execute: Callable[[], None] = lambda: None
            self.on_failure = answer

    for answer, error, text in (
        (lambda: 1 / 0, ZeroDivisionError, "division"),
        (lambda: "maybe", FlowError, "'f_retry' must return a Verdict, got 'maybe'"),
    ):
        run = flows.start(linear("f", task(lambda: int("x"), name="a"), retry=Retry(answer)))
        with pytest.raises(error, match=text):
            await run
        assert (run.state, run.steps["a"].state) == ("FAILURE", "FAILURE")


async def test_a_revert_that_raises_stops_the_reverts(flows: Flows) -> None:
    log: list[str] = []
    nasty = task(lambda: 1, name="nasty").revert(lambda: 1 / 0)
    flow = linear("f", step("a", log), nasty, step("b", log), task(lambda: int("x"), name="bad"))
    run = flows.start(flow)
    for again in (False, True):
        if again:
            await run.again()
        with pytest.raises(ZeroDivisionError):
            await run
        assert run.state == "FAILURE"
        assert {name: str(view.state) for name, view in run.steps.items()} == {
            "a": "SUCCESS",
            "nasty": "REVERT_FAILURE",
            "b": "REVERTED",
            "bad": "REVERTED",
        }
        assert log == ["a", "b", "-b"]


async def test_an_argument_from_a_skipped_task_fails_the_flow(flows: Flows) -> None:
    a, b = step("a", []), task(lambda: 1, name="b", provides="x")
    c = task(lambda x: x, name="c")
    run = flows.start(linear("f", a, b, c).when(a, b, lambda _: False, depth="step"))
    with pytest.raises(MissingDependencies, match="task 'c' requires 'x', but no earlier step provided it"):
        await run
    assert (run.state, run.steps["c"].state) == ("FAILURE", "PENDING")


async def test_a_task_that_cancels_itself_fails(flows: Flows) -> None:
    @task
    async def odd() -> None:
        raise asyncio.CancelledError

    run = flows.start(linear("f", odd))
    with pytest.raises(asyncio.CancelledError):
        await run
    assert run.state == "REVERTED"


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1, 2}, r"the value, \{1, 2\}, cannot be stored as JSON"),
        ({"a": [1, object]}, r"the value\['a'\]\[1\], <class 'object'>, cannot be stored as JSON"),
        (math.nan, "cannot be stored as JSON"),
        ({1: "x"}, "the key 1 of the value would change when stored as JSON"),
        (b"x", "the value, b'x', cannot be stored as JSON"),
        (RING, "nested too deeply or contains itself, cannot be stored as JSON: Circular reference detected"),
        (10**5000, "an object of type int cannot be stored as JSON"),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_a_result_that_cannot_be_stored_fails_its_task(flows: Flows, value: Any, text: str) -> None:
    log: list[str] = []
    run = flows.start(linear("f", step("a", log), task(lambda: value, name="b")))
    with pytest.raises(FlowError, match=text):
        await run
    assert (run.state, log) == ("REVERTED", ["a", "-a"])


async def test_a_given_value_that_cannot_be_stored_is_refused(flows: Flows) -> None:
    with pytest.raises(FlowError, match=r"the value\['x'\], \{1\}, cannot be stored as JSON"):
        flows.start(task(lambda x: x, name="a"), x={1})


async def test_a_tuple_becomes_a_list_at_once_and_after_a_restart(flows: Flows) -> None:
    out = await flows.start(linear("f", task(lambda: (1, (2,)), name="a"), task(lambda a: f"{a}", name="b")))
    assert out == {"a": [1, [2]], "b": "[1, [2]]"}


async def test_a_custom_codec_stores_other_values() -> None:
    class Repr:
        def encode(self, value: Any) -> str:
            return repr(value)

        def decode(self, text: str) -> Any:
            return eval(text)  # this is safe, because `encode` produced the text

    async with Flows(codec=Repr()) as flows:
        assert await flows.start(task(lambda x: x | {3}, name="a"), x={1, 2}) == {"a": {1, 2, 3}}


# -- files -----------------------------------------------------------------------------------------------------------


async def test_a_full_disk_suspends_the_flow_until_there_is_space(tmp_path: Path) -> None:
    path, log = tmp_path / "flows.db", list[str]()
    flow = linear("f", step("a", log), task(lambda: "x" * 200_000, name="big"), step("c", log))
    async with Flows(path) as flows:
        await _limit(flows, 64)
        run = flows.start(flow, id="one")
        with pytest.raises(JournalError, match="the disk is full; free some space"):
            await run
        assert (run.state, log) == ("SUSPENDED", ["a"])
        await _limit(flows, 100_000)
        await run.resume()
        assert (await run)["c"] is None
    assert log == ["a", "c"]


async def _limit(flows: Flows, pages: int) -> None:
    """Limit the database file to ``pages`` pages, to simulate a full disk."""
    assert isinstance(flows.store, SQLiteStore)
    await flows.store.journal.run(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())


async def test_a_file_of_a_newer_version_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "flows.db"
    async with Flows(path):
        pass
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE lifecycle_schemas SET version = 99 WHERE name = 'flows'")
    with pytest.raises(JournalError, match="the tables 'flows' have version 99"):
        async with Flows(path):
            pass


async def test_a_file_with_foreign_tables_of_the_same_names_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "flows.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE lifecycle_flows (departure TEXT)")
    with pytest.raises(JournalError, match=r"flows\.db: .* a name that 'flows' needs .*use another file"):
        async with Flows(path):
            pass
    with closing(sqlite3.connect(path)) as db:
        assert [name for (name,) in db.execute("SELECT name FROM sqlite_master")] == ["lifecycle_flows"]


async def test_a_file_that_is_not_a_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "flows.db"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(JournalError, match=r"flows\.db: it is not an SQLite database"):
        async with Flows(path):
            pass


async def test_an_id_or_a_topic_with_half_a_surrogate_is_refused(flows: Flows) -> None:
    with pytest.raises(FlowError, match="NUL or half a surrogate pair"):
        flows.start(linear("f", task(lambda: 1, name="a")), id="\ud800")
    with pytest.raises(FlowError, match="NUL or half a surrogate pair"):
        await JobQueue(flows).enqueue("f", id="\ud800")
    with pytest.raises(InvalidTopic, match="a topic must be a string of 1 to 1024"):
        await flows.start(linear("f", task(lambda: send("a/\ud800"), name="a")))


async def test_an_error_with_half_a_surrogate_is_stored_with_its_job(flows: Flows) -> None:
    queue = JobQueue(flows)
    await queue.enqueue("f", id="x")
    job = await queue.claim()
    assert job is not None
    await queue.complete(job, outcome="FAILURE", error="no \ud800")
    assert (await queue.get("x")).error == "no \\ud800"


# -- ids -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "problem"), [("a\0b", "NUL or half"), ("\ud800", "NUL or half"), ("é" * 501, "at most 1000 bytes, got 1002")]
)
async def test_all_stores_refuse_the_same_ids(flows: Flows, id: str, problem: str) -> None:  # noqa: A002  # the natural name
    queue = JobQueue(flows, key_concurrency=1)
    for refused in (
        lambda: flows.start(ONE, id=id),
        lambda: queue.enqueue("one", id=id),
        lambda: queue.enqueue("one", key=id),
        lambda: queue.enqueue(id),
        lambda: JobQueue(flows, name=id).enqueue("one"),
        lambda: flows.signal(id, "go"),
    ):
        with pytest.raises(FlowError, match=problem):
            await refused()
    assert await flows.list() == []
    assert await queue.jobs() == []


@pytest.mark.parametrize("id", ["é" * 500, "\n", " ", "a/b", "'; DROP TABLE lifecycle_flows", "%s :id {x}"])
async def test_all_stores_accept_the_same_ids(flows: Flows, id: str) -> None:  # noqa: A002  # the natural name
    assert await flows.start(ONE, id=id) == {"a": 1}
    assert (await flows.get(id)).id == id
    queue = JobQueue(flows, key_concurrency=1, name=id)
    assert (await queue.enqueue(id, id=f"{id[1:]}2", key=id)).flow == id
