"""Checks for every test: no task, thread, process or file descriptor outlives the test that created it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from collections import Counter
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import psutil
import pytest

from tests import postgres
from tests.engines import require

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import ModuleType

    from lifecycle.testing.plugin import LoopFactories

# Its sitecustomize.py sets the event loop of the programs that the tests start, and of this process.
LOOPS = Path(__file__).with_name("loops")

if os.environ.get("LIFECYCLE_LOOP"):
    import_module("tests.loops.sitecustomize")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(LOOPS), os.environ.get("PYTHONPATH"))))
    # libuv's first loop opens a pipe that stays open, which would count as a leak of the first test.
    asyncio.new_event_loop().close()

_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

# The examples are the same each time, because the machine's load must not affect the result.
hypothesis.settings.register_profile(
    "lifecycle",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("lifecycle")

# A shell makes background processes ignore Ctrl+C, and programs started by tests would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So does nohup for SIGHUP. Programs inherit no handler, so this one leaves them the default, but keeps us alive.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


def _remembered(factory: Callable[[], asyncio.AbstractEventLoop]) -> Callable[[], asyncio.AbstractEventLoop]:
    def make() -> asyncio.AbstractEventLoop:
        loop = factory()
        _loops.add(loop)
        return loop

    return make


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_asyncio_loop_factories() -> Generator[None, LoopFactories, LoopFactories]:
    factories = yield
    return {name: _remembered(_new_loop if name == "asyncio" else make) for name, make in factories.items()}


def _new_loop() -> asyncio.AbstractEventLoop:
    """Look up the function when the test starts, because `every_loop` may replace it."""
    return asyncio.new_event_loop()


@pytest.fixture(scope="session")
def uvloop() -> ModuleType | None:
    """Open the pipe that libuv's first loop keeps open, which would count as a leak of the first test."""
    if find_spec("uvloop") is None:
        return None
    module = import_module("uvloop")
    module.new_event_loop().close()
    return module


@pytest.fixture(params=["asyncio", "uvloop"])
def every_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, uvloop: ModuleType | None) -> None:
    """Run the test and the programs that it starts first on asyncio's default loop, and then on uvloop."""
    if request.param == "asyncio":
        return
    if uvloop is None:
        pytest.skip("uvloop is not installed; `make test` installs it")
    monkeypatch.setenv("LIFECYCLE_LOOP", "uvloop")
    monkeypatch.setenv("PYTHONPATH", str(LOOPS), prepend=os.pathsep)
    for module in (asyncio, asyncio.events):
        monkeypatch.setattr(module, "new_event_loop", uvloop.new_event_loop)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Check that no tasks are left when the test function returns, because nothing would await them."""
    result = yield
    left = [task for loop in list(_loops) if not loop.is_closed() for task in asyncio.all_tasks(loop)]
    # Ignore generators that the loop is closing, and fixtures that keep a server open.
    left = [task for task in left if not item.get_closest_marker("keeps_tasks")]
    if left:
        pytest.fail(f"{item.nodeid} left tasks behind: {left}")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Turn skips into failures if LIFECYCLE_NO_SKIP is set, and make log records safe to send to other processes."""
    report = yield
    report.sections = [(name, _sendable(text)) for name, text in report.sections]
    # The outcome of an expected failure is a skip, too.
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if is_skip and os.environ.get("LIFECYCLE_NO_SKIP") and "no wheel" not in str(report.longrepr):
        report.outcome = "failed"
    return report


def _sendable(text: str) -> str:
    """Replace lone surrogates, which some tests use but which cannot be encoded."""
    return text.encode(errors="backslashreplace").decode()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Start two workers per core, because many tests wait for processes, servers and files."""
    return 2 * (os.cpu_count() or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the documentation build, which takes longest and runs in one process."""
    items.sort(key=lambda item: "built" not in getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection, which takes a fifth of the time and finds little."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exclude objects that exist before the first test from garbage collection, because scanning them would be slow."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("engine"):
        name = marker.args[0]
        require(name)
        if name == "postgres":
            # The server runs for the whole session, so it must exist before the first leak check.
            postgres.server()


def pytest_sessionfinish() -> None:
    postgres.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the container engines that were used."""
    reports = [report for some in terminalreporter.stats.values() for report in some]
    calls = [report for report in reports if getattr(report, "when", "") == "call"]
    engines = Counter(what for report in calls for name, what in report.user_properties if name == "engine")
    for engine, count in sorted(engines.items()):
        terminalreporter.write_line(f"{count} tests ran on the engine {engine}")


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    before = _held()
    yield
    # On a busy machine, a thread may take seconds to stop. Only a test with a leak waits for all these pauses.
    for pause in (0, 0.01, 0.05, 0.2, 0.5, 1, 2, 4):
        time.sleep(pause)
        gc.collect()
        left = {kind: now - before[kind] for kind, now in _held().items() if now - before[kind]}
        if not left:
            # Objects that a test leaves, mostly modules, need no collection either.
            gc.freeze()
            return
    pytest.fail(f"left behind: {left}")


def _held() -> dict[str, set[object]]:
    return {
        "threads": {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")},
        # Processes are compared by PID and start time, because exec changes the name.
        "processes": set(_children()),
        "descriptors": set(_descriptors()),
    }


def _children() -> Iterator[psutil.Process]:
    for thread in os.scandir("/proc/self/task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for pid in Path(thread.path, "children").read_text().split():
                with suppress(psutil.NoSuchProcess):
                    yield psutil.Process(int(pid))


def _descriptors() -> Iterator[str]:
    """Return the open descriptors by their target, because numbers are reused."""
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)  # noqa: PTH115  # each test calls this 30 times, and `Path` is slow
        except OSError:
            continue
        if not target.startswith("/proc/"):
            yield f"{entry.name} -> {target}"
