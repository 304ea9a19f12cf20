"""Jobs on PostgreSQL compared with procrastinate: ``python -m benchmarks._flows_postgres [WORKER URL]``.

Without arguments it prints the figures, and those of workflows compared with DBOS. The server is real and syncs to its
disk. A job is one task that returns its argument. Each worker is a separate process that runs eight jobs at the same
time. Workers connect first. Time is measured from the signal that starts them until the last job finishes. Each of our
jobs is a flow with stored steps, while procrastinate calls a function and stores only its completion. No round of jobs
starts after 50 seconds.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks._measure import interleaved, ratio
from lifecycle.flows import Flows, JobQueue, linear, task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks._measure import Samples
    from tests.postgres import Postgres

__all__ = ["BARS", "figures", "missing"]

JOBS, STEPS, AT_ONCE, ROUNDS = 500, 300, 8, 3
#: The number of seconds after which no further round begins, and the time limit for one case.
LIMIT, LONGEST = 50.0, 20.0
PROCESSES = (1, 2, 4, 8)

BARS = {
    "postgres_jobs_over_procrastinate_1": "at least 1.5",
    "postgres_jobs_over_procrastinate_2": "at least 1.5",
    "postgres_jobs_over_procrastinate_4": "at least 1.5",
    "postgres_jobs_over_procrastinate_8": "at least 1.5",
    "postgres_jobs_a_second": "printed",
    "workflow_postgres_over_dbos": "at least 2",
    "workflow_postgres_a_second": "printed",
}


def missing() -> str:
    """Return the reason why the measurement is impossible, or an empty string."""
    for module in ("psycopg", "pytest", "procrastinate"):
        if importlib.util.find_spec(module) is None:
            return f"{module} cannot be imported, and jobs on PostgreSQL need it; `make bench` installs it"
    from tests.postgres import program

    if program("postgres") is None:
        return "postgres is not installed, and jobs on PostgreSQL need it; `make engines` installs it"
    return ""


def figures(*, jobs: int = JOBS, steps: int = STEPS, rounds: int = ROUNDS) -> dict[str, object]:
    """Return the ratio for each number of processes, or None with the reason on stderr if it cannot be measured."""
    if reason := missing():
        print(reason, file=sys.stderr)
        return dict.fromkeys(BARS)
    import pytest

    from tests.postgres import Postgres

    server: Postgres | None = None
    try:
        server = Postgres(fsync="on", full_page_writes="on", shared_buffers="128MB")
        server.start()
        return _measured(server, jobs, rounds) | _workflows(server, steps, rounds)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # the other figures do not depend on this one
        print(f"jobs on PostgreSQL cannot be measured: {error!r}", file=sys.stderr)
        return dict.fromkeys(BARS)
    finally:
        if server is not None:
            server.close()


def _measured(server: Postgres, jobs: int, rounds: int) -> dict[str, object]:
    end = time.monotonic() + LIMIT
    of: dict[int, Samples] = {number: {"ours": [], "procrastinate": []} for number in PROCESSES}
    for turn in range(rounds):
        for number, samples in of.items():
            if turn and time.monotonic() > end:
                break
            for name in list(samples)[:: 1 if turn % 2 else -1]:
                samples[name].append(_a_second(server, name, number, jobs))
    ratios = {
        f"postgres_jobs_over_procrastinate_{number}": ratio(samples, "ours", "procrastinate")
        for number, samples in of.items()
    }
    a_second = {
        f"{name}_{number}": round(statistics.median(each))
        for number, samples in of.items()
        for name, each in samples.items()
    }
    return {**ratios, "postgres_jobs_a_second": a_second}


def _workflows(server: Postgres, steps: int, rounds: int) -> dict[str, object]:
    """Return the rate of sequential steps in a workflow, compared with DBOS on the same server."""
    if importlib.util.find_spec("dbos") is None:
        return dict.fromkeys(("workflow_postgres_over_dbos", "workflow_postgres_a_second"))

    def rate(module: str, case: str, url: str) -> float:
        argv = [sys.executable, "-m", f"benchmarks.{module}", case, str(steps), url]
        wall, _ = json.loads(subprocess.check_output(argv, text=True).splitlines()[-1])
        return steps / float(wall)

    cases = {
        "ours": lambda: rate("_flows_workflows", "workflow_sqlite", server.cleared()),
        "dbos": lambda: rate("_flows_peers", "dbos", server.admin),
    }
    samples = interleaved(cases, rounds=rounds, warmup=0)
    return {
        "workflow_postgres_over_dbos": ratio(samples, "ours", "dbos"),
        "workflow_postgres_a_second": {name: round(statistics.median(each)) for name, each in samples.items()},
    }


def _a_second(server: Postgres, name: str, processes: int, jobs: int) -> float:
    import psycopg

    url = server.url() if name == "procrastinate" else server.cleared()
    post, _, left = _WAYS[name]
    asyncio.run(post(url, jobs))
    argv = [sys.executable, "-m", "benchmarks._flows_postgres", name, url]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(argv, **pipes) for _ in range(processes)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            if not worker.stdout.readline():
                raise RuntimeError(f"a {name} worker exited before it was ready")
        began = time.perf_counter()
        _tell(workers)
        with psycopg.connect(url, autocommit=True) as db:
            while db.execute(left).fetchone() != (0,):
                if time.perf_counter() - began > LONGEST:
                    raise TimeoutError(f"{processes} {name} workers needed more than {LONGEST:g} s for {jobs} jobs")
                time.sleep(0.01)
        took = time.perf_counter() - began
        _tell(workers)
        for worker in workers:
            worker.communicate(timeout=LONGEST)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return jobs / took


def _tell(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()


async def _until_signal(work: Callable[[], Awaitable[None]]) -> None:
    """Start the work at the first signal, and stop it at the second."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    working = asyncio.ensure_future(work())
    await asyncio.to_thread(sys.stdin.readline)
    working.cancel()
    await asyncio.wait([working])


async def _enqueue(url: str, jobs: int) -> None:
    async with Flows(url) as flows:
        queue = JobQueue(flows)
        await asyncio.gather(*[queue.enqueue("flow", size=number) for number in range(jobs)])


async def _work(url: str) -> None:
    @task
    async def give(size: int) -> int:
        return size

    flow = linear("flow", give)
    async with Flows(url) as flows:
        await _until_signal(lambda: JobQueue(flows).work({"flow": flow}, concurrency=AT_ONCE))


def _procrastinate(url: str) -> tuple[Any, Any]:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=AT_ONCE))

    async def give(size: int) -> int:
        return size

    return app, app.task(name="give")(give)


async def _enqueue_theirs(url: str, jobs: int) -> None:
    app, give = _procrastinate(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await asyncio.gather(*[give.defer_async(size=number) for number in range(jobs)])


async def _work_theirs(url: str) -> None:
    app, _ = _procrastinate(url)
    async with app.open_async():
        await _until_signal(lambda: app.run_worker_async(concurrency=AT_ONCE, install_signal_handlers=False))


#: Functions for each library: enqueue jobs, run a worker, and count the remaining jobs.
_WAYS: dict[str, tuple[Callable[[str, int], Any], Callable[[str], Any], bytes]] = {
    "ours": (_enqueue, _work, b"SELECT count(*) FROM lifecycle_jobs WHERE state != 'COMPLETE'"),
    "procrastinate": (
        _enqueue_theirs,
        _work_theirs,
        b"SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
    ),
}

if __name__ == "__main__":
    logging.disable(logging.WARNING)
    if len(sys.argv) > 1:
        asyncio.run(_WAYS[sys.argv[1]][1](sys.argv[2]))
    else:
        print(figures())
