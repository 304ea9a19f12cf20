"""Notifications to a service manager, in virtual time. ``tests/realtime/test_systemd.py`` covers real programs."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from typing import TYPE_CHECKING

import pytest

from lifecycle import ReloadEvent, ReloadHandler, Router, run
from lifecycle.errors import SourceFailed
from lifecycle.runtime import Reason, current, lifetime, on_shutdown, shutdown
from lifecycle.testing.virtual import VirtualLoop
from tests.managers import Manager

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

run_virtual = functools.partial(run, loop_factory=VirtualLoop)

EXTENSION = {"EXTEND_TIMEOUT_USEC": "10000000"}


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    with Manager() as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
        yield manager


async def nothing() -> None:
    pass


async def rest(seconds: float, manager: Manager) -> None:
    """Advance the clock while the manager reads, as a real manager does."""
    for _ in range(int(seconds)):
        await asyncio.sleep(1)
        manager.read()


def test_a_program_is_ready_once_and_then_stops(manager: Manager) -> None:
    run_virtual(nothing)
    assert manager.read() == [
        {"READY": "1", "STATUS": "running"},
        {"STOPPING": "1", "STATUS": "stopping: stop", **EXTENSION},
    ]


def test_the_socket_may_be_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Manager(tmp_path) as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
        run_virtual(nothing)
        assert [*manager.read()[0]] == ["READY", "STATUS"]


def test_a_program_is_ready_when_the_sources_of_its_routers_have_started(manager: Manager) -> None:
    seen_notices: list[int] = []

    class Slow:
        async def __aenter__(self) -> None:
            await asyncio.sleep(3)
            seen_notices.append(len(manager.read()))

        async def __aexit__(self, *_: object) -> None:
            return

        async def run(self, _: object) -> None:
            await asyncio.sleep(1)
            seen_notices.append(len(manager.read()))
            shutdown()

    router = Router()
    router.add_source(Slow())
    run_virtual(router)
    assert seen_notices == [0, 1]
    assert manager.read()[1]["STATUS"] == "stopping: cancel"


def test_a_program_that_cannot_start_is_never_ready(manager: Manager) -> None:
    async def fail() -> None:
        raise OSError("no database")

    class Failing:
        async def __aenter__(self) -> None:
            raise OSError("no port")

        async def __aexit__(self, *_: object) -> None:
            return

        async def run(self, _: object) -> None:
            return

    router = Router()
    router.add_source(Failing())
    with pytest.raises(SourceFailed, match="no port"):
        run_virtual(router, nothing)
    with pytest.raises(OSError, match="no database"):
        run_virtual(fail)
    assert not [notice for notice in manager.read() if "READY" in notice]


def test_a_slow_shutdown_extends_its_timeout_while_the_loop_runs(manager: Manager) -> None:
    async def main() -> None:
        @on_shutdown
        async def _slowly() -> None:
            await rest(23, manager)

    run_virtual(main, hook_timeout=50, shutdown_timeout=50, exit_timeout=100)
    _, *stop = manager.read()
    assert stop[0] == {"STOPPING": "1", "STATUS": "stopping: stop", **EXTENSION}
    # The program sends these notifications after 5, 10, 15 and 20 seconds.
    assert stop[1:] == [EXTENSION] * 4


@pytest.mark.parametrize("pid", [None, str(os.getpid())], ids=["anybody", "us"])
def test_the_watchdog_is_notified_twice_per_period(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, pid: str | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "10000000")
    if pid is not None:
        monkeypatch.setenv("WATCHDOG_PID", pid)
    run_virtual(functools.partial(rest, 101, manager))
    assert manager.read().count({"WATCHDOG": "1"}) == 20


def test_a_blocked_loop_does_not_notify_the_watchdog(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes, but no callback runs. Missed notifications are not sent later."""
    monkeypatch.setenv("WATCHDOG_USEC", "10000000")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.jump(60)
        assert {"WATCHDOG": "1"} not in manager.read()
        await rest(11, manager)

    run_virtual(main)
    assert manager.read().count({"WATCHDOG": "1"}) == 3


@pytest.mark.parametrize(
    ("name", "value"), [("WATCHDOG_PID", "1"), ("WATCHDOG_USEC", "0"), ("WATCHDOG_USEC", ""), ("WATCHDOG_USEC", "soon")]
)
def test_no_watchdog_notices_if_it_is_off_or_for_another_process(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "10000000")
    monkeypatch.setenv(name, value)
    run_virtual(functools.partial(rest, 30, manager))
    assert {"WATCHDOG": "1"} not in manager.read()


def test_a_reload_is_notified_with_its_start_time(manager: Manager) -> None:
    router = Router()
    router.handle(ReloadEvent, ReloadHandler(lambda: None))

    async def main() -> None:
        await asyncio.sleep(1)
        await (await router.emit(ReloadEvent()))

    began = time.monotonic_ns() // 1000
    run_virtual(router, main)
    ready, reloading, again, stopping = manager.read()
    assert ready == again == {"READY": "1", "STATUS": "running"}
    assert {**reloading, "MONOTONIC_USEC": ""} == {"RELOADING": "1", "STATUS": "reloading", "MONOTONIC_USEC": ""}
    assert began <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    assert "STOPPING" in stopping


