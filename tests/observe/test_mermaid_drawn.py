"""The real Mermaid draws the diagrams, and shows every name unchanged.

One browser serves a whole run; the tests compare its output.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lifecycle.observe import mermaid
from lifecycle.runtime import Reason
from lifecycle.workers import Status
from tests.observe.pictures import draw
from tests.observe.records import (
    APP,
    DEPLOY,
    ROUTER,
    ROUTES,
    SOURCES,
    at_once,
    flow,
    in_order,
    lifetime,
    route,
    step,
    supervisor,
    worker,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.observe.pictures import Picture

pytestmark = pytest.mark.timeout(200)

NASTY = [
    "quote \" and ' and `",
    "[bracket] (round) {curly} ((x)) [[y]] {{z}} >flag]",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<b>bold</b><br/>two",
    "</div></foreignObject></svg>",
    "%% comment",
    '%%{init: {"theme": "dark"}}%%',
    "---\ntitle: x\n---",
    "end",
    "end note",
    "End  Note",
    "subgraph",
    "graph TD",
    "stateDiagram-v2",
    "class w killed",
    "click w href 'javascript:alert(1)'",
    'click w call alert("x")',
    "style:#x;",
    "classDef x:#y;",
    "#quot;",
    "#35;",
    "&lt;&amp;&#60;",
    "ﬂ°°60¶ß",
    "ﬂ°lt¶ß",
    "a;b;c",
    "a --> b",
    "a ~~~ b",
    ":::killed",
    "`**bold** _it_ ~~no~~`",
    "**",
    "*x*",
    "_x_ __y__",
    "# heading",
    "1. first",
    "12) x",
    "- item",
    "+ item",
    "> quote",
    "    code",
    "| a | b |",
    "![x](y)",
    "[x](http://y)",
    "https://example.com/?a=b&c=d",
    "www.example.com",
    "me@example.com",
    "C:\\new\\table",
    "\\u0041",
    "$$x^2$$",
    "fa:fa-car",
    "fab:fa-github x",
    ":car:",
    "two\nlines",
    "\n",
    "tab\tbed",
    "  around  ",
    "many    spaces",
    "\0\x01\x1b[31m\x7f\x85\x9f",
    "\ud800 \udcff",
    "\u202e right to left \u2066",
    "\u200b\u200d\ufeff",
    "\u2028\u2029",
    "e\u0301 é ﬁ",
    "日本語 العربية",
    "👩‍👩‍👧 🇩🇪 😀",
    "constructor",
    "__proto__",
    "x" * 900,
    "word " * 150,
    "😀" * 200,
]


def shown(name: str) -> str:
    """Return a name as displayed: unprintable characters are replaced."""
    return re.sub("[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "\ufffd", name)


def seen(text: str) -> str:
    """Return a text as displayed: a word joiner has no width."""
    return text.replace("\u2060", "")


def made_up() -> list[str]:
    """Random names, the same in every run, so that a build does not fail at random."""
    found: list[str] = []
    alphabet = st.one_of(st.characters(), st.sampled_from("#;&<>\"'`*_~$\\:/|-=%{}[]()ﬂ°¶ß \n\tendw.0aé"))

    @settings(max_examples=150, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.text(alphabet, min_size=1, max_size=12))
    def find(name: str) -> None:
        found.append(name)

    find()
    return [name for name in found if "\u2060" not in name]


@cache
def names() -> list[str]:
    """Return all names. Making them takes too long for a module that each process imports."""
    return [*NASTY, *made_up()]


def noted() -> list[str]:
    """Return the names for a note, where line breaks separate the lines."""
    return [name for name in names() if "\n" not in name]


def forest() -> Iterator[str]:
    """Return trees with twenty names each."""
    for first in range(0, len(names()), 20):
        yield mermaid.tree(supervisor("names", *(worker(name) for name in names()[first : first + 20])))


def tables() -> list[str]:
    """The documentation's state diagrams."""
    pages = [Path(__file__).parents[2] / "docs/reference" / name for name in ("flow-states.md", "worker-states.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    return re.findall(r"^```mermaid\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def diagrams() -> dict[str, str]:
    return {
        "tree": mermaid.tree(APP),
        "tree with a heading": mermaid.tree(APP, label="of <today>"),
        "thousands": mermaid.tree(supervisor("app", *(worker(f"worker-{n}", pid=n) for n in range(5000)))),
        "system": mermaid.system([lifetime(), ROUTER, ROUTES, SOURCES, APP, DEPLOY], label="my program"),
        "large system": mermaid.system(
            [ROUTER, [route(f"file/{n}") for n in range(999)], SOURCES * 50, [worker(f"w{n}") for n in range(170)]]
        ),
        "empty system": mermaid.system([]),
        "own look": mermaid.tree(APP, label=lambda record: f"{record.name}\nas\nthree", style=lambda _: "killed"),
        "running life": mermaid.signal(lifetime()),
        "stopping life": mermaid.signal(
            lifetime(reason=Reason.INTERRUPT, signum=2, stopping=True, signals=1), label="<life>"
        ),
        "life without force": mermaid.signal(lifetime(force_exit_at=0)),
        "headed worker": mermaid.worker(worker("api"), label='"end"'),
        **{f"worker {status}": mermaid.worker(worker("api", status=status)) for status in Status},
        **{f"names {number}": text for number, text in enumerate(forest())},
        "note": mermaid.worker(worker("api"), label=lambda _: "\n".join(["first", *noted()])),
        "name": mermaid.worker(worker("\n".join(NASTY[:60]))),
        "headings": mermaid.system([worker(name) for name in NASTY[:3]], label="\n".join(NASTY[:60])),
        "flow": mermaid.flow(DEPLOY, label="<deploy>"),
        "flow of nothing": mermaid.flow(flow(in_order("nothing"))),
        "flow of one task": mermaid.flow(flow(step("alone", "RUNNING"))),
        "flow of thousands": mermaid.flow(
            flow(
                in_order(
                    "many",
                    *(step(f"done {n}", "SUCCESS") for n in range(2000)),
                    step("now", "RUNNING"),
                    at_once("rest", *(step(f"next {n}") for n in range(2000))),
                )
            )
        ),
        "flow of flows": mermaid.flow(
            flow(
                at_once("all", *(in_order(f"part {n}", step(f"{n} a", "SUCCESS"), step(f"{n} b")) for n in range(500)))
            )
        ),
        "flow with names": mermaid.flow(flow(in_order("".join(NASTY[:9]), *map(step, names()[:60])))),
        **{f"states {number}": text for number, text in enumerate(tables())},
        "routes": mermaid.system([[route(name, name) for name in names()[first : first + 40]] for first in (0, 40)]),
    }


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Picture]:
    # In a test run with several processes, each has a folder, and all of these folders are in one shared folder.
    here = tmp_path_factory.getbasetemp()
    shared = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here
    texts = diagrams()
    return dict(zip(texts, draw(list(texts.values()), shared / "mermaid"), strict=True))


def test_every_diagram_is_drawn(pictures: dict[str, Picture]) -> None:
    assert {name: picture.error for name, picture in pictures.items() if picture.error} == {}


def test_nothing_comes_to_life(pictures: dict[str, Picture]) -> None:
    assert {name: picture.strangers for name, picture in pictures.items() if picture.strangers} == {}


def test_every_name_is_shown_as_it_is(pictures: dict[str, Picture]) -> None:
    said = [
        [seen(line) for line in node.lines]
        for name, picture in pictures.items()
        if name.startswith("names ")
        for node in picture.nodes
        if node.lines[:1] != ("names",)
    ]
    assert said == [[shown(name), "running"] for name in names()]


def test_every_name_is_shown_as_it_is_in_a_note(pictures: dict[str, Picture]) -> None:
    [note] = [node for node in pictures["note"].nodes if "first" in node.lines]
    assert [seen(line).strip() for line in note.lines[1:]] == [shown(name).strip() for name in noted()]
    [note] = [node for node in pictures["name"].nodes if "running" in node.lines[1:]]
    assert seen(note.lines[0]).strip() == shown("\n".join(NASTY[:60])).strip()


def test_a_heading_is_shown_as_it_is(pictures: dict[str, Picture]) -> None:
    assert shown("\n".join(NASTY[:60])) in [seen(title) for title in pictures["headings"].titles]
    assert pictures["tree with a heading"].titles == ("of <today>",)
    assert pictures["stopping life"].titles == ("<life>",)
    assert pictures["headed worker"].titles == ('"end"',)
    assert set(pictures["system"].titles) == {"my program", "router main", "workers", "flows"}


def test_patterns_and_handlers_are_shown_as_they_are(pictures: dict[str, Picture]) -> None:
    said = [(seen(node.lines[0]), seen(node.lines[1])) for node in pictures["routes"].nodes if len(node.lines) > 2]
    assert said[:40] == [(shown(name), shown(name)) for name in names()[:40]]


def test_each_worker_has_a_node_of_the_class_of_its_status(pictures: dict[str, Picture]) -> None:
    picture = pictures["tree"]
    assert {node.lines[0]: set(node.classes) & {*Status, "unhealthy"} for node in picture.nodes} == {
        state.name: {str(state.status), *(["unhealthy"] if state.name == "api-2" else [])} for state in everyone(APP)
    }
    assert picture.node("importer").lines == (
        "importer",
        "failed",
        "5 restarts",
        "circuit open",
        "exit code 1",
        "no such table",
    )
    assert picture.node("api-2").lines == ("api-2", "running, pid 4721", "unhealthy: 503 from /healthz")
    assert picture.edges == 11


def everyone(state: Any) -> Iterator[Any]:
    yield state
    for child in state.children:
        yield from everyone(child)


def test_a_tree_of_any_size_is_drawn(pictures: dict[str, Picture]) -> None:
    assert len(pictures["large system"].nodes) == 170 + 1 + 41 + 41
    assert [node.lines for node in pictures["thousands"].nodes] == [("app", "running"), ("5000", "running")]


def test_a_system_shows_all_its_parts(pictures: dict[str, Picture]) -> None:
    names = {node.lines[0] for node in pictures["system"].nodes}
    assert names == {
        "lifetime",
        "main",
        "file/*",
        "webhook/deploy",
        "signals",
        "webhook",
        *(state.name for state in everyone(APP)),
        "deploy",
    }


def test_a_flow_shows_each_task_in_its_state_and_each_flow_in_a_frame(pictures: dict[str, Picture]) -> None:
    picture = pictures["flow"]
    assert set(picture.titles) == {"<deploy>", "deploy d-1, RUNNING", "migrate", "tell"}
    assert {node.lines for node in picture.nodes} == {
        ("build", "SUCCESS"),
        ("migrate_retry", "SUCCESS, to retry", "attempt 2"),
        ("dump", "SUCCESS, to revert"),
        ("alter", "FAILURE, to revert", "attempt 2", "OSError: disk full"),
        ("mail", "PENDING"),
        ("chat", "IGNORE"),
    }
    assert "failed" in picture.node("alter").classes
    assert "finished" in picture.node("build").classes
    assert picture.edges == 4


def test_a_flow_of_any_size_is_drawn(pictures: dict[str, Picture]) -> None:
    assert {node.lines for node in pictures["flow of thousands"].nodes} == {
        ("2000 tasks", "SUCCESS"),
        ("now", "RUNNING"),
        ("2000 tasks", "PENDING"),
    }
    assert [node.lines for node in pictures["flow of flows"].nodes] == [("500 flows", "500 SUCCESS, 500 PENDING")]
    assert [node.lines for node in pictures["flow of nothing"].nodes] == [("nothing", "empty")]
    assert [node.lines for node in pictures["flow of one task"].nodes] == [("alone", "RUNNING")]


def test_names_in_a_flow_are_shown_as_they_are(pictures: dict[str, Picture]) -> None:
    picture = pictures["flow with names"]
    assert [seen(node.lines[0]) for node in picture.nodes] == [shown(name) for name in names()[:60]]


@pytest.mark.parametrize("status", Status)
def test_a_worker_is_shown_in_its_status_among_all(pictures: dict[str, Picture], status: Status) -> None:
    nodes = {node.lines: node.classes for node in pictures[f"worker {status}"].nodes}
    assert {(each,) for each in Status} <= set(nodes)
    assert [lines for lines, classes in nodes.items() if "present" in classes] == [(str(status),)]
    assert status in nodes[str(status),]
    assert ("api", str(status)) in nodes


def test_functions_set_label_and_style_of_a_node(pictures: dict[str, Picture]) -> None:
    for node in pictures["own look"].nodes:
        assert node.lines[1:] == ("as", "three")
        assert "killed" in node.classes
