"""Jobs on PostgreSQL beside procrastinate: ``python -m benchmarks._flows_postgres [WORKER URL]``, without: the figures.

The server is real and waits for its disk. A job is one task that returns what it was given. Each worker is a process of
its own that takes eight jobs at a time; the clock runs from a word to the workers, which are connected and wait for it,
to the end of the last job. With ours every job is a flow, whose steps are stored; procrastinate calls a function and
stores its end.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks._measure import interleaved, ratio
from lifecycle.flows import Board, Flows, linear, task
from tests import postgres

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["BARS", "figures", "missing"]

JOBS, AT_ONCE, ROUNDS = 1000, 8, 3
PROCESSES = (1, 2, 4, 8)

BARS = {
    **{f"postgres_jobs_over_procrastinate_{number}": "at least 1.5" for number in PROCESSES},
    "postgres_jobs_a_second": "printed",
}


def missing() -> str:
    """Return the reason why nothing is measured; empty if there is none."""
    if postgres.program("postgres") is None:
        return "postgres is not installed; `make engines` installs it"
    if importlib.util.find_spec("procrastinate") is None:
        return "procrastinate cannot be imported; `make bench` installs it"
    return ""


def figures() -> dict[str, object]:
    """The ratio for each number of processes, and what it is of; None where it cannot be measured."""
    if missing():
        return dict.fromkeys(BARS)
    server = postgres.Postgres(fsync="on", full_page_writes="on", shared_buffers="128MB")
    try:
        server.start()
        return _measured(server)
    finally:
        server.close()


def _measured(server: postgres.Postgres) -> dict[str, object]:
    ratios: dict[str, object] = {}
    a_second: dict[str, int] = {}
    for number in PROCESSES:
        cases = {name: partial(_a_second, server, name, number) for name in ("ours", "procrastinate")}
        samples = interleaved(cases, rounds=ROUNDS)
        ratios[f"postgres_jobs_over_procrastinate_{number}"] = ratio(samples, "ours", "procrastinate")
        a_second |= {f"{name}_{number}": round(sorted(each)[ROUNDS // 2]) for name, each in samples.items()}
    return ratios | {"postgres_jobs_a_second": a_second}


def _a_second(server: postgres.Postgres, name: str, processes: int) -> float:
    url = server.url() if name == "procrastinate" else server.cleared()
    post, _, left = _WAYS[name]
    asyncio.run(post(url))
    argv = [sys.executable, "-m", "benchmarks._flows_postgres", name, url]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(argv, **pipes) for _ in range(processes)]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    began = time.perf_counter()
    _tell(workers)
    with psycopg.connect(url, autocommit=True) as db:
        while db.execute(left).fetchone() != (0,):
            time.sleep(0.01)
    took = time.perf_counter() - began
    _tell(workers)
    for worker in workers:
        worker.communicate()
    return JOBS / took


def _tell(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()


async def _until_told(work: Callable[[], Awaitable[None]]) -> None:
    """Work from one word to the next."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    working = asyncio.ensure_future(work())
    await asyncio.to_thread(sys.stdin.readline)
    working.cancel()
    await asyncio.wait([working])


async def _post(url: str) -> None:
    async with Flows(url) as flows:
        board = Board(flows)
        await asyncio.gather(*[board.post("flow", size=number) for number in range(JOBS)])


async def _work(url: str) -> None:
    @task
    async def give(size: int) -> int:
        return size

    flow = linear("flow", give)
    async with Flows(url) as flows:
        await _until_told(lambda: Board(flows).work({"flow": flow}, concurrency=AT_ONCE))


def _procrastinate(url: str) -> tuple[Any, Any]:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=AT_ONCE))

    async def give(size: int) -> int:
        return size

    return app, app.task(name="give")(give)


async def _post_theirs(url: str) -> None:
    app, give = _procrastinate(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await asyncio.gather(*[give.defer_async(size=number) for number in range(JOBS)])


async def _work_theirs(url: str) -> None:
    app, _ = _procrastinate(url)
    async with app.open_async():
        await _until_told(lambda: app.run_worker_async(concurrency=AT_ONCE, install_signal_handlers=False))


#: How jobs are posted and worked at, and what counts those that are left.
_WAYS: dict[str, tuple[Callable[[str], Any], Callable[[str], Any], bytes]] = {
    "ours": (_post, _work, b"SELECT count(*) FROM lifecycle_jobs WHERE state != 'COMPLETE'"),
    "procrastinate": (
        _post_theirs,
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