def test_a_failed_reload_leaves_it_ready_with_a_one_line_status(manager: Manager) -> None:
    def fail() -> None:
        raise ValueError("line 1:\nSTOPPING=1\n" + "x" * 300)

    async def main() -> None:
        await asyncio.sleep(1)
        with pytest.raises(ValueError, match="line 1"):
            await ReloadHandler(fail)(ReloadEvent())

    run_virtual(main)
    _, _, again, _ = manager.read()
    assert again["READY"] == "1"
    assert again["STATUS"].startswith("running; the last reload failed: ValueError: line 1: STOPPING=1 xxx")
    assert len(again["STATUS"]) < 250


def test_the_status_shows_no_secret_of_a_reload_that_failed(manager: Manager) -> None:
    def fail() -> None:
        raise ValueError("no database at postgres://bob:hunter2@db")

    async def main() -> None:
        await asyncio.sleep(1)
        with pytest.raises(ValueError, match="hunter2"):
            await ReloadHandler(fail)(ReloadEvent())

    run_virtual(main)
    seen_notices = [notice["STATUS"] for notice in manager.read() if "failed" in notice.get("STATUS", "")]
    assert seen_notices == ["running; the last reload failed: ValueError: no database at postgres://bob:***@db"]


def test_reloads_that_overlap_are_one_for_the_manager(manager: Manager) -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        short, long = (ReloadHandler(functools.partial(asyncio.sleep, seconds)) for seconds in (5, 9))
        await asyncio.gather(short(ReloadEvent()), long(ReloadEvent()))

    run_virtual(main)
    assert [next(iter(notice)) for notice in manager.read()] == ["READY", "RELOADING", "READY", "STOPPING"]


def test_a_reload_before_readiness_or_during_the_stop_is_not_notified(manager: Manager) -> None:
    handler = ReloadHandler(lambda: None)

    async def main() -> None:
        shutdown()
        await asyncio.sleep(1)

    class Early:
        async def wait_running(self) -> None:
            await asyncio.sleep(1)

        async def run(self) -> None:
            await handler(ReloadEvent())

            @on_shutdown
            async def _late() -> None:
                await handler(ReloadEvent())

            await asyncio.Event().wait()

    run_virtual(Early(), main)
    assert handler.state().generation == 2
    assert not [notice for notice in manager.read() if "RELOADING" in notice]


def test_a_reload_in_a_lifetime_inside_the_program_is_the_programs(manager: Manager) -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        async with lifetime():
            await ReloadHandler(lambda: None)(ReloadEvent())

    run_virtual(main)
    assert [next(iter(notice)) for notice in manager.read()] == ["READY", "RELOADING", "READY", "STOPPING"]


def test_notices_blocked_by_a_full_socket_are_sent_later_in_order(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "10000000")
    manager.fill()

    async def main() -> None:
        await asyncio.sleep(20)
        await ReloadHandler(lambda: None)(ReloadEvent())
        manager.read()
        # The socket is writable now, and the loop polls it before the virtual clock jumps.
        await asyncio.sleep(1)

    run_virtual(main)
    seen_notices = [next(iter(notice)) for notice in manager.read() if notice != {"FILLED": "1"}]
    assert seen_notices == ["READY", "RELOADING", "READY", "STOPPING"]


def test_a_manager_that_never_reads_does_not_block_the_program(manager: Manager) -> None:
    manager.fill()
    run_virtual(functools.partial(asyncio.sleep, 100))
    assert all(notice == {"FILLED": "1"} for notice in manager.read())


def test_a_manager_that_goes_away_does_not_block_the_program(manager: Manager) -> None:
    async def main() -> str:
        manager.close()
        await ReloadHandler(lambda: None)(ReloadEvent())
        return "done"

    assert run_virtual(main) == "done"


@pytest.mark.parametrize(
    "address", ["@nobody-is-here-lifecycle", "/nowhere/at/all", "relative", "vsock:2:1", "/" * 300]
)
def test_unreachable_notify_socket_only_logs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    run_virtual(nothing)
    assert "systemd is not notified" in caplog.text


def test_children_do_not_inherit_the_socket_and_its_variable_is_restored(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    seen: list[str] = []

    async def main() -> None:
        seen.extend(name for name in os.environ if name.startswith(("NOTIFY_", "WATCHDOG_")))

    run_virtual(main)
    assert seen == []
    assert (os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"]) == (manager.address, "1000000")


def test_without_a_manager_there_is_nothing_to_pay_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notifiers: list[object] = []

    async def main() -> None:
        notifiers.append(current().notifier)

    run_virtual(main)
    assert notifiers == [None]


def test_a_lifetime_is_ready_between_its_start_and_its_stop() -> None:
    seen: list[bool] = []
    router = Router()

    class Slow:
        async def __aenter__(self) -> None:
            await asyncio.sleep(3)

        async def __aexit__(self, *_: object) -> None:
            return

        async def run(self, _: object) -> None:
            await asyncio.Event().wait()

    router.add_source(Slow())

    async def watch() -> None:
        life = current()
        life.go(router.run)
        await asyncio.sleep(1)
        seen.append(life.ready)
        await asyncio.sleep(3)
        seen.append(life.ready)
        async with lifetime() as inner:
            seen.append(inner.ready)
            life.shutdown(Reason.CANCEL)
            seen.extend((inner.ready, life.ready))

    run_virtual(watch)
    assert seen == [False, True, True, False, False]
