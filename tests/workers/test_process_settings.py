"""What a process worker refuses before it is started."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest

from lifecycle.workers import ProcessWorker
from lifecycle.workers.readiness import Port
from lifecycle.workers.terminals import Terminal


async def listen(line: str, stream: str) -> None:
    """Async, which an output cannot be."""


@pytest.mark.parametrize(
    ("argv", "how", "error", "message"),
    [
        ((), {}, ValueError, "'app' has no command"),
        (("",), {}, ValueError, "is empty or has a NUL"),
        (("a\0b",), {}, ValueError, "is empty or has a NUL"),
        ((["python", "app.py"],), {}, TypeError, "is no word; give strings or paths, not a list"),
        ((1,), {}, TypeError, "is no word"),
        (("a",), {"stop_signal": 0}, ValueError, "stop_signal=0 is no signal"),
        (("a",), {"stop_signal": 1000}, ValueError, "stop_signal=1000 is no signal"),
        (("a",), {"stop_timeout": -1}, ValueError, "stop_timeout=-1"),
        (("a",), {"start_timeout": 0}, ValueError, "start_timeout=0 leaves no time"),
        (("a",), {"start_timeout": math.nan}, ValueError, "start_timeout=nan"),
        (("a",), {"env": {"A=B": "1"}}, ValueError, "is no name of an environment variable"),
        (("a",), {"output": 3}, TypeError, "is no plain function"),
        (("a",), {"output": listen}, TypeError, "is no plain function"),
        (("a",), {"output": print, "stdio": Terminal(print)}, ValueError, "both output and stdio"),
        (("a",), {"ready": "port:"}, ValueError, "give 'port:N'"),
        (("a",), {"ready": "port:0"}, ValueError, "give 'port:N'"),
        (("a",), {"ready": "port:65536"}, ValueError, "give 'port:N'"),
        (("a",), {"ready": "port:٣"}, ValueError, "give 'port:N'"),
        (("a",), {"ready": "http://localhost"}, ValueError, "give 'port:N'"),
        (("a",), {"ready": ""}, ValueError, "give 'port:N'"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    argv: tuple[Any, ...], how: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ProcessWorker("app", *argv, **how)


def test_a_port_is_read_from_text() -> None:
    assert Port.parse("port:5432") == Port(5432)


def test_a_worker_can_be_made_outside_a_loop() -> None:
    worker = ProcessWorker("app", sys.executable, "-c", "pass", ready="port:80")
    assert (worker.status, worker.state().kind) == ("created", "process")
