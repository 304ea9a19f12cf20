"""`lifecycle flows` reads files of flows, sends requests to programs, and retries failed flows."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli import main
from lifecycle.cli.output import FAILED, USAGE
from lifecycle.flows import FailedDelivery, Flows, JobQueue, linear, send, step, task, undo, wait_for, workflow
from lifecycle.flows.client import registry_of
from lifecycle.flows.plan import compile_flow
from lifecycle.flows.records import FlowRow
from lifecycle.flows.states import ENDS
from lifecycle.journal import Journal
from tests import postgres
from tests.counting import calls_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lifecycle.flows import Flow

    #: Runs a command, and returns its output on each stream.
    Said = Callable[..., tuple[str, str]]

BUILT: list[str] = []


@task
def build(ref: str, token: str) -> dict[str, str]:
    BUILT.append(ref)
    return {"ref": ref}


@build.revert
def unbuild() -> None: ...


@task
def switch(build: dict[str, str]) -> None:
    if build["ref"] == "bad\x1b[2J":
        raise OSError("no\x1b]0;route\x07")


DEPLOY = linear("deploy", build, linear("last", switch))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with a flow that succeeded, and one that failed and was reverted."""
    path = tmp_path / "app.db"
    asyncio.run(_made(path))
    BUILT.clear()
    return path


async def _made(path: Path) -> None:
    async with Flows(path) as flows:
        await flows.start(DEPLOY, id="good", ref="v1", token="hush")
        with pytest.raises(OSError, match="route"):
            await flows.start(DEPLOY, id="bad\x1b", ref="bad\x1b[2J", token="hush")


@pytest.fixture
def info(capsys: pytest.CaptureFixture[str]) -> Said:
    def said(*words: object, status: int = 0) -> tuple[str, str]:
        assert main(["flows", *map(str, words)]) == status
        return capsys.readouterr()

    return said


def test_list_shows_the_state_of_each_flow(file: Path, info: Said) -> None:
    head, *rows = info("list", file)[0].splitlines()
    assert head.split() == ["id", "flow", "state", "changed", "process"]
    assert [row.split()[:3] for row in rows] == [["good", "deploy", "SUCCESS"], ["bad\\x1b", "deploy", "REVERTED"]]


def test_programs_get_json(file: Path, info: Said) -> None:
    rows = json.loads(info("list", file, "--json")[0])
    assert [(row["id"], row["state"], row["process"]) for row in rows] == [
        ("good", "SUCCESS", None),
        ("bad\x1b", "REVERTED", None),
    ]
    [shown] = json.loads(info("show", file, "good", "--json")[0])
    assert shown["given"]["ref"] == "v1"
    assert {each["name"]: each["result"] for each in shown["tasks"]} == {"build": {"ref": "v1"}, "switch": None}
    assert [each["new"] for each in shown["changes"]][:2] == ["RUNNING", "RUNNING"]


def test_showing_one_flow_does_not_read_the_others(file: Path, info: Said) -> None:
    # The first command also imports modules.
    info("show", file, "good")
    few = calls_of(lambda: info("show", file, "good"))
    asyncio.run(_add(file, 1000))

    # The number of loop iterations varies slightly.
    assert calls_of(lambda: info("show", file, "good")) < few + 500


async def _add(path: Path, flows: int) -> None:
    async with Flows(path) as opened:
        for number in range(flows):
            await opened.store.create(FlowRow(f"other{number}", "deploy"))


def test_flow_is_shown_without_secrets_and_control_characters(file: Path, info: Said) -> None:
    out, _ = info("show", file)
    assert "\x1b" not in out
    assert "hush" not in out
    for text in ('"token": "***"', '"ref": "v1"', r"no\x1b]0;route\x07", "REVERTED", "id        good"):
        assert text in out


