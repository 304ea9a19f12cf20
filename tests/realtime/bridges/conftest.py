"""Fixtures with one server per test module. Each test uses its own stream on the server."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.backoff import Backoff
from lifecycle.bridges import NatsBridge
from tests.nats_servers import NatsProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsProcess]:
    """Yield the shared server, which tests must not stop."""
    with NatsProcess(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsProcess]:
    """Yield a server for one test, which may kill it."""
    with NatsProcess(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def bridge(server: NatsProcess) -> Callable[..., NatsBridge]:
    """Return a function that creates bridges to the test's own stream: ``bridge(group="g", …)``."""
    return maker(server)


@pytest.fixture
def own_bridge(own_server: NatsProcess) -> Callable[..., NatsBridge]:
    return maker(own_server)


def maker(server: NatsProcess) -> Callable[..., NatsBridge]:
    number = next(_numbers)

    def make(**settings: Any) -> NatsBridge:
        names: dict[str, Any] = {
            "stream": f"STREAM_{number}",
            "prefix": f"ev{number}",
            "backoff": Backoff(initial=0.05, maximum=0.1),
        }
        return NatsBridge(server.url, **(names | settings))

    return make
