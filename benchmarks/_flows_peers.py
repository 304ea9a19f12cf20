"""TaskFlow and DBOS for benchmarks.flows: ``python -m benchmarks._flows_peers CASE TASKS FILE``, one process per case.

Each library is used as its documentation shows, with its defaults. Preparation is not measured: TaskFlow's engine is
already compiled and prepared, and DBOS has created its tables and has run a workflow.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from benchmarks._flows_cases import main, timed

if TYPE_CHECKING:
    from benchmarks._flows_cases import Case

__all__ = ["PEERS", "missing"]

#: The distributions that each peer requires, by import name.
_NEEDED = {"taskflow": ("taskflow", "sqlalchemy", "alembic"), "dbos": ("dbos",)}


def missing() -> dict[str, str]:
    """Return a message for each peer that cannot be measured."""
    absent = {
        peer: [name for name in needed if importlib.util.find_spec(name) is None] for peer, needed in _NEEDED.items()
    }
    return {
        peer: f"{peer} is not measured, because {', '.join(names)} cannot be imported; `make bench` installs it"
        for peer, names in absent.items()
        if names
    }


def _taskflow(*, stored: bool) -> Case:
    """Run a linear flow in the serial engine, which is the default."""

    def case(tasks: int, file: str) -> tuple[float, float]:
        from taskflow import engines, task
        from taskflow.patterns import linear_flow

        class Nothing(task.Task):  # type: ignore[misc]  # taskflow has no types
            def execute(self) -> int:
                return 1

        flow = linear_flow.Flow("flow").add(*[Nothing(f"task{number}") for number in range(tasks)])
        kept = {"backend": _taskflow_backend(file)} if stored else {}
        engine = engines.load(flow, **kept)
        engine.compile()
        engine.prepare()
        engine.validate()
        with timed() as figures:
            engine.run()
        assert len(engine.storage.get_atoms_states([f"task{number}" for number in range(tasks)])) == tasks
        wall, used = figures
        return wall, used

    return case


def _taskflow_backend(file: str) -> Any:
    from taskflow.persistence import backends

    backend = backends.fetch({"connection": f"sqlite:///{file}"})
    with closing(backend.get_connection()) as connection:
        connection.upgrade()
    return backend


def _dbos(*, starts: bool = False) -> Case:
    """Run async steps in a workflow, or workflows without steps at the same time.

    The benchmark sets a file to WAL mode first, because DBOS does not.
    """

    def case(number: int, store: str) -> tuple[float, float]:
        from dbos import DBOS

        if not store.startswith("postgresql:"):
            with closing(sqlite3.connect(store)) as db:
                db.execute("PRAGMA journal_mode = WAL")
            store = f"sqlite:///{store}"
        DBOS(config={"name": "bench", "system_database_url": store, "log_level": "ERROR"})

        @DBOS.step()  # type: ignore[untyped-decorator]  # DBOS's types are not checked here
        async def nothing() -> int:
            return 1

        @DBOS.workflow()  # type: ignore[untyped-decorator]  # the same
        async def flow(steps: int) -> int:
            return sum([await nothing() for _ in range(steps)])

        async def measure() -> list[float]:
            await flow(1)
            with timed() as figures:
                if starts:
                    await asyncio.gather(*[flow(0) for _ in range(number)])
                else:
                    assert await flow(number) == number
            return figures

        DBOS.launch()
        try:
            wall, used = asyncio.run(measure())
        finally:
            DBOS.destroy()
        return wall, used

    return case


PEERS: dict[str, Case] = {
    "taskflow_memory": _taskflow(stored=False),
    "taskflow_sqlite": _taskflow(stored=True),
    "dbos": _dbos(),
    "dbos_starts": _dbos(starts=True),
}

if __name__ == "__main__":
    main(PEERS)