def test_secrets_are_masked_at_any_depth_in_errors_and_in_json(tmp_path: Path, info: Said) -> None:
    async def made() -> None:
        @task
        def login(settings: object) -> dict[str, str]:
            return {"session": "hush", "author": "bob"}

        @task
        def connect(login: object) -> None:
            raise OSError("postgres://bob:hush@db is away")

        async with Flows(tmp_path / "app.db") as flows:
            with pytest.raises(OSError, match="away"):
                await flows.start(linear("f", login, connect), id="f", settings={"deep": {"pwd": "hush"}})

    asyncio.run(made())
    for words in (("show", tmp_path / "app.db"), ("show", tmp_path / "app.db", "--json")):
        out, _ = info(*words)
        assert "hush" not in out
        assert "postgres://bob:***@db is away" in out
        assert "bob" in out


def test_tasks_are_sorted_by_start(tmp_path: Path, info: Said) -> None:
    flow = linear("f", *(task(lambda: None, name=name, provides=None) for name in ("c", "a", "b")))
    asyncio.run(_carried_out(tmp_path / "app.db", flow))
    [shown] = json.loads(info("show", tmp_path / "app.db", "--json")[0])
    assert [each["name"] for each in shown["tasks"]] == ["c", "a", "b"]
    diagram = info("diagram", tmp_path / "app.db")[0]
    assert diagram.index("**c**") < diagram.index("**a**") < diagram.index("**b**")


async def _carried_out(path: Path, flow: Flow) -> None:
    async with Flows(path) as flows:
        await flows.start(flow)


def test_file_with_zero_flows_is_reported(tmp_path: Path, info: Said) -> None:
    asyncio.run(_entered(tmp_path / "new.db"))
    assert "no flows" in info("list", tmp_path / "new.db")[1]
    assert info("list", tmp_path / "new.db", "--json")[0] == "[]\n"
    assert "no flows to suspend" in info("suspend", tmp_path / "new.db")[1]
    assert "no failed flows" in info("retry", tmp_path / "new.db")[1]


async def _entered(path: Path) -> None:
    async with Flows(path):
        pass


# -- diagrams --------------------------------------------------------------------------------------------------------


