"""A plain function in a thread as a worker; threads keep real time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.workers import Status, ThreadWorker, handover, stop_and_wait

if TYPE_CHECKING:
    from collections.abc import Mapping


async def test_runs_in_a_thread_of_its_own_until_it_is_told_to_stop() -> None:
    ran: list[str] = []

    def work(stop: threading.Event) -> None:
        ran.append(threading.current_thread().name)
        stop.wait(30)

    async with ThreadWorker("crunch", work) as worker:
        assert (worker.state().kind, worker.status) == ("thread", "running")
    exit_ = await worker.wait()
    assert (exit_.status, exit_.error, ran) == ("stopped", None, ["crunch"])


@pytest.mark.parametrize("error", [None, ValueError("boom"), SystemExit(2)])
async def test_how_its_function_ends_is_how_it_ends(error: BaseException | None) -> None:
    def work(_: threading.Event) -> None:
        if error:
            raise error

    worker = ThreadWorker("t", work)
    await worker.start()
    exit_ = await worker.wait()
    assert (exit_.status, exit_.error) == (("failed" if error else "finished"), error)


async def test_one_that_ignores_the_request_is_abandoned_and_reported_with_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()

    def deaf(_: threading.Event) -> None:
        release.wait(30)

    worker = ThreadWorker("deaf", deaf, stop_timeout=0.05)
    await worker.start()
    exit_ = await stop_and_wait(worker)
    assert (exit_.status, worker.state().abandoned) == (Status.KILLED, True)
    assert "'deaf' cannot be ended and is abandoned: deaf, at" in caplog.text
    assert "in deaf" in caplog.text
    release.set()


async def test_it_reads_what_it_was_handed_over() -> None:
    seen: list[Mapping[str, str]] = []
    worker = ThreadWorker("t", lambda _stop: seen.append(handover()))
    worker.set_env("LIFECYCLE_ATTEMPT", "7")
    worker.set_env("OTHER", "not told")
    await worker.start()
    await worker.wait()
    assert dict(seen[0]) == {"LIFECYCLE_ATTEMPT": "7"}


async def test_its_function_may_take_more_than_it_is_given() -> None:
    seen: list[tuple[object, ...]] = []

    async with ThreadWorker("t", lambda *given: seen.append(given)) as worker:
        await worker.wait()
    (given,) = seen
    assert [type(each) for each in given] == [threading.Event]


async def asynchronous(stop: object) -> None: ...
def nothing() -> None: ...


@pytest.mark.parametrize(
    ("fn", "told"),
    [(asynchronous, "is not a plain function"), ("x", "is not a plain function"), (nothing, "one argument")],
)
async def test_functions_that_it_cannot_call_are_refused(fn: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        ThreadWorker("t", fn)
