"""Records of a typical medium-sized program."""

from __future__ import annotations

from typing import Any

from lifecycle.control import RouteInfo, RouterState, SourceInfo
from lifecycle.flows import ItemInfo, RunInfo
from lifecycle.runtime import LifetimeState, Reason
from lifecycle.workers import ProbeResult, Status, WorkerState


def worker(name: str, kind: str = "process", status: str = "running", **known: Any) -> WorkerState:
    return WorkerState(name, kind, Status(status), **known)


def supervisor(name: str, *children: WorkerState) -> WorkerState:
    return worker(name, "supervisor", children=children)


def route(pattern: str, handler: str = "handle") -> RouteInfo:
    return RouteInfo(pattern, handler, pattern, "queue", 3, 1, 2, 0, "app.py:7")


def lifetime(**known: Any) -> LifetimeState:
    usual: dict[str, Any] = {
        "reason": Reason.NONE,
        "signum": None,
        "stopping": False,
        "signals": 0,
        "force_exit_at": 2,
        "tasks": ("poll",),
        "tasks_started": 3,
        "tasks_crashed": 1,
        "hooks": 2,
        "workers": ("app",),
    }
    return LifetimeState(**usual | known)


def step(name: str, state: str = "PENDING", **known: Any) -> ItemInfo:
    return ItemInfo(name, "task", state, **{"intention": "EXECUTE", **known})


def in_order(name: str, *items: ItemInfo) -> ItemInfo:
    follow = tuple((place + 1,) if place + 1 < len(items) else () for place in range(len(items)))
    return ItemInfo(name, "linear", items=items, follow=follow)


def at_once(name: str, *items: ItemInfo) -> ItemInfo:
    return ItemInfo(name, "unordered", items=items, follow=((),) * len(items))


def flow(root: ItemInfo, state: str = "RUNNING", error: str = "") -> RunInfo:
    return RunInfo("d-1", root.name, state, error, root)


APP = supervisor(
    "app",
    worker("postgres", pid=4711, health=ProbeResult(healthy=True)),
    supervisor(
        "api",
        worker("api-1", pid=4720, restarts=3),
        worker("api-2", pid=4721, health=ProbeResult(healthy=False, message="503 from /healthz")),
    ),
    supervisor(
        "jobs",
        worker("mailer", "task"),
        worker("resizer", "thread"),
        worker("importer", status="failed", restarts=5, circuit="open", exit_code=1, error="no such table"),
        worker("indexer", "task", "suspended"),
        worker("stuck", "thread", "killed", abandoned=True),
    ),
    worker("redis", "container"),
)
ROUTER = RouterState("main", 2, 1, 2, True, 128, 120, 3, 2, 1)
ROUTES = [route("file/*", "reload"), route("webhook/deploy", "deploy")]
SOURCES = [SourceInfo("signals", True), SourceInfo("webhook", False)]

DEPLOY = flow(
    in_order(
        "deploy",
        step("build", "SUCCESS", attempt=1),
        ItemInfo(
            "migrate",
            "graph",
            items=(
                ItemInfo("migrate_retry", "retry", "SUCCESS", "RETRY", attempt=2),
                step("dump", "SUCCESS", intention="REVERT"),
                step("alter", "FAILURE", intention="REVERT", attempt=2, error="OSError: disk full"),
            ),
            follow=((1,), (2,), ()),
        ),
        at_once("tell", step("mail"), step("chat", "IGNORE", intention="IGNORE")),
    )
)