def test_diagram_has_tasks_and_with_the_definition_their_links(
    file: Path, info: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loose, _ = info("diagram", file, "good")
    assert loose.startswith("graph TD\n")
    assert "**switch**\nSUCCESS" in loose
    assert "-->" not in loose
    built, _ = info("diagram", file, "good", "--flow", f"{__name__}:DEPLOY")
    assert "f_0 --> f_1" in built
    plural, _ = info("diagram", file)
    assert "**deploy**\ngood\nSUCCESS" in plural


def test_a_diagram_of_another_flow_is_refused(file: Path, info: Said) -> None:
    assert (
        "does not define the flow 'deploy'"
        in info("diagram", file, "good", "--flow", f"{__name__}:build", status=USAGE)[1]
    )
    assert "must be a flow" in info("diagram", file, "good", "--flow", "json:dumps", status=USAGE)[1]
    assert "no 'none'; available: DEPLOY" in info("diagram", file, "--flow", f"{__name__}:none", status=USAGE)[1]
    assert "must have the form MODULE:ATTRIBUTE" in info("diagram", file, "--flow", "app", status=USAGE)[1]


# -- requests --------------------------------------------------------------------------------------------------------


async def test_running_process_suspends_and_resumes_a_flow(tmp_path: Path, info: Said) -> None:
    begun, go_on, done = asyncio.Event(), asyncio.Event(), list[int]()

    async def work() -> None:
        begun.set()
        await go_on.wait()
        done.append(1)

    flow = linear("f", task(work, name="one"), task(lambda: done.append(2), name="two"))
    file = tmp_path / "app.db"

    async def ask(*words: object, status: int = 0) -> str:
        return (await asyncio.to_thread(info, *words, status=status))[1]

    async with asyncio.timeout(30), Flows(file) as flows:
        run = flows.start(flow, id="f-1")
        await begun.wait()
        [row] = json.loads((await asyncio.to_thread(info, "list", file, "--json"))[0])
        assert row["process"] == os.getpid()
        assert "to suspend f-1" in await ask("suspend", file)
        while run.state != "SUSPENDING":
            await asyncio.sleep(0.01)
        go_on.set()
        assert await run.suspend() == "SUSPENDED"
        assert done == [1]
        assert "to resume f-1" in await ask("resume", file, "f-1")
        await run
        assert done == [1, 2]
        assert "has already finished: SUCCESS" in await ask("suspend", file, "f-1", status=FAILED)


async def test_flow_without_process_waits_for_its_program(tmp_path: Path, info: Said) -> None:
    file = tmp_path / "app.db"
    async with Flows(file) as flows:
        await flows.start(DEPLOY, id="f-1", ref="v1", token="x").suspend()
    assert "start its program" in (await asyncio.to_thread(info, "resume", file, status=FAILED))[1]
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE lifecycle_flows SET state = 'RUNNING', owner = '1-00000000dead'")
    assert "no process runs f-1" in (await asyncio.to_thread(info, "suspend", file, "f-1"))[1]


@pytest.mark.parametrize(
    "table", ["lifecycle_flows SET state = 'RUNNING', owner", "lifecycle_jobs SET state = 'CLAIMED', token"]
)
async def test_a_stored_owner_is_never_used_as_a_path(tmp_path: Path, info: Said, table: str) -> None:
    file = tmp_path / "app.db"
    (victim := tmp_path / "id_ed25519").write_text("a private key")
    async with Flows(file) as flows:
        await flows.start(DEPLOY, id="f-1", ref="v1", token="x").suspend()
        await JobQueue(flows).enqueue("deploy", id="j-1", ref="v1", token="x")
    with closing(sqlite3.connect(file)) as db, db:
        db.execute(f"UPDATE {table} = ?", (str(victim),))  # our own text
    for command in (["list", file], ["show", file, "f-1"], ["suspend", file], ["dead", file]):
        await asyncio.to_thread(info, *command)
    async with Flows(file) as flows:
        queue = JobQueue(flows)
        await flows.recover(DEPLOY)
        await queue.get("j-1")
        await queue.claim()
    assert victim.read_text() == "a private key"


def test_retry_runs_failed_flow_when_its_program_starts(file: Path, info: Said) -> None:
    assert "it runs again when its program starts" in info("retry", file)[1]
    rows = json.loads(info("list", file, "--json")[0])
    assert [row["state"] for row in rows] == ["SUCCESS", "PENDING"]
    shown = json.loads(info("show", file, "bad\x1b", "--json")[0])[0]
    assert {(each["state"], each["result"], each["error"], each["attempt"]) for each in shown["tasks"]} == {
        ("PENDING", None, None, 1)
    }
    assert [each["reason"] for each in shown["changes"]][-1] == "reset"

    async def start() -> None:
        async with Flows(file) as flows:
            [run] = await flows.recover(DEPLOY)
            with pytest.raises(OSError, match="route"):
                await run
            assert run.steps["build"].attempt == 2

    asyncio.run(start())
    assert BUILT == ["bad\x1b[2J"]


async def test_living_process_retries_at_once(tmp_path: Path, info: Said) -> None:
    mended, done = list[bool](), asyncio.Event()

    def work() -> None:
        if not mended:
            raise OSError("not yet")
        done.set()

    flow = task(work, name="work")
    async with asyncio.timeout(30), Flows(tmp_path / "app.db") as flows:
        with pytest.raises(OSError, match="not yet"):
            await flows.start(flow, id="f-1")
        mended.append(True)
        _, said = await asyncio.to_thread(info, "retry", tmp_path / "app.db")
        assert f"process {os.getpid()} runs it again" in said
        await done.wait()
        await flows.start(flow, id="f-1")
        assert not flows.runs


# -- workflows -------------------------------------------------------------------------------------------------------

CALLS: list[str] = []


def charge(amount: int) -> str:
    CALLS.append(f"charge {amount}")
    return "paid"


def ship() -> None:
    CALLS.append("ship")
    if CALLS.count("ship") == 1:
        raise OSError("no route")


@workflow
async def order(amount: int) -> str:
    paid = await step(charge, amount)
    approved: str = await wait_for("approval", timeout=3600)
    await step(ship)
    return f"{paid}, {approved}"


@workflow
async def undone(amount: int) -> None:
    undo(CALLS.append, f"refund {amount}", name="refund")
    await wait_for("approval")


async def parked(path: Path) -> None:
    """Start both workflows, and leave when they wait."""
    CALLS.clear()
    async with Flows(path) as flows:
        for item in (order, undone):
            await flows.start(item, 5, id=item.name).stored()
        while len(await flows.list(state="WAITING")) < len((order, undone)):
            await asyncio.sleep(0.05)


async def ended(path: Path) -> dict[str, str]:
    """Continue both workflows until they end, and return their states."""
    async with asyncio.timeout(30), Flows(path) as flows:
        await flows.recover(order, undone)
        while any(row.state not in ENDS for row in await flows.list()):
            await asyncio.sleep(0.05)
        return {row.id: row.state for row in await flows.list()}


def test_workflow_is_shown_signalled_cancelled_and_retried(tmp_path: Path, info: Said) -> None:
    file = tmp_path / "app.db"
    asyncio.run(parked(file))
    shown, _ = info("show", file, "order")
    assert re.search(r"^state +WAITING$", shown, re.MULTILINE)
    assert re.search(r"^waits in +2 approval$", shown, re.MULTILINE)
    assert re.search(r"^\S+ \S+ +1 charge +step +SUCCESS +1 +\"paid\"$", shown, re.MULTILINE)
    assert info("signal", file, "order", "approval", '"by Ada"', "--key", "1") == info(
        "signal", file, "order", "approval", '"again"', "--key", "1"
    )
    assert "stored the cancellation of undone" in info("cancel", file, "undone")[1]
    assert asyncio.run(ended(file)) == {"order": "FAILURE", "undone": "CANCELLED"}
    assert sorted(CALLS) == ["charge 5", "refund 5", "ship"]

    assert "no operation '9'; its operations: 1, 2, 3" in info("retry", file, "order", "--from", "9", status=FAILED)[1]
    assert "reset order (state FAILURE)" in info("retry", file, "order")[1]
    assert asyncio.run(ended(file))["order"] == "SUCCESS"
    assert CALLS[3:] == ["ship"]
    assert re.search(r'^result +"paid, by Ada"$', info("show", file, "order")[0], re.MULTILINE)


async def charge_twice(amount: int) -> str:
    return charge(2 * amount)


def test_a_workflow_that_does_not_match_the_code_is_shown_as_stopped(tmp_path: Path, info: Said) -> None:
    file = tmp_path / "app.db"
    asyncio.run(parked(file))
    asyncio.run(_taken_by_other_code(file))
    head, *rows = info("list", file)[0].splitlines()
    assert head.split() == ["id", "flow", "state", "changed", "process", "error"]
    (row,) = [row for row in rows if row.startswith("order")]
    assert re.search(r"STOPPED \(WorkflowChanged\) .*no longer matches the records of 'order'", row)
    shown, _ = info("show", file, "order")
    assert re.search(r"^state +STOPPED \(WorkflowChanged\)$", shown, re.MULTILINE)
    assert "it calls step '1 charge_twice' where step '1 charge' is recorded" in shown
    assert json.loads(info("show", file, "order", "--json")[0])[0]["state"] == "STOPPED (WorkflowChanged)"


async def _taken_by_other_code(path: Path) -> None:
    @workflow(name="order")
    async def other(amount: int) -> None:
        await step(charge_twice, amount)

    async with asyncio.timeout(30), Flows(path) as flows:
        await flows.signal("order", "approval", "by Ada")
        await flows.recover(other)
        while (await flows.get("order")).status != "STOPPED (WorkflowChanged)":
            await asyncio.sleep(0.05)


def test_a_failed_workflow_is_repeated_from_an_operation(tmp_path: Path, info: Said) -> None:
    file = tmp_path / "app.db"
    asyncio.run(parked(file))
    info("signal", file, "order", "approval")
    info("cancel", file, "undone")
    asyncio.run(ended(file))
    assert "is CANCELLED, so it starts over; omit" in info("retry", file, "undone", "--from", "1", status=FAILED)[1]
    info("retry", file, "order", "--from", "1")
    info("signal", file, "order", "approval", "7")
    assert asyncio.run(ended(file))["order"] == "SUCCESS"
    assert CALLS[3:] == ["charge 5", "ship"]


def test_wrong_messages_are_refused(file: Path, info: Said) -> None:
    assert "DATA must be JSON" in info("signal", file, "good", "approval", "{", status=USAGE)[1]
    assert "is not a workflow, so it receives no signals" in info("signal", file, "good", "approval", status=FAILED)[1]
    assert "no flow in this store has the id 'missing'" in info("signal", file, "missing", "approval", status=FAILED)[1]
    assert "is not a workflow" in info("cancel", file, "good", status=FAILED)[1]
    assert "is not a workflow" in info("retry", file, "bad\x1b", "--from", "1", status=FAILED)[1]


@pytest.mark.parametrize("end", ["failed", "discarded", "discarded before its flow began"])
def test_retry_leaves_the_flow_of_a_complete_job(tmp_path: Path, info: Said, end: str) -> None:
    file = tmp_path / "app.db"
    asyncio.run(_with_job(file, end))
    before = info("show", file, "--json")[0]
    message = "flow 'j-1' belongs to a complete job; enqueue the job again with a new id"
    assert message in info("retry", file, "f-1", "j-1", status=FAILED)[1]
    assert info("show", file, "--json")[0] == before
    said = info("retry", file)[1]
    assert "reset f-1 (state REVERTED); it runs again" in said
    assert ("j-1 was not reset: it belongs to a complete job" in said) == (end != "discarded before its flow began")
    assert next(row["state"] for row in json.loads(info("list", file, "--json")[0])) == "PENDING"
    assert json.loads(info("show", file, "j-1", "--json")[0]) == json.loads(before)[1:]


async def _with_job(file: Path, end: str) -> None:
    """Write a flow that has failed, and a complete job with its flow."""

    def fail() -> None:
        raise OSError("broken")

    failing = linear("failing", task(lambda: None, name="a"), task(fail, name="b"))
    async with Flows(file) as flows:
        with pytest.raises(OSError, match="broken"):
            await flows.start(failing, id="f-1")
        queue = JobQueue(flows)
        job = await queue.enqueue("failing", id="j-1")
        if end == "failed":
            working = asyncio.create_task(queue.work({"failing": failing}))
            await job
            working.cancel()
            await asyncio.wait([working])
            return
        [(claimed, snapshot)] = await queue.begin(["failing"], 30.0, 1)
        assert snapshot is not None
        if end == "discarded":
            run = registry_of(flows).adopt(compile_flow(failing), snapshot)
            await asyncio.wait([asyncio.ensure_future(run)])
        await queue.discard(claimed, error="broken")


def test_only_failed_flows_are_retried(file: Path, info: Said) -> None:
    assert "'good' is SUCCESS" in info("retry", file, "good", status=FAILED)[1]


# -- bad input -------------------------------------------------------------------------------------------------------

VERBS = ("list", "show", "diagram", "suspend", "resume", "retry")


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_that_is_not_there_is_not_made(verb: str, tmp_path: Path, info: Said) -> None:
    assert "no such file" in info(verb, tmp_path / "none.db", status=USAGE)[1]
    assert not list(tmp_path.iterdir())


def test_a_flow_that_is_not_there(file: Path, info: Said) -> None:
    assert "flow 'x' does not exist" in info("show", file, "good", "x", status=FAILED)[1]


def test_a_file_that_holds_no_flows(tmp_path: Path, info: Said) -> None:
    (tmp_path / "notes.txt").write_text("no database, but long enough to be taken for one" * 9)
    assert "contains no flows" in info("list", tmp_path / "notes.txt", status=USAGE)[1]
    asyncio.run(_journal(tmp_path / "other.db"))
    assert "contains no flows" in info("list", tmp_path / "other.db", status=USAGE)[1]


async def _journal(path: Path) -> None:
    async with Journal(path):
        pass


def change(file: Path, sql: str) -> None:
    with closing(sqlite3.connect(file)) as db, db:
        db.execute(sql)


def test_a_file_of_a_newer_program(file: Path, info: Said) -> None:
    change(file, "UPDATE lifecycle_schemas SET version = 99 WHERE name = 'flows'")
    assert "version 99" in info("list", file, status=FAILED)[1]


def test_a_file_that_is_damaged(file: Path, info: Said) -> None:
    change(file, "PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(file.read_bytes())
    data[100:] = b"\xa5" * (len(data) - 100)
    file.write_bytes(data)
    assert "it is damaged" in info("list", file, status=FAILED)[1]


def test_locked_file_is_reported(file: Path, info: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifecycle.journal.database._PATIENCE", 0.01)
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        assert "locked" in info("list", file, status=FAILED)[1]
        db.execute("ROLLBACK")


def test_flow_with_values_of_another_serializer_is_shown(file: Path, info: Said) -> None:
    change(file, "UPDATE lifecycle_flows SET store = 'pickled' WHERE id = 'good'")
    assert "given     pickled" in info("show", file, "good")[0]


def test_a_command_after_dashes_is_refused(file: Path, info: Said) -> None:
    assert "no command" in info("list", file, "--", "ls", status=USAGE)[1]


# -- a server ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def url() -> str:
    return postgres.server().url()


@pytest.mark.engine("postgres")
def test_flows_on_a_server_are_shown_and_retried(url: str, info: Said) -> None:
    asyncio.run(_failed(url))
    assert [row.split()[:3] for row in info("list", url)[0].splitlines()[1:]] == [["bad", "deploy", "REVERTED"]]
    assert "OSError" in info("show", url)[0]
    assert "when its program starts" in info("retry", url, "bad")[1]
    (row,) = json.loads(info("list", url, "--json")[0])
    assert (row["state"], row["process"]) == ("PENDING", None)


async def _failed(url: str) -> None:
    async with Flows(url) as flows:
        with pytest.raises(OSError, match="route"):
            await flows.start(DEPLOY, id="bad", ref="bad\x1b[2J", token="hush")


@pytest.mark.engine("postgres")
async def test_process_on_another_host_is_named_and_asked(url: str, info: Said) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        begun.set()
        await go_on.wait()

    async with Flows(url) as flows:
        run = flows.start(linear("f", task(first, name="a"), task(lambda: None, name="b")), id="one")
        await begun.wait()
        listed, _ = await asyncio.to_thread(info, "list", url)
        assert f"{socket.gethostname()}-{os.getpid()}" in listed
        _, stderr = await asyncio.to_thread(info, "suspend", url, "one")
        assert "to suspend one" in stderr
        async with asyncio.timeout(30):
            while run.state != "SUSPENDING":
                await asyncio.sleep(0.01)
        go_on.set()
        assert await run.suspend() == "SUSPENDED"


@pytest.mark.engine("postgres")
def test_a_server_without_flows_is_left_as_it_is(url: str, info: Said) -> None:
    for _ in range(2):
        assert "contains no flows; use the URL that your program passes to Flows" in info("list", url, status=USAGE)[1]


def test_wrong_server_url_is_refused_without_its_password(tmp_path: Path, info: Said) -> None:
    for url in ("mysql://me:geheim@here/x", "postgresql://me:geheim@here/x?y"):
        _, stderr = info("list", url, status=USAGE)
        assert "postgresql://" in stderr
        assert "geheim" not in stderr
    _, stderr = info("list", f"postgresql://me:geheim@/x?host={tmp_path}", status=FAILED)
    assert "check that the server is running" in stderr
    assert "geheim" not in stderr


async def _gave_up(path: Path) -> None:
    async def work() -> None:
        send("mail/out", {"to": "ann"})

    async with Flows(path) as flows:
        await flows.start(linear("f", task(work)), id="m-1")
        [row] = await flows.store.outbox().take(9, now=0.0, until=1.0)
        failed = [FailedDelivery(row.number, 100, "OSError: no\x1b route", None)]
        await flows.store.outbox().settle(delivered=[], freed=[], failed=failed)
        queue = JobQueue(flows, max_attempts=1)
        await queue.enqueue("vm", id="j-1")
        job = await queue.claim()
        assert job is not None
        await queue.release(job, error="out of memory")


def test_dead_letters_are_listed_replayed_and_dropped(tmp_path: Path, info: Said) -> None:
    file = tmp_path / "app.db"
    asyncio.run(_gave_up(file))
    _, job, event = info("dead", file)[0].splitlines()
    assert job.split() == ["job", "j-1", "vm", "1", "out", "of", "memory"]
    assert event.split()[:4] == ["event", "m-1/work/1/1", "mail/out", "100"]
    assert "\x1b" not in event
    assert [each["kind"] for each in json.loads(info("dead", file, "--json")[0])] == ["job", "event"]
    assert "'j-1' is a job, but replay and drop are for sent events" in info("drop", file, "j-1", status=FAILED)[1]
    assert "sent event 'other' is not a dead letter" in info("replay", file, "other", status=FAILED)[1]
    assert "1 event will be delivered again" in info("replay", file, "m-1/work/1/1")[1]
    assert "0 events removed" in info("drop", file, "dead")[1]


async def _with_jobs(path: Path) -> None:
    async with Flows(path) as flows:
        queue = JobQueue(flows, max_attempts=1)
        worker = asyncio.create_task(queue.work({"deploy": DEPLOY}))
        assert await (await queue.enqueue("deploy", id="no-values")) == "discarded"
        with pytest.raises(OSError, match="route"):
            await flows.start(DEPLOY, id="bad", ref="bad\x1b[2J", token="hush")
        worker.cancel()
        await asyncio.wait([worker])
        await queue.enqueue("typo", id="waits")


def test_jobs_that_wait_are_listed_with_their_flow(tmp_path: Path, info: Said) -> None:
    file = tmp_path / "app.db"
    asyncio.run(_with_jobs(file))
    rows = [row.split()[:3] for row in info("list", file)[0].splitlines()[1:]]
    assert rows[-1] == ["waits", "typo", "UNCLAIMED"]
    assert info("list", file)[0].splitlines()[-1].endswith("no worker yet")
    assert [row[0] for row in rows].count("waits") == 1
    assert json.loads(info("list", file, "--json")[0])[-1]["flow"] == "typo"


def test_a_job_that_was_discarded_before_its_flow_started_is_listed_as_such(tmp_path: Path, info: Said) -> None:
    file = tmp_path / "app.db"
    asyncio.run(_with_jobs(file))
    states = {row["id"]: row["state"] for row in json.loads(info("list", file, "--json")[0])}
    assert states["no-values"] == "discarded"
    assert "state     discarded\n" in info("show", file, "no-values")[0]


def test_show_prints_a_job_whose_flow_has_not_started(tmp_path: Path, info: Said) -> None:
    file = tmp_path / "app.db"
    asyncio.run(_with_jobs(file))
    out = info("show", file, "waits")[0]
    assert "flow      typo\n" in out
    assert "state     UNCLAIMED\n" in out
    assert "job       UNCLAIMED, 0 of 1 attempts\n" in out
    assert "due       now; no worker has claimed it, so check that a worker runs 'typo'\n" in out
    assert [each["id"] for each in json.loads(info("show", file, "waits", "bad", "--json")[0])] == ["bad", "waits"]
    assert "is a job whose flow 'typo' has not started" in info("suspend", file, "waits", status=FAILED)[1]
    assert "flow 'nope' does not exist" in info("show", file, "nope", status=FAILED)[1]


def test_show_has_the_error_of_a_flow_and_of_its_job(tmp_path: Path, info: Said) -> None:
    file = tmp_path / "app.db"
    asyncio.run(_with_jobs(file))
    out = info("show", file, "bad")[0]
    assert "error     OSError: no\\x1b]0;route\\x07\n" in out
    assert "job       " not in out
    out = info("show", file, "no-values")[0]
    assert "job       discarded, 1 of 1 attempts\n" in out
    assert "error     MissingDependencies: " in out
    [shown] = json.loads(info("show", file, "no-values", "--json")[0])
    assert shown["error"].startswith("MissingDependencies: ")
