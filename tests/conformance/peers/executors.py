"""Peers that run calls and workflows."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tests.conformance.peers.programs import LIMIT, until

__all__ = [
    "a_process_that_dies_breaks_the_executor_and_every_call_in_it",
    "an_executor_cannot_cancel_a_call_that_runs",
    "dbos_has_no_word_for_undoing_a_step",
]


def an_executor_cannot_cancel_a_call_that_runs() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        call = executor.submit(time.sleep, 1)
        until(call.running)
        assert not call.cancel()


def a_process_that_dies_breaks_the_executor_and_every_call_in_it() -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        other = executor.submit(time.sleep, 10)
        until(other.running)
        executor.submit(os._exit, 1)
        assert isinstance(other.exception(LIMIT), BrokenProcessPool)
        try:
            executor.submit(time.sleep, 0)
        except BrokenProcessPool:
            return
        raise AssertionError("the executor took another call")


def dbos_has_no_word_for_undoing_a_step() -> None:
    from dbos import DBOS

    words = {*dir(DBOS), *inspect.signature(DBOS.step).parameters, *inspect.signature(DBOS.workflow).parameters}
    assert not [word for word in words if any(part in word.lower() for part in ("revert", "compens", "undo"))]
