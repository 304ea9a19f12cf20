"""What a board promises, whatever it is kept in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.backoff import Backoff
from lifecycle.errors import ClaimLost, FlowError, InvalidState
from lifecycle.flows import Batch, Board, FlowRow, Flows, JobState, Priority, StepRow, linear, task

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.flows import Job
    from lifecycle.testing import Clock

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def board(flows: Flows) -> Board:
    return Board(flows, max_attempts=3, backoff=Backoff(initial=10.0, multiplier=2.0, jitter=0.0))


def ids(jobs: list[Any]) -> list[str]:
    return [job.id for job in jobs]


# -- posting -----------------------------------------------------------------------------------------------------------


async def test_what_is_posted_waits_for_somebody(board: Board) -> None:
    job = await board.post("vm", id="vm-43", priority="high", size=5)
    assert (job.id, job.flow, job.state, job.priority) == ("vm-43", "vm", "UNCLAIMED", Priority.HIGH)
    assert (job.owner, job.attempts, job.outcome, job.error) == (None, 0, "", "")
    assert job.store == {"size": 5}
    assert ids(await board.jobs()) == ["vm-43"]


async def test_jobs_that_are_not_complete_are_counted(board: Board) -> None:
    for number in range(4):
        await board.post("vm", id=str(number), after=60.0 if number == 3 else 0.0)
    done, claimed = await board.claim(), await board.claim()
    assert done is not None
    assert claimed is not None
    await board.consume(done)
    assert await board.store.counts() == {"UNCLAIMED": 2, "CLAIMED": 1}


async def test_without_an_id_each_is_another_job(board: Board) -> None:
    first, second = await board.post("vm"), await board.post("vm")
    assert first.id != second.id


async def test_the_same_id_is_the_same_job_and_what_it_was_posted_with_first_counts(board: Board) -> None:
    await board.post("vm", id="a", size=5)
    await board.claim()
    again = await board.post("vm", id="a", size=6, priority="low")
    assert (again.state, again.store, again.priority) == ("CLAIMED", {"size": 5}, "normal")
    assert len(await board.jobs()) == 1


async def test_the_id_of_a_job_of_another_flow_is_refused(board: Board) -> None:
    await board.post("vm", id="a")
    with pytest.raises(FlowError, match="'a' is that of a job of flow 'vm', not 'disk'"):
        await board.post("disk", id="a")


@pytest.mark.parametrize("after", [-1.0, math.inf, math.nan])
async def test_a_delay_that_is_none_is_refused(board: Board, after: float) -> None:
    with pytest.raises(ValueError, match="is no time to wait"):
        await board.post("vm", after=after)


async def test_a_priority_that_is_none_is_refused_with_those_that_are(board: Board) -> None:
    with pytest.raises(ValueError, match="'urgent' is not known; give one of very_high, high, normal, low, very_low"):
        await board.post("vm", priority="urgent")


async def test_a_value_that_cannot_be_kept_is_refused_and_nothing_is_posted(board: Board) -> None:
    with pytest.raises(FlowError, match="cannot be kept as JSON"):
        await board.post("vm", size={1, 2})
    assert await board.jobs() == []


async def test_what_is_no_name_is_refused(board: Board) -> None:
    with pytest.raises(TypeError, match="is not the name of a flow"):
        await board.post(board)  # type: ignore[arg-type]  # that is the point


async def test_a_board_of_flows_that_are_not_entered_says_so(reopened: Callable[[], Flows]) -> None:
    board = Board(reopened())
    with pytest.raises(FlowError, match="not open"):
        await board.post("vm")


# -- the order ---------------------------------------------------------------------------------------------------------


async def test_the_highest_priority_is_first_then_the_oldest(board: Board) -> None:
    for name, priority in zip("abcdef", ["low", "normal", "very_high", "normal", "very_low", "high"], strict=True):
        await board.post("vm", id=name, priority=priority)
    assert ids(await board.jobs()) == list("cfbdae")
    assert [(await board.claim() or board).id for _ in "abcdef"] == list("cfbdae")  # type: ignore[union-attr]  # all are there
    assert await board.claim() is None


async def test_only_jobs_of_flows_that_are_of_interest_are_claimed(board: Board) -> None:
    await board.post("disk", id="a", priority="very_high")
    await board.post("vm", id="b")
    await board.post("net", id="c", priority="high")
    job = await board.claim(flows=["vm", "net"])
    assert job is not None
    assert job.id == "c"
    assert await board.claim(flows=[]) is None


async def test_a_job_is_not_claimed_before_it_is_due_and_then_has_its_place(board: Board, clock: Clock) -> None:
    await board.post("vm", id="late", priority="high", after=60)
    await board.post("vm", id="now")
    assert ids(await board.jobs("UNCLAIMED")) == ["late", "now"]
    first = await board.claim(lease=1000.0)
    assert first is not None
    assert first.id == "now"
    await clock.advance(59)
    assert await board.claim() is None
    await clock.advance(1)
    second = await board.claim()
    assert second is not None
    assert second.id == "late"


async def test_who_names_a_job_does_not_wait_until_it_is_due(board: Board) -> None:
    job = await board.claim(await board.post("vm", after=60), "me")
    assert job.owner == "me"


# -- claims ------------------------------------------------------------------------------------------------------------


async def test_who_claims_a_job_is_its_owner(board: Board, flows: Flows) -> None:
    job = await board.post("vm")
    assert await board.claim(job) is job
    assert (job.state, job.owner, job.attempts) == ("CLAIMED", flows.owners.name, 1)
    assert ids(await board.jobs(JobState.UNCLAIMED)) == []
    assert ids(await board.jobs()) == [job.id]


@pytest.mark.parametrize("who", ["me", "you"])
async def test_what_is_claimed_cannot_be_claimed(board: Board, who: str) -> None:
    job = await board.claim(await board.post("vm", id="a"), "me")
    with pytest.raises(InvalidState, match="'a' is CLAIMED by me already"):
        await board.claim(job, who)


async def test_nobody_is_no_owner_and_no_time_no_lease(board: Board) -> None:
    job = await board.post("vm")
    with pytest.raises(ValueError, match="names nobody"):
        await board.claim(job, "")
    for lease in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="is no time to work"):
            await board.claim(job, lease=lease)


async def test_a_job_that_is_not_there_is_an_error_that_names_it(board: Board) -> None:
    with pytest.raises(FlowError, match="no job 'nope'"):
        await board.get("nope")
    job = await board.claim(await board.post("vm", id="a"))
    await board.consume(job)
    await board.purge(-1)
    with pytest.raises(FlowError, match="no job 'a'"):
        await job


@pytest.mark.parametrize("verb", ["consume", "abandon", "trash", "give_back"])
async def test_only_the_owner_has_a_say(board: Board, verb: str) -> None:
    job = await board.post("vm", id="a")
    with pytest.raises(InvalidState, match=r"UNCLAIMED"):
        await getattr(board, verb)(job, "me")
    await board.claim(job, "me")
    with pytest.raises(ClaimLost, match="claimed by me, not by you"):
        await getattr(board, verb)(job, "you")
    assert (await board.get("a")).owner == "me"
    await getattr(board, verb)(job, "me")
    with pytest.raises(InvalidState):
        await getattr(board, verb)(job, "me")


async def test_what_is_known_from_elsewhere_can_be_finished_by_its_owner(board: Board) -> None:
    posted = await board.post("vm")
    await board.claim()
    await board.consume(posted)
    assert posted.outcome == "SUCCESS"


async def test_what_became_of_a_job_is_kept(board: Board) -> None:
    done, dead = await board.post("vm", id="done"), await board.post("vm", id="dead")
    await board.consume(await board.claim(done), outcome="REVERTED", error="no room")
    await board.trash(await board.claim(dead), error="no such image")
    assert await board.jobs() == []
    kept = {job.id: (job.state, job.outcome, job.error) for job in await board.jobs("COMPLETE")}
    assert kept == {"done": ("COMPLETE", "REVERTED", "no room"), "dead": ("COMPLETE", "trashed", "no such image")}
    with pytest.raises(InvalidState, match="'done' cannot go from COMPLETE to CLAIMED"):
        await board.claim(done)


async def test_states_go_as_their_table_has_it_and_are_announced(board: Board) -> None:
    seen: list[tuple[str, str]] = []

    def see(_: object, *, machine: Any, transition: Any) -> None:
        seen.append((machine.name, f"{transition.old}>{transition.new}"))

    with hooks.state_changed.connected_to(see):
        await board.post("vm", id="a")
        job = await board.claim()
        assert job is not None
        await board.give_back(job)
        await board.claim(job)
        await board.consume(job)
    assert seen == [
        ("a", "UNCLAIMED>CLAIMED"),
        ("a", "CLAIMED>UNCLAIMED"),
        ("a", "UNCLAIMED>CLAIMED"),
        ("a", "CLAIMED>COMPLETE"),
    ]


# -- attempts ----------------------------------------------------------------------------------------------------------


async def test_what_is_abandoned_comes_back_later_each_time_until_it_is_given_up(board: Board, clock: Clock) -> None:
    job = await board.post("vm")
    for attempt, wait in enumerate([10, 20], 1):
        claimed = await board.claim()
        assert claimed is not None
        assert claimed.attempts == attempt
        await board.abandon(claimed, error=f"attempt {attempt}")
        assert (claimed.state, claimed.error) == ("UNCLAIMED", f"attempt {attempt}")
        await clock.advance(wait - 0.5)
        assert await board.claim() is None
        await clock.advance(0.5)
    last = await board.claim()
    assert last is not None
    await board.abandon(last, error="still no room")
    assert await job == "trashed"
    assert (job.state, job.error, job.attempts) == ("COMPLETE", "still no room", 3)


async def test_who_abandons_can_say_when_it_comes_back(board: Board, clock: Clock) -> None:
    job = await board.claim(await board.post("vm"))
    await board.abandon(job, after=0.0)
    assert await board.claim() is not None
    job = (await board.jobs())[0]
    await board.abandon(job, after=100.0)
    await clock.advance(99)
    assert await board.claim() is None


async def test_a_claim_that_is_given_back_does_not_count(board: Board) -> None:
    job = await board.post("vm", id="a")
    for _ in range(5):
        await board.give_back(await board.claim(job))
    assert (job.state, job.attempts) == ("UNCLAIMED", 0)


# -- leases ------------------------------------------------------------------------------------------------------------


async def test_a_claim_ends_with_its_lease_and_who_had_it_has_no_say_any_more(board: Board, clock: Clock) -> None:
    mine = await board.claim(await board.post("vm", id="a"), "me", lease=5.0)
    await clock.advance(5)
    assert (await board.get("a")).state is JobState.UNCLAIMED
    with pytest.raises(ClaimLost, match="me has lost job 'a'"):
        await board.consume(mine, "me")
    theirs = await board.claim(await board.get("a"), "you")
    assert theirs.attempts == 2
    for verb in (board.consume, board.trash, board.abandon):
        with pytest.raises(ClaimLost):
            await verb(mine, "me")
    with pytest.raises(ClaimLost):
        await board.extend(mine, 5.0)
    await board.consume(theirs, "you")


async def test_the_same_owner_who_claims_again_has_lost_what_he_had(board: Board, clock: Clock) -> None:
    job = await board.post("vm", id="a")
    first = await board.claim(job, lease=5.0)
    await clock.advance(6)
    second = await board.claim()
    assert second is not None
    with pytest.raises(ClaimLost, match=r"epoch 1"):
        await board.consume(first)
    await board.consume(second)


async def test_a_lease_can_be_extended_as_long_as_it_lasts(board: Board, clock: Clock) -> None:
    job = await board.claim(await board.post("vm", id="a"), "me", lease=5.0)
    for _ in range(3):
        await clock.advance(4)
        await board.extend(job, 5.0)
    assert (await board.get("a")).owner == "me"
    await clock.advance(5)
    with pytest.raises(ClaimLost):
        await board.extend(job, 5.0)


async def test_a_job_whose_owners_vanish_again_and_again_is_given_up(board: Board, clock: Clock) -> None:
    job = await board.post("vm", id="a")
    for _ in range(3):
        assert await board.claim(lease=1.0) is not None
        await clock.advance(1)
    assert await board.claim() is None
    assert await job == "trashed"
    assert "was gone before it was done" in job.error


async def test_the_end_of_a_claim_takes_the_flow_too_so_that_who_had_it_cannot_write(
    board: Board, clock: Clock
) -> None:
    job = await board.claim(await board.post("vm", id="a"), lease=1.0)
    row = FlowRow("a", "vm", epoch=1, owner="me")
    before = await board.store.adopt(job.row, row, now=board.now())
    await clock.advance(2)
    again = await board.claim()
    assert again is not None
    after = (await board.flows.store.load("a")).flow
    assert after.epoch == before.flow.epoch + 1
    with pytest.raises(ClaimLost):
        await board.store.adopt(job.row, row, now=board.now())
    assert (await board.store.adopt(again.row, row, now=board.now())).flow.epoch > after.epoch


# -- the flow of a job -------------------------------------------------------------------------------------------------


def finished(flow: FlowRow, state: str = "SUCCESS") -> Batch:
    """The last write of an owner."""
    return Batch(flow.id, flow.epoch, state, flow.seq + 1, 0.0, [StepRow("a", "task", "SUCCESS")], [])


async def adopted(board: Board, job: Job, state: str = "RUNNING") -> FlowRow:
    row = FlowRow(job.id, job.flow, state, epoch=1, owner=job.row.token)
    return (await board.store.adopt(job.row, row, now=board.now())).flow


async def test_a_late_write_is_refused_after_the_claim_has_expired(board: Board, clock: Clock) -> None:
    job = await board.claim(await board.post("vm", id="a"), lease=5.0)
    flow = await adopted(board, job)
    await clock.advance(5)
    assert (await board.get("a")).state is JobState.UNCLAIMED
    with pytest.raises(ClaimLost):
        await board.flows.store.commit(finished(flow))
    assert (await board.flows.store.load("a")).flow.state == "RUNNING"


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
@pytest.mark.parametrize("way", ["expiry", "abandon", "trash"])
async def test_a_discarded_job_ends_its_flow(flows: Flows, clock: Clock, way: str, state: str) -> None:
    board = Board(flows, max_attempts=1)
    job = await board.claim(await board.post("vm", id="a"), lease=5.0)
    flow = await adopted(board, job, state)
    if way == "expiry":
        await clock.advance(5)
    else:
        await getattr(board, way)(job, error="no room")
    assert (await board.get("a")).outcome == "trashed"
    found = (await flows.store.load("a")).flow
    assert (found.state, found.owner) == ("FAILURE" if state == "RUNNING" else "PENDING", "")
    assert await flows.recover(linear("vm", task(lambda: 1, name="a"))) == []
    assert found.error.startswith("its job was discarded: ")
    with pytest.raises(ClaimLost):
        await flows.store.commit(finished(flow))


async def test_a_job_whose_flow_was_done_before_the_claim_expired_is_not_discarded(flows: Flows, clock: Clock) -> None:
    board = Board(flows, max_attempts=1)
    job = await board.claim(await board.post("vm", id="a"), lease=5.0)
    await flows.store.commit(finished(await adopted(board, job)))
    await clock.advance(5)
    found = await board.get("a")
    assert (found.state, found.outcome, found.error) == ("COMPLETE", "SUCCESS", "")
    assert (await flows.store.load("a")).flow.state == "SUCCESS"


@pytest.mark.parametrize("way", ["adopt", "expiry", "abandon", "trash"])
async def test_a_flow_of_another_name_is_left_alone(flows: Flows, clock: Clock, way: str) -> None:
    board = Board(flows, max_attempts=1)
    other = FlowRow("a", "build", "RUNNING", epoch=1, owner="me")
    await flows.store.create(other)
    job = await board.claim(await board.post("vm", id="a"), lease=5.0)
    if way == "adopt":
        with pytest.raises(FlowError, match="job 'a' is for flow 'vm', and its id is that of a flow 'build'"):
            await adopted(board, job)
    elif way == "expiry":
        await clock.advance(5)
    else:
        await getattr(board, way)(job)
    await board.get("a")
    assert (await flows.store.load("a")).flow == other


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_jobs_that_are_long_complete_are_forgotten_with_their_flows(board: Board, clock: Clock) -> None:
    for name in ("old", "new", "open"):
        job = await board.post("vm", id=name)
        await board.flows.store.create(FlowRow(name, "vm", epoch=1))
        if name != "open":
            await board.consume(await board.claim(job))
        await clock.advance(100)
    assert await board.purge(250) == 1
    assert ids(await board.jobs(*JobState)) == ["new", "open"]
    assert [row.id for row in await board.flows.store.flows()] == ["new", "open"]
    assert await board.purge(250) == 0


async def test_what_cannot_succeed_is_refused_at_once(flows: Flows) -> None:
    with pytest.raises(ValueError, match="max_attempts=0"):
        Board(flows, max_attempts=0)
    with pytest.raises(ValueError, match="'DONE'"):
        await Board(flows).jobs("DONE")


async def test_jobs_come_in_pages(board: Board) -> None:
    for number in range(5):
        await board.post("f", id=f"j{number}", priority="high" if number == 3 else "normal")
    first = await board.jobs(limit=2)
    second = await board.jobs(limit=2, after=first[-1])
    third = await board.jobs(limit=2, after=second[-1])
    assert [[job.id for job in page] for page in (first, second, third)] == [["j3", "j0"], ["j1", "j2"], ["j4"]]
    assert await board.jobs(limit=2, after=third[-1]) == []
    with pytest.raises(ValueError, match="would give nothing"):
        await board.jobs(limit=0)
