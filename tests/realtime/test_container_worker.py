"""Container workers on a real engine: Podman, which this module starts."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiodocker import Docker

from lifecycle.workers import Backoff, ContainerWorker, Exit, InvalidTransition, Spec, Status, Supervisor, WorkerFailed
from tests.engines import IMAGE, Engine
from tests.programs import LIMIT, Running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from aiodocker.containers import DockerContainer

pytestmark = [
    pytest.mark.engine("podman"),
    pytest.mark.engine("runc"),
    pytest.mark.engine("busybox"),
    pytest.mark.skipif(os.geteuid() != 0, reason="these containers are started by root"),
]

# Prints "up" once it handles SIGTERM, and exits with 0 when it receives SIGTERM.
OBEDIENT = ["sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"]
# A container's first process ignores signals that it does not handle.
STUBBORN = ["sh", "-c", "echo up; while :; do sleep 1; done"]


@pytest.fixture(scope="module")
def podman() -> Iterator[tuple[Engine, str]]:
    engine = Engine()
    try:
        what = engine.start()
        engine.import_image()
        yield engine, what
    finally:
        engine.close()


@pytest.fixture
def engine(podman: tuple[Engine, str], record_property: Callable[[str, object], None]) -> Engine:
    record_property("engine", podman[1])
    return podman[0]


class Output:
    """The lines that a worker prints. A test can wait for one of them."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self._came = asyncio.Event()

    def __call__(self, line: str, stream: str) -> None:
        self.lines.append((line, stream))
        self._came.set()

    async def until(self, text: str) -> None:
        async with asyncio.timeout(LIMIT):
            while text not in [line for line, _ in self.lines]:
                self._came.clear()
                await self._came.wait()


@asynccontextmanager
async def client(engine: Engine) -> AsyncIterator[Docker]:
    async with Docker(engine.address, api_version="v1.40") as docker:
        yield docker


async def containers(engine: Engine) -> list[DockerContainer]:
    async with client(engine) as docker:
        return await docker.containers.list(all=True)


