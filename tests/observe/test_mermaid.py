"""The text of diagrams, and invalid arguments. `test_mermaid_drawn` checks that Mermaid can draw the diagrams."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle import Router, Spec, Supervisor
from lifecycle import lifetime as block
from lifecycle.flows import FlowsState
from lifecycle.observe import mermaid
from lifecycle.observe.mermaid.styles import CLASSES, escape
from lifecycle.runtime import Reason
from lifecycle.workers import Status, WorkerState
from lifecycle.workers.model import FINAL, TRANSITIONS
from tests.observe.records import APP, DEPLOY, ROUTER, ROUTES, SOURCES, lifetime, route, supervisor, worker


def test_each_status_has_a_different_look() -> None:
    assert set(Status) <= set(CLASSES)
    assert len({CLASSES[status] for status in Status}) == len(Status)


def test_every_transition_of_a_worker_is_drawn() -> None:
    drawn = re.findall(r"^ +(\w+) --> (\w+|\[\*\])", mermaid.worker(worker("api")), re.MULTILINE)
    transitions = [(source, target) for source, row in TRANSITIONS.items() for target in row]
    assert sorted(drawn) == sorted([*transitions, *((status, "[*]") for status in FINAL)])


@pytest.mark.parametrize("status", Status)
def test_the_status_of_a_worker_is_marked(status: Status) -> None:
    text = mermaid.worker(worker("api", status=status, pid=4711))
    assert text.startswith("stateDiagram-v2\n")
    assert f"class {status} present" in text
    assert f"note right of {status}\n" in text
    assert "pid 4711" in text


def test_a_lifetime_that_runs_has_no_cause_to_stop_yet() -> None:
    text = mermaid.signal(lifetime())
    assert text.startswith("stateDiagram-v2\n")
    assert "class running present" in text
    assert "stopping --> forced: signal number 2" in text


def test_a_stopping_lifetime_shows_the_reason() -> None:
    text = mermaid.signal(lifetime(reason=Reason.TERMINATE, signum=15, stopping=True, signals=1))
    assert "class stopping present" in text
    assert "running --> stopping: terminate" in text
    assert "stopping, SIGTERM" in text


def test_a_signal_without_a_name_is_shown_by_its_number() -> None:
    assert "stopping, signal 250" in mermaid.signal(lifetime(reason=Reason.TERMINATE, signum=250, stopping=True))


def test_a_lifetime_that_is_never_forced_has_no_such_state() -> None:
    assert "forced" not in mermaid.signal(lifetime(force_exit_at=0))


def test_a_tree_shows_the_state_of_each_worker() -> None:
    text = mermaid.tree(APP)
    assert text.startswith("graph TD\n")
    assert text.count(" --> ") == 11
    for said in ("pid 4711", "3 restarts", "circuit open", "healthy", "no such table", "exit code 1", "abandoned"):
        assert said in text
    assert "circuit closed" not in text


async def test_a_supervisors_own_state_is_drawn() -> None:
    async with Supervisor("app", Spec("api", asyncio.Event().wait)) as app:
        assert 'w_0("`**api**\nrunning`"):::running' in mermaid.tree(app.state())


def test_one_failed_worker_of_a_thousand_is_drawn() -> None:
    many = [worker(f"worker-{number}", pid=number) for number in range(1000)]
    text = mermaid.tree(supervisor("app", *many, worker("importer", status="failed"), supervisor("deep", *many)))
    assert len(text) < 5_000
    assert text.count("**1000**\nrunning") == 2
    assert "**importer**\nfailed" in text


def test_a_thousand_failed_ones_are_one_node() -> None:
    text = mermaid.tree(supervisor("app", *(worker(f"w{number}", status="failed") for number in range(1000))))
    assert text.count(" --> ") == 1
    assert "**1000**\nfailed" in text


def test_ten_thousand_routes_are_shown_by_their_number() -> None:
    text = mermaid.system([ROUTER, [route(f"file/{number}") for number in range(10_000)]])
    assert text.count("**file/") == 40
    assert "9960 routes more" in text


def test_an_endless_name_is_cut() -> None:
    assert len(mermaid.tree(worker("x" * 1_000_000))) < 5_000


# -- the system --------------------------------------------------------------------------------------------------

PARTS: dict[str, object] = {
    "lifetime": lifetime(),
    "router": ROUTER,
    "routes": ROUTES,
    "sources": SOURCES,
    "workers": [APP],
    "flows": FlowsState("app.db", (DEPLOY,)),
}


@pytest.mark.parametrize(
    "state",
    [
        PARTS,
        list(PARTS.values()),
        tuple(PARTS.values()),
        SimpleNamespace(**PARTS, snapshots=7),
        {"all": [PARTS]},
        SimpleNamespace(lifetime=lifetime(), router=[ROUTER, ROUTES, SOURCES], tree=APP, runs=[DEPLOY]),
        {**PARTS, "inbox": None},
    ],
    ids=["mapping", "list", "tuple", "record", "nested", "other record", "with None"],
)
def test_a_system_may_come_in_any_form(state: object) -> None:
    assert mermaid.system(state) == mermaid.system(PARTS)


def test_a_system_has_a_frame_for_each_part() -> None:
    text = mermaid.system(PARTS, label="my program")
    assert text.startswith("graph TD\n")
    assert re.findall(r'subgraph \w+\["(.*)"\]', text) == ["my program", "router main", "workers", "flows"]
    assert "life0 --> router0" in text
    assert "life0 --> workers" in text
    assert "life0 --> flows" in text
    assert "r0_s0 --> r0" in text
    assert "r0 --> r0_0" in text


@pytest.mark.parametrize("state", [APP, ROUTER, lifetime(), ROUTES, SOURCES, DEPLOY, [], {}, None])
def test_any_part_alone_is_a_system(state: object) -> None:
    assert mermaid.system(state).startswith("graph TD\n")


def test_two_routers_have_their_own_routes() -> None:
    text = mermaid.system([ROUTER, [route("a")], ROUTER, [route("b")]])
    assert 'r0_0["`**a**' in text
    assert 'r1_0["`**b**' in text


async def test_a_running_program_is_drawn_from_its_states() -> None:
    router = Router("main")
    router.handle("file/saved", print)
    router.add_source(_events)
    async with block(signals=False) as life:
        state = {"lifetime": life.state(), "router": router.state(), "routes": router.routes()}
        text = mermaid.system({**state, "sources": router.sources()})
    assert "**file/saved**\nprint\n0 routed" in text
    assert "events**\nnot running" in text


async def _events() -> Any:
    yield None


# -- label and style -----------------------------------------------------------------------------------------------

DRAWERS: list[tuple[Any, object]] = [
    (mermaid.worker, APP),
    (mermaid.signal, lifetime()),
    (mermaid.tree, APP),
    (mermaid.flow, DEPLOY),
    (mermaid.system, [APP, ROUTER, ROUTES, lifetime(), SOURCES, DEPLOY]),
]
each_drawer = pytest.mark.parametrize(("draw", "state"), DRAWERS, ids=lambda value: getattr(value, "__name__", ""))


@each_drawer
def test_each_takes_a_state_and_two_settings(draw: Any, state: object) -> None:
    parameters = inspect.signature(draw).parameters
    assert list(parameters) == ["state", "label", "style"]
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in ("label", "style"))
    assert draw(state, label=None, style=None) == draw(state)


@each_drawer
def test_a_label_is_a_heading(draw: Any, state: object) -> None:
    assert '"of today"' in draw(state, label="of today")


@each_drawer
def test_a_label_may_be_a_function(draw: Any, state: object) -> None:
    text = draw(state, label=lambda record: f"it is\na {type(record).__name__}")
    assert re.search(r"it is\**\n\s*a \w+(State|Info)", text)
    assert draw(state, label=lambda _: None) == draw(state)


@each_drawer
def test_a_style_replaces_the_look_of_a_status(draw: Any, state: object) -> None:
    text = draw(state, style={Status.RUNNING: "fill:#fff; stroke: #000;"})
    assert "classDef running fill:#fff,stroke: #000\n" in text
    assert text.count("classDef running") == 1


@each_drawer
def test_a_style_may_be_a_function(draw: Any, state: object) -> None:
    text = draw(state, style=lambda _: "killed")
    assert re.search(r":::killed|class \w+ killed", text)
    assert draw(state, style=lambda _: None) == draw(state)


@pytest.mark.parametrize(
    "css", ["", ";", "red", "fill:#fff\nclick w call x()", "fill:url(x)", 'fill:"x"', "fill:#fff}"]
)
def test_css_that_a_diagram_cannot_hold_is_refused(css: str) -> None:
    with pytest.raises(ValueError, match="not valid CSS in a diagram"):
        mermaid.tree(APP, style={"running": css})


@pytest.mark.parametrize("style", [{"walking": "fill:#fff"}, lambda _: "walking"])
def test_a_class_that_is_none_is_refused(style: Any) -> None:
    with pytest.raises(ValueError, match=r"'walking' is not a diagram class.*running"):
        mermaid.tree(APP, style=style)


@each_drawer
def test_settings_of_the_wrong_kind_are_refused(draw: Any, state: object) -> None:
    with pytest.raises(TypeError, match="label=7: pass a heading"):
        draw(state, label=7)
    with pytest.raises(TypeError, match="style='red': pass a mapping"):
        draw(state, style="red")


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [None, "app", 7, {}, [APP], ROUTER, lifetime(), Supervisor("app")])
def test_another_record_than_a_workers_is_refused(state: Any) -> None:
    for draw in (mermaid.worker, mermaid.tree):
        with pytest.raises(TypeError, match=r"not a worker's state; pass worker\.state\(\)"):
            draw(state)


@pytest.mark.parametrize("state", [None, "life", 7, {}, APP, ROUTER])
def test_another_record_than_a_lifetimes_is_refused(state: Any) -> None:
    with pytest.raises(TypeError, match="not a lifetime's state"):
        mermaid.signal(state)


@pytest.mark.parametrize("state", [None, "deploy", 7, {}, APP, ROUTER, FlowsState("memory")])
def test_another_record_than_a_runs_is_refused(state: Any) -> None:
    with pytest.raises(TypeError, match=r"is not a run's record; pass run\.info\(\)"):
        mermaid.flow(state)


@pytest.mark.parametrize("state", ["app", b"app", 7, object(), [APP, 7], {"app": "app"}, Supervisor("app"), Router()])
def test_an_object_that_is_not_part_of_a_system_is_refused(state: object) -> None:
    with pytest.raises(TypeError, match=r"is not part of a program; pass the state\(\)"):
        mermaid.system(state)


def test_a_status_that_no_worker_has_is_refused() -> None:
    state = WorkerState("api", "process", "walking")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(ValueError, match=r"has the unknown status 'walking'; expected one of created"):
        mermaid.worker(state)


# -- text ----------------------------------------------------------------------------------------------------------


@given(st.text())
def test_escaped_text_has_only_safe_characters(text: str) -> None:
    escaped = escape(text)
    assert escaped.isascii()
    assert re.fullmatch(r"(?:[0-9A-Za-z ,./_-]|#\d+;)*", escaped)
    assert not re.search(r"^[ ,./_-]|[ ,./_-]$|  |--|end note|www\.", escaped, re.IGNORECASE)


@pytest.mark.parametrize("text", ["api-1", "web_2", "src/app.py", "running, pid 4711", "3 restarts"])
def test_ordinary_names_can_be_read_in_the_text(text: str) -> None:
    assert escape(text) == text


@pytest.mark.parametrize("module", ["mermaid", "console", "watching", "metrics", "control", "dashboard"])
def test_observing_imports_the_records_of_workers_and_flows_and_not_what_they_do(module: str) -> None:
    statement = f"import sys, lifecycle.observe.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, timeout=50, check=True)
    loaded = set(done.stdout.split())
    ours = {name for name in loaded if name.startswith(("lifecycle.workers.", "lifecycle.flows."))}
    assert ours <= {"lifecycle.workers.model", "lifecycle.flows.records", "lifecycle.flows.states"}
    assert not loaded & {"sqlite3", "psycopg", "multiprocessing"}
