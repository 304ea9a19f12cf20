"""The pytest plugin. Tests that request the fixture `clock` run in virtual time.

Load it with ``-p lifecycle.testing.plugin`` in ``addopts``, or with ``pytest_plugins`` in the top ``conftest.py``. It
works with pytest-asyncio (1.4 or newer) and with anyio's plugin.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from typing import TypeAlias

    from lifecycle.testing import Clock, FakeSignals, Recorder

    LoopFactories: TypeAlias = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]

__all__ = ["clock", "pytest_asyncio_loop_factories", "pytest_generate_tests", "recorder", "signals"]


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Generator[None, LoopFactories | None, LoopFactories]:
    """Run tests that use `clock` in a `VirtualLoop`, and other tests in the project's loops or the default loop."""
    factories = yield
    if "clock" in getattr(item, "fixturenames", ()):
        from lifecycle.testing.virtual import VirtualLoop

        return {"virtual": VirtualLoop}
    return {"asyncio": asyncio.new_event_loop} if factories is None else factories


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that use anyio's plugin and `clock` in a `VirtualLoop`, unless they are parametrized with a backend."""
    if not {"clock", "anyio_backend"}.issubset(metafunc.fixturenames):
        return
    marks = metafunc.definition.iter_markers("parametrize")
    if not any("anyio_backend" in (*mark.args, *mark.kwargs.values())[0] for mark in marks):
        from lifecycle.testing.virtual import VirtualLoop

        backend = pytest.param(("asyncio", {"loop_factory": VirtualLoop}), id="asyncio")
        metafunc.definition.add_marker(pytest.mark.parametrize("anyio_backend", [backend]))


@pytest.fixture
def clock() -> Clock:
    """The clock for a test in virtual time: ``await clock.advance(1)``."""
    from lifecycle.testing import Clock

    return Clock()


@pytest.fixture
def recorder() -> Recorder:
    """A handler that stores every event: ``recorder.events``."""
    from lifecycle.testing import Recorder

    return Recorder()


@pytest.fixture
def signals() -> Iterator[FakeSignals]:
    """Signals that the test sends: ``signals.send(SIGTERM)``. Forced exits are recorded in ``signals.exits``."""
    from lifecycle.testing import FakeSignals

    with FakeSignals() as fake:
        yield fake
