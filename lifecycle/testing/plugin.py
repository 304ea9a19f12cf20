"""The pytest plugin: a test that requests the fixture `clock` runs in virtual time.

It works with pytest-asyncio (1.5 or newer), which runs the tests.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lifecycle.testing import Clock, FakeSignals, Recorder

__all__ = ["clock", "pytest_asyncio_loop_factories", "recorder", "signals"]


@pytest.hookimpl(optionalhook=True, trylast=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Give tests that use `clock` a `VirtualLoop`, and all others the usual loop."""
    if "clock" in getattr(item, "fixturenames", ()):
        from lifecycle.testing.virtual import VirtualLoop

        return {"virtual": VirtualLoop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def clock() -> Clock:
    """The clock of a test in virtual time: ``await clock.advance(1)``."""
    from lifecycle.testing import Clock

    return Clock()


@pytest.fixture
def recorder() -> Recorder:
    """A handler that stores every event: ``recorder.events``."""
    from lifecycle.testing import Recorder

    return Recorder()


@pytest.fixture
def signals() -> Iterator[FakeSignals]:
    """Signals sent by the test: ``signals.send(SIGTERM)``. Forced exits are stored in ``signals.exits``."""
    from lifecycle.testing import FakeSignals

    with FakeSignals() as fake:
        yield fake