async def eventually(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(LIMIT):
        while not await condition():
            await asyncio.sleep(0.05)


@asynccontextmanager
async def seen(engine: Engine, worker: ContainerWorker) -> AsyncIterator[DockerContainer]:
    """Return the engine's data about the worker's container."""
    assert worker.container is not None
    async with client(engine) as docker:
        yield docker.containers.container(worker.container)


async def details(engine: Engine, worker: ContainerWorker) -> dict[str, Any]:
    async with seen(engine, worker) as container:
        found: dict[str, Any] = await container.show()
        return found


def made(engine: Engine, *command: str, **how: Any) -> ContainerWorker:
    return ContainerWorker("web 1", IMAGE, command=command, engine=engine.address, **how)


async def ended(worker: ContainerWorker) -> Exit:
    async with asyncio.timeout(LIMIT):
        return await worker.wait()


# -- exits -------------------------------------------------------------------------------------------------------------


async def test_output_and_status_are_those_of_the_command_and_nothing_is_left(engine: Engine) -> None:
    output = Output()
    worker = made(engine, "sh", "-c", "echo out; echo err >&2; exit 3", output=output)
    await worker.start()
    end = await ended(worker)
    assert (end.status, end.exit_code, end.signal, end.stderr) == (Status.FAILED, 3, None, "err\n")
    assert str(end.error) == "'web 1' exited with status 3"
    assert sorted(output.lines) == [("err", "stderr"), ("out", "stdout")]
    assert await containers(engine) == []


async def test_a_container_with_exit_code_0_is_finished_and_its_lines_are_logged(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.address)
    worker = ContainerWorker("web 1", IMAGE, command=["echo", "done"])
    with caplog.at_level("INFO", "lifecycle.workers.web 1"):
        await worker.start()
        end = await ended(worker)
    assert (end.status, end.exit_code, end.error) == (Status.FINISHED, 0, None)
    assert ("lifecycle.workers.web 1", "done") in [(each.name, each.getMessage()) for each in caplog.records]


async def test_every_line_of_many_comes_even_the_last(engine: Engine) -> None:
    output = Output()
    worker = made(engine, "sh", "-c", "seq 50000; printf 'no end'", output=output)
    await worker.start()
    await ended(worker)
    assert [line for line, _ in output.lines] == [*map(str, range(1, 50001)), "no end"]


async def test_a_container_has_its_settings_and_inherits_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OURS", "secret")
    output = Output()
    worker = made(engine, "env", env={"GIVEN": "a b=c"}, output=output)
    worker.set_env("LIFECYCLE_ATTEMPT", "2")
    await worker.start()
    await ended(worker)
    lines = {line for line, _ in output.lines}
    assert {"GIVEN=a b=c", "LIFECYCLE_ATTEMPT=2"} <= lines
    assert not any("OURS" in line for line in lines)


async def test_a_kill_from_outside_is_a_failure_and_mentions_memory(engine: Engine) -> None:
    async with made(engine, *STUBBORN) as worker:
        async with seen(engine, worker) as container:
            await container.kill(signal="SIGKILL")
        end = await ended(worker)
    assert (end.status, end.exit_code) == (Status.FAILED, 137)
    assert "signal 9 (status 137), perhaps because the system ran out of memory" in str(end.error)


async def test_an_out_of_memory_kill_is_reported(engine: Engine) -> None:
    output = Output()
    script = "trap 'exec tail /dev/zero' USR1; echo up; while :; do sleep 0.05; done"
    async with made(engine, "sh", "-c", script, output=output) as worker:
        await output.until("up")
        limit_memory((await details(engine, worker))["State"]["Pid"])
        async with seen(engine, worker) as container:
            await container.kill(signal="SIGUSR1")
        end = await ended(worker)
    assert end.status is Status.FAILED
    assert "out of memory" in str(end.error)


def limit_memory(pid: int) -> None:
    """Limit the cgroup of ``pid`` to 16 MiB, with either version of cgroups."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            limit = Path(f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes")
        elif not controllers:
            limit = Path(f"/sys/fs/cgroup{path}/memory.max")
        else:
            continue
        if limit.exists():
            limit.write_text(str(16 * 1024 * 1024))
            return
    pytest.fail(f"process {pid} is not in a cgroup that limits memory")


async def test_container_removed_from_outside_is_a_failure(engine: Engine) -> None:
    async with made(engine, *STUBBORN) as worker:
        async with seen(engine, worker) as container:
            await container.delete(force=True)
        end = await ended(worker)
    assert end.status is Status.FAILED
    assert "was removed from outside" in str(end.error)


# -- stopping ----------------------------------------------------------------------------------------------------------


async def test_a_stop_ends_the_container_and_leaves_nothing(engine: Engine) -> None:
    output = Output()
    worker = made(engine, *OBEDIENT, output=output)
    await worker.start()
    await output.until("up")
    await worker.stop(LIMIT)
    assert worker.status is Status.STOPPED
    assert [line for line, _ in output.lines] == ["up", "bye"]
    assert await containers(engine) == []


async def test_a_container_that_ignores_the_stop_is_killed(engine: Engine) -> None:
    worker = made(engine, *STUBBORN, stop_timeout=0.1)
    await worker.start()
    await worker.stop()
    end = await ended(worker)
    assert (end.status, end.exit_code, end.signal) == (Status.KILLED, -9, 9)
    assert await containers(engine) == []


async def test_a_start_that_is_cancelled_leaves_no_container(engine: Engine) -> None:
    worker = made(engine, *STUBBORN)
    starting = asyncio.create_task(worker.start())
    await eventually(lambda: containers(engine))
    # No container may be left, no matter how far the start has got.
    starting.cancel()
    await asyncio.wait({starting})
    await worker.stop(LIMIT if starting.cancelled() else 0)
    assert worker.status is (Status.STOPPED if starting.cancelled() else Status.KILLED)
    assert await containers(engine) == []


async def test_a_stop_at_once_leaves_no_container(engine: Engine) -> None:
    worker = made(engine, *STUBBORN)
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    await worker.stop(LIMIT)
    with pytest.raises(WorkerFailed, match="was stopped while starting"):
        await starting
    assert worker.status is Status.STOPPED
    assert await containers(engine) == []


async def test_a_container_ends_with_the_task_that_runs_it(engine: Engine) -> None:
    up = asyncio.Event()

    async def use() -> None:
        async with made(engine, *OBEDIENT):
            up.set()
            await asyncio.Event().wait()

    user = asyncio.create_task(use())
    await up.wait()
    user.cancel()
    with pytest.raises(asyncio.CancelledError):
        await user
    assert await containers(engine) == []


# -- suspension --------------------------------------------------------------------------------------------------------


async def test_a_suspended_container_is_frozen_until_it_is_resumed(engine: Engine) -> None:
    output = Output()
    async with made(engine, *OBEDIENT, output=output) as worker:
        await output.until("up")
        await worker.suspend()
        await worker.suspend()
        assert worker.state().status is Status.SUSPENDED
        assert (await details(engine, worker))["State"]["Paused"]
        await worker.resume()
        await worker.resume()
        assert worker.state().status is Status.RUNNING
        assert not (await details(engine, worker))["State"]["Paused"]
    with pytest.raises(InvalidTransition, match="'web 1' is stopped and cannot be suspended; it must be running"):
        await worker.suspend()


async def test_a_suspended_container_receives_the_stop(engine: Engine) -> None:
    output = Output()
    async with made(engine, *OBEDIENT, output=output, stop_timeout=LIMIT) as worker:
        await output.until("up")
        await worker.suspend()
    assert worker.status is Status.STOPPED
    assert output.lines[-1] == ("bye", "stdout")


async def test_a_suspension_refused_by_the_engine_raises_and_leaves_it_running(engine: Engine) -> None:
    async with made(engine, *STUBBORN, stop_timeout=0.0) as worker:
        async with seen(engine, worker) as container:
            await container.pause()
        with pytest.raises(InvalidTransition, match=r"'web 1' cannot be suspended: its engine reported: .* paused"):
            await worker.suspend()
        assert worker.status is Status.RUNNING
        assert not (await details(engine, worker))["State"]["Paused"]


# -- failures to start -------------------------------------------------------------------------------------------------


async def test_a_missing_command_is_reported_with_the_engines_message(engine: Engine) -> None:
    worker = made(engine, "/nosuch")
    with pytest.raises(WorkerFailed, match=f"'web 1' cannot start: the engine at {engine.address}: .*/nosuch"):
        await worker.start()
    assert worker.status is Status.FAILED
    assert await containers(engine) == []


async def test_a_missing_image_is_named(engine: Engine) -> None:
    worker = ContainerWorker("web", "missing.invalid/app:1", engine=engine.address)
    with pytest.raises(
        WorkerFailed,
        match=r"'web' .* the image 'missing\.invalid/app:1' does not exist and cannot be pulled: .*blocked",
    ):
        await worker.start()


# -- the engine --------------------------------------------------------------------------------------------------------


async def test_state_and_labels_of_a_running_container(engine: Engine) -> None:
    async with made(engine, *STUBBORN, stop_timeout=0.0) as worker:
        state = worker.state()
        assert (state.kind, state.contain, state.status) == ("container", "guard", Status.RUNNING)
        labels = (await details(engine, worker))["Config"]["Labels"]
    assert worker.container is not None
    assert worker.container.startswith("web-1-")
    assert labels["lifecycle.worker"] == "web 1"
    assert labels["lifecycle.owner"].startswith(f"{os.getpid()}@")


async def test_an_engine_that_goes_away_is_reported_and_the_next_start_cleans_up() -> None:
    engine = Engine()
    try:
        engine.start()
        engine.import_image()
        first = made(engine, *STUBBORN)
        first.set_env("LIFECYCLE_RESUME_ID", "one")
        await first.start()
        engine.kill()
        end = await ended(first)
        assert end.status is Status.FAILED
        assert f"the connection to the engine at {engine.address} was lost" in str(end.error)
        assert f"Its container {first.container} may still run" in str(end.error)
        engine.start()
        assert (await details(engine, first))["State"]["Running"]
        second = made(engine, *STUBBORN, stop_timeout=0.0)
        second.set_env("LIFECYCLE_RESUME_ID", "one")
        async with second:
            assert [each["Names"] for each in await containers(engine)] == [[f"/{second.container}"]]
    finally:
        engine.close()


# -- lifetimes and supervisors -----------------------------------------------------------------------------------------


async def test_a_supervisor_starts_it_again_when_it_crashes(engine: Engine) -> None:
    output = Output()
    tell = 'echo "attempt $LIFECYCLE_ATTEMPT after $LIFECYCLE_PREV_EXIT"'
    script = f'{tell}; [ "$LIFECYCLE_ATTEMPT" = 2 ] || exit 7; sleep 600'
    spec = Spec(
        "web",
        lambda: made(engine, "sh", "-c", script, output=output, stop_timeout=0.0),
        backoff=Backoff(initial=0.0),
    )
    async with Supervisor("all", spec) as supervisor:
        await output.until("attempt 2 after 7")
        child = supervisor.state().children[0]
        assert (child.kind, child.restarts) == ("container", 1)
        assert len(await containers(engine)) == 1
    assert await containers(engine) == []


PROGRAM = """
    import asyncio, sys
    from lifecycle.workers import ContainerWorker

    async def main():
        worker = ContainerWorker("app", sys.argv[1], command=["sh", "-c", "sleep 600"], engine=sys.argv[2])
        await worker.start()
        print("up", flush=True)
        if sys.argv[3] == "waits":
            await worker.wait()

    asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["waits", "forgets"])
async def test_nothing_outlives_its_parent_not_even_one_that_is_killed(engine: Engine, how: str) -> None:
    program = Running("-c", textwrap.dedent(PROGRAM), IMAGE, engine.address, how, env={})
    try:
        await asyncio.to_thread(program.until, "up")
        if how == "waits":
            program.process.send_signal(signal.SIGKILL)

        async def gone() -> bool:
            return await containers(engine) == []

        await eventually(gone)
    finally:
        program.close()
