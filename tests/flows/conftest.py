"""Stores for the flow tests. Tests that use them run once per store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lifecycle.flows import Flows, MemoryStore, PostgresStore, SQLiteStore
from tests import postgres
from tests.flows.noted_calls import CALLS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from lifecycle.flows import Store


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.engine("postgres"))])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Return a new store for the same data at each call."""
    if request.param == "sqlite":
        return lambda: SQLiteStore(tmp_path / "flows.db")
    if request.param == "postgres":
        url = postgres.server().cleared()
        return lambda: PostgresStore(url)
    store = MemoryStore()
    return lambda: store


@pytest.fixture
def reopened(make_store: Callable[[], Store]) -> Callable[[], Flows]:
    """Return new Flows for the same data at each call, as after a restart of the program."""
    return lambda: Flows(store=make_store(), stop_timeout=0.0)


@pytest.fixture
async def flows(reopened: Callable[[], Flows]) -> AsyncIterator[Flows]:
    """Flows that are open during the test."""
    async with reopened() as flows:
        yield flows


@pytest.fixture
def calls() -> Iterator[None]:
    """Empty the list of calls before and after the test."""
    CALLS.clear()
    yield
    CALLS.clear()
