"""Checks of the documentation: its code runs, prints the output shown, and uses only names that exist.

Each Python block of a page is run as a separate file in virtual time. Console lines and configuration are parsed by the
program's own parsers. An HTML comment before a block changes how it is tested. A block that is neither tested nor
marked as untested fails the suite:

``<!-- continues -->`` the block is appended to the file of the previous block ``<!-- prints -->`` the text, or diagram,
is the output of the previous block ``<!-- file: NAME -->`` a separate program, which a test here runs ``<!-- module:
NAME -->`` a file that the reader creates, which later blocks can import ``<!-- change: NAME -->`` the reader's change
to that program ``<!-- not run: REASON -->`` the block is not run, for this reason ``<!-- run by: FILE -->`` that test
runs the block ``<!-- runs in real time -->`` anywhere on a page: the page needs sockets or processes
"""

from __future__ import annotations

import ast
import asyncio
import fcntl
import importlib
import importlib.util
import inspect
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from configparser import ConfigParser
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import psutil
import pytest
import yaml  # type: ignore[import-untyped]  # myst-parser installs it, without stubs

from lifecycle.cli import main
from lifecycle.cli.app import build_parser, parse
from lifecycle.cli.up.processes import KEYS, Condition, in_order, parse_procfile, read_processes
from lifecycle.cli.watch.settings import OPTIONS, read_table, watch_settings
from lifecycle.testing import VirtualLoop
from tests.programs import Running, connect, free_port, in_this_process, post
from tests.realtime.observe.shops import home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
    *sorted((ROOT / "examples").rglob("*.md")),
]
PACKAGES = (
    "control",
    "runtime",
    "sources",
    "sources.signatures",
    "handlers",
    "interactive",
    "workers",
    "workers.pool",
    "flows",
    "bridges",
    "observe",
    "observe.mermaid",
    "testing",
    "errors",
    "states",
    "backoff",
    "journal",
)

_BLOCK = re.compile(
    r"(?:^<!-- *(?P<mark>[^\n]*?) *-->\n+)?^```(?P<language>[a-z]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@dataclass(frozen=True)
class Block:
    """A block of code, the comment before it, and its first line's number."""

    mark: str
    language: str
    text: str
    line: int


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [
        Block(match["mark"] or "", match["language"], match["text"], text.count("\n", 0, match.start("text")) + 1)
        for match in _BLOCK.finditer(text)
    ]
    return [block for block in found if block.language in languages]


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def with_blocks(*languages: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, *languages)], ids=relative)


# -- Python ----------------------------------------------------------------------------------------------------


def _awaits(code: str) -> bool:
    try:
        compile(code, "page", "exec")
    except SyntaxError:
        return True
    return False


class Reader:
    """Runs each block of a page as a separate file, or as a continuation of the previous block."""

    def __init__(self, page: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.page = page
        self.loop = loop
        self.names: dict[str, Any] = {"__name__": "__docs__"}
        # All blocks of a page with a top-level await share one namespace.
        self.separate = not any(_awaits(block.text) for block in blocks(page, "python"))

    def run(self, block: Block) -> None:
        if block.mark.startswith("module: "):
            Path(block.mark.removeprefix("module: ")).write_text(block.text, encoding="utf-8")
            return
        if self.separate and block.mark != "continues":
            self.names = {"__name__": "__main__"}
        # With these blank lines, tracebacks have the page's line numbers.
        tree = ast.parse("\n" * (block.line - 1) + block.text, str(self.page))
        code = compile(tree, str(self.page), "exec", flags=_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            self.loop.run_until_complete(eval(code, self.names))
        else:
            exec(code, self.names)


@pytest.fixture
def reader(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    real = "<!-- runs in real time -->" in page.read_text(encoding="utf-8")
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop if real else VirtualLoop
    # Both `asyncio.run` and `lifecycle.run` create their event loops through this function.
    monkeypatch.setattr(asyncio.events, "new_event_loop", factory)
    with asyncio.Runner(loop_factory=factory) as runner:
        yield Reader(page, runner.get_loop())


@with_blocks("python")
def test_the_code_runs_and_prints_what_is_shown(page: Path, reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page, "python", "text", "mermaid"):
        if block.mark == "prints":
            assert capsys.readouterr().out.split("\n") == block.text.split("\n"), f"{relative(page)}:{block.line}"
        elif block.language == "python" and not block.mark.startswith(("file:", "change:", "not run:")):
            capsys.readouterr()
            reader.run(block)


#: The check for blocks in each language, unless they are marked ``not run`` or ``run by``.
TRIED = {
    "python": r"|continues|(file|change|module): \w+\.py|runs in real time",
    "text": "prints",
    "mermaid": "prints",
    **dict.fromkeys(("console", "toml", "yaml", "json", "ini", "procfile"), ""),
}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_block_is_tested_or_has_a_reason(page: Path) -> None:
    lines = re.findall(r"^ *(```|~~~)([^\n]*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    languages = [said for _, said in lines[::2] if not said.startswith("{")]
    found = blocks(page, *languages)
    assert [block.language for block in found] == languages, "a block is indented, or has no language"
    for block in found:
        tried = TRIED.get(block.language)
        if tried is None or re.fullmatch(tried, block.mark) is None:
            reason = re.fullmatch(r"not run: .+|run by: (\S+)", block.mark)
            assert reason, f"{relative(page)}:{block.line} is not run, and gives no reason"
            assert reason[1] is None or f"```{block.language}" in (ROOT / reason[1]).read_text(encoding="utf-8")


# -- programs --------------------------------------------------------------------------------------------------


def versions(page: Path, name: str) -> list[str]:
    """Return the program ``name`` after each step of the page."""
    found: list[str] = []
    for block in blocks(page, "python"):
        if block.mark == f"file: {name}":
            found.append(block.text)
        elif block.mark == f"change: {name}":
            found.append(changed(found[-1], block.text))
    return found


def changed(program: str, change: str) -> str:
    """Apply a change as a reader would: add imports at the top, replace existing names, and append new functions."""
    body = ast.parse(program).body
    end = len(body) - 1  # the call of `run`
    at = end
    for statement in reversed(ast.parse(change).body):
        found = [i for i, each in enumerate(body) if _defined(each) and _defined(each) == _defined(statement)]
        if isinstance(statement, ast.Import | ast.ImportFrom):
            body.insert(0, statement)
        elif found:
            at = found[0]
            body[at] = statement
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            body.insert(end, statement)
        else:
            body.insert(at, statement)
    return ast.unparse(ast.Module(body, []))


def _defined(statement: ast.stmt) -> str:
    """Return the name that the statement defines."""
    if isinstance(statement, ast.Assign):
        return ast.unparse(statement.targets[0])
    return getattr(statement, "name", "")


PROGRAMS = {
    "README.md": {"first.py"},
    "docs/start/quickstart.md": {"app.py", "quick.py"},
    "docs/tutorial.md": {"app.py", "reloader.py"},
    "docs/tutorial-flows.md": {"deploy.py"},
    "docs/tutorial-workflows.md": {"shop.py"},
    "docs/howto/prompt.md": {"chat.py", "counter.py", "release.py"},
    "docs/howto/debounce.md": {"build.py"},
    "docs/howto/steer.md": {"shop.py"},
    "docs/howto/webhook.md": {"daemon.py", "shop.py"},
    "docs/howto/jobs.md": {"jobs.py", "outbox.py"},
    # The programs on this page run in tests/testing/test_plugins.py.
    "docs/howto/testing.md": {"test_app.py", "test_events.py"},
}


def test_every_program_is_run_by_a_test_below() -> None:
    marks = {relative(page): {block.mark for block in blocks(page, "python")} for page in PAGES}
    named = {
        page: {mark.partition(": ")[2] for mark in of if mark.startswith(("file: ", "change: "))}
        for page, of in marks.items()
    }
    assert {page: names for page, names in named.items() if names} == PROGRAMS


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    programs: list[Running] = []

    def started(text: str, *argv: str, keyboard: bool = False, **env: str) -> Running:
        (tmp_path / "program.py").write_text(text)
        # Only the program itself writes without a buffer, as at a terminal. Its children write into pipes.
        env = {**env, "PYTHONUNBUFFERED": ""}
        programs.append(Running("-u", "program.py", *argv, cwd=tmp_path, keyboard=keyboard, env=env))
        return programs[-1]

    yield started
    for program in programs:
        program.close()


def children_of(program: Running, argument: str) -> set[int]:
    """Return the PIDs of the descendants of ``program`` whose command line contains ``argument``."""
    found: set[int] = set()
    for process in psutil.Process(program.process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if argument in process.cmdline():
                found.add(process.pid)
    return found


def test_the_first_program_of_the_readme_restarts_its_server_on_a_signed_webhook(start: Callable[..., Running]) -> None:
    web, hook = free_port(), free_port()
    text = versions(ROOT / "README.md", "first.py")[0].replace("8000", str(web)).replace("9000", str(hook))
    program = start(text, WEBHOOK_SECRET="hush")
    connect(web)
    connect(hook)
    program.until("Serving HTTP on")
    before = children_of(program, "http.server")
    assert len(before) == 1
    assert post(hook, "/deploy", b"", "guess") == 401
    assert children_of(program, "http.server") == before
    assert post(hook, "/deploy", b"", "hush") == 202
    program.until("Serving HTTP on")
    assert not children_of(program, "http.server") & before
    program.stop()


def test_the_program_of_the_quickstart(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, app = ROOT / "docs/start/quickstart.md", tmp_path / "app.py"
    app.write_text(versions(page, "app.py")[0])
    with home() as env:
        program = start(versions(page, "quick.py")[0], keyboard=True, **env)
        program.until("hello from process")
        # A second edit would restart the program later, during the next steps.
        edit = partial(app.write_text, app.read_text().replace("hello", "good evening"))
        program.answers(edit, "app.py was modified", every=5.0)
        program.until("good evening from process")
        for word, answer in (("suspend", "suspended"), ("resume", "resumed"), ("restart", "good evening from process")):
            program.type(word)
            program.until(answer)
        monkeypatch.setenv("XDG_RUNTIME_DIR", env["XDG_RUNTIME_DIR"])
        assert in_this_process(capsys, "ctl", "restart")[0] == 0
        status, shown, _ = in_this_process(capsys, "ctl", "status")
        assert (status, "hello" in shown) == (0, True)
        good, before = app.read_text(), children_of(program, "app.py")
        program.answers(lambda: app.write_text(f"{good}print({time.time()}\n"), "the old process continues: '('")
        assert before
        assert children_of(program, "app.py") == before
        program.type("quit")
        program.rest()


def test_the_program_of_the_first_page_of_help(start: Callable[..., Running], tmp_path: Path) -> None:
    page = inspect.getdoc(importlib.import_module("lifecycle")) or ""
    [program] = re.findall(r"^    from lifecycle import .*^    run\(router\)$", page, re.MULTILINE | re.DOTALL)
    watching = start(inspect.cleandoc(program))
    watching.answers((tmp_path / "saved.txt").touch, "saved.txt ")
    watching.stop(signal.SIGINT)


def test_the_first_prompt_of_the_how_to_suspends_its_worker(start: Callable[..., Running]) -> None:
    page = ROOT / "docs/howto/prompt.md"
    program = start(versions(page, "counter.py")[0], keyboard=True)
    program.type("help")
    [session] = [block.text for block in blocks(page, "text") if block.text.startswith("> help")]
    program.until(re.findall(r"> help\n(.*?)^>", session, re.MULTILINE | re.DOTALL)[0])
    while "running after step" not in program.text:
        program.type("last")
        program.until("running after")
        program.until("\n")
    program.type("suspend")
    program.until("suspended")
    for word in ("last", "last"):
        program.type(word)
        program.until("suspended after step ")
        program.until("\n")
    shown = re.findall(r"suspended after step (\d+)", program.text)
    assert shown[-1] == shown[-2]
    program.type("quit")
    program.rest()


def test_the_second_prompt_of_the_how_to_takes_arguments(start: Callable[..., Running]) -> None:
    program = start(versions(ROOT / "docs/howto/prompt.md", "release.py")[0], keyboard=True)
    program.type("deploy rome")
    program.until("'rome' is not one of lisbon, london, paris; usage: deploy [--force] HOST [VERSION]")
    program.type("deploy paris 3 --force")
    program.until("deployed version 3 to paris by force")
    program.type("quit")
    program.rest()
    program = start(versions(ROOT / "docs/howto/prompt.md", "chat.py")[0], keyboard=True)
    program.type("help me")
    program.until("You said: help me")
    program.type("/model small")
    program.until("the model is small")
    program.type("/quit")
    program.rest()


def test_the_daemon_of_the_how_to_handles_a_signed_webhook(start: Callable[..., Running]) -> None:
    port = free_port()
    program = start(
        versions(ROOT / "docs/howto/webhook.md", "daemon.py")[0].replace("9000", str(port)), WEBHOOK_SECRET="hush"
    )
    connect(port)
    assert post(port, "/deploy", b"main", "guess") == 401
    assert post(port, "/deploy", b"main", "hush") == 202
    program.until("deploying main attempt 1")
    program.stop()


def test_the_shop_of_the_how_to_answers_with_a_result(start: Callable[..., Running]) -> None:
    port = free_port()
    program = start(
        versions(ROOT / "docs/howto/webhook.md", "shop.py")[0].replace("9000", str(port)), WEBHOOK_SECRET="hush"
    )
    connect(port)
    orders = [b'{"item": "tea"}'] * 4 + [b'{"item": "rum"}', b"tea"]
    assert [post(port, "/order", order, "hush") for order in orders] == [200, 200, 200, 409, 404, 400]
    program.stop()


def test_the_build_of_the_how_to_runs_after_a_change(start: Callable[..., Running], tmp_path: Path) -> None:
    program = start(versions(ROOT / "docs/howto/debounce.md", "build.py")[0])
    saved = tmp_path / "saved.py"
    program.answers(lambda: saved.write_text(f"now = {time.time()}"), "building saved.py")
    program.until("exit code 0")
    program.stop()


@pytest.mark.parametrize("step", range(4))
def test_the_reloader_of_the_tutorial_at_each_step(start: Callable[..., Running], tmp_path: Path, step: int) -> None:
    page, app, port = ROOT / "docs/tutorial.md", tmp_path / "app.py", free_port()
    app.write_text(versions(page, "app.py")[0])
    reloaders = versions(page, "reloader.py")
    assert len(reloaders) == 4
    program = start(reloaders[step], keyboard=True, SECRET="hush", PORT=str(port))
    program.until("app: hello from process")

    program.answers(lambda: app.write_text(app.read_text().replace("hello", "good evening")), "app.py")
    program.until("app: good evening from process")
    if step >= 2:
        for word, answer in (("suspend", "suspended"), ("resume", "resumed"), ("reload", "app: good evening")):
            program.type(word)
            program.until(answer)
    if step == 3:
        connect(port)
        assert post(port, "/deploy", b"please", "guess") == 401
        assert post(port, "/elsewhere", b"please", "hush") == 404
        assert post(port, "/deploy", b"please", "hush") == 202
        program.until("webhook/deploy")
        program.until("app: good evening")
    program.stop()


def slowed(text: str, after: str, seconds: int = 1000) -> str:
    """Return a program with a longer sleep after the given line, so that the test has time to stop the program."""
    begin, line, end = text.partition(after)
    changed, count = re.subn(r"sleep\(\d+\)", f"sleep({seconds})", end, count=1)
    assert count == 1
    return begin + line + changed


def test_the_deployment_of_the_tutorial_resumes_where_it_was(start: Callable[..., Running]) -> None:
    first, second = versions(ROOT / "docs/tutorial-flows.md", "deploy.py")
    program = start(slowed(first, 'print("migrating"', 5), "v2")
    program.until("migrating")
    assert "switching" not in program.stop(signal.SIGINT)
    assert start(first, "v2").rest() == "switching to app-v2\ndone: app-v2\n"

    program = start(slowed(second, "print('migrating back'"), "v4-broken")
    program.until("migrating back")
    program.process.kill()
    program.rest(-signal.SIGKILL)
    said = start(second, "v4-broken").rest()
    assert re.findall("^(?:migrating back|removing.*|v4.*)$", said, re.MULTILINE) == [
        "migrating back",
        "removing app-v4-broken",
        "v4-broken is REVERTED",
    ]


def test_the_order_of_the_tutorial_resumes_where_it_was(start: Callable[..., Running], tmp_path: Path) -> None:
    first, second = versions(ROOT / "docs/tutorial-workflows.md", "shop.py")
    program = start(first, "o2")
    program.until("packing lamp")
    assert "packing bulb" not in program.stop(signal.SIGINT)
    program = start(slowed(first, 'print("packing"'), "o2")
    program.until("packing bulb")
    program.process.kill()
    program.rest(-signal.SIGKILL)
    assert start(first, "o2").rest() == "packing bulb\npacking cable\ndone: charge of 30\n"

    for number, approved, end in (("o4", "true", "done: charge"), ("o5", "false", "REVERTED because: not approved")):
        program = start(second, number)
        program.until("charging 30\n")
        assert main(["flows", "signal", str(tmp_path / "shop.db"), number, "approval", approved]) == 0
        said = program.rest()
        assert end in said
        assert said.count("packing") == (3 if approved == "true" else 0)
    assert "refunding the charge of 30\n" in said
    assert start(second, "o4").rest() == "done: charge of 30\n"


def test_the_programs_of_the_page_on_jobs(start: Callable[..., Running]) -> None:
    page = ROOT / "docs/howto/jobs.md"
    [text], [outbox] = (versions(page, f"{name}.py") for name in ("jobs", "outbox"))
    shown = [block.text for block in blocks(page, "text") if block.mark != "prints"]
    program = start(slowed(text, 'print("uploading"'))
    program.until("uploading small-cat.jpg\n")
    program.process.kill()
    said = f"$ python jobs.py\n{program.rest(-signal.SIGKILL)}Killed\n"
    program = start(text)
    program.until("uploaded small-cat.jpg\n")
    assert said + f"$ python jobs.py\n{program.stop()}" == shown[0]

    program = start(outbox)
    program.until(shown[1])
    program.stop()


# -- commands, configuration -----------------------------------------------------------------------------------


def commands() -> list[tuple[str, list[str]]]:
    """Return the commands that a reader can type, except those marked as not run."""
    found = [
        (f"{relative(page)}:{block.line}", block.text)
        for page in PAGES
        for block in blocks(page, "console")
        if not block.mark
    ]
    return [
        (where, shlex.split(line.removeprefix("$ "), comments=True))
        for where, text in found
        for line in text.replace("\\\n", "").splitlines()
    ]


@pytest.mark.parametrize(("where", "words"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_commands_that_are_shown_can_be_given(where: str, words: list[str]) -> None:
    words = [word for word in words if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    if not words:
        return
    match words:
        case ["lifecycle" | "lifecycle-control", *rest] | ["uvx", "lifecycle-control", *rest]:
            if "[options]" in rest or "MODULE:ATTRIBUTE" in rest:
                return
            parsed = parse(rest)
            if rest[0] == "watch":
                assert watch_settings(vars(parsed), {}).command
        case ["make", *targets]:
            text = (ROOT / "Makefile").read_text()
            assert all(re.search(rf"^{target}:", text, re.MULTILINE) for target in targets if "=" not in target)
        case ["python", path, *_] if path.endswith(".py"):
            assert (ROOT / path).exists() or path in set().union(*PROGRAMS.values())
        case [".venv/bin/python", "-m", module, *_] | ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module), where
        case ["python3", "-m", "venv", ".venv"] | [".", ".venv/bin/activate"]:
            return  # commands of Python and the shell
        case ["pip", "install", what]:
            [extra] = re.findall(r"(?:lifecycle-control|\.)\[(\w+)\]", what)
            assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        case _:
            first = words[0]
            assert (ROOT / first).exists(), f"{where}: {first} is shown but not run, and has no reason"


@with_blocks("toml")
def test_configuration_that_is_shown_is_understood(page: Path, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for block in blocks(page, "toml"):
        if block.mark.startswith("run by: "):
            continue
        tables = tomllib.loads(block.text)
        tables = tables.get("tool", {}).get("lifecycle", tables)
        if "processes" in tables:
            processes = read_processes(tables["processes"], tmp_path / "lifecycle.toml", "processes", {})
            assert in_order(processes, tmp_path / "lifecycle.toml")
        else:
            assert watch_settings({}, read_table(tables["watch"], ROOT / "pyproject.toml")).command


@with_blocks("yaml", "json", "ini", "procfile")
def test_other_files_that_are_shown_can_be_read(page: Path) -> None:
    for block in blocks(page, "yaml", "json", "ini", "procfile"):
        match block.language:
            case "yaml":
                assert all(isinstance(each, dict) for each in yaml.safe_load_all(block.text))
            case "json":
                assert json.loads(block.text)
            case "ini":
                unit = ConfigParser(strict=False, interpolation=None, comment_prefixes="#")
                unit.read_string(block.text)
                assert set(unit.sections()) <= {"Unit", "Service", "Socket", "Install"}
            case _:
                assert parse_procfile(block.text, page)


def test_the_manifest_gives_the_service_its_time() -> None:
    shown = [yaml.safe_load(block.text) for block in blocks(ROOT / "docs/howto/kubernetes.md", "yaml")]
    [deployment] = [each for each in shown if each.get("kind") == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    env = {each["name"]: each["value"] for each in spec["containers"][0]["env"]}
    drain = re.search(r"^DRAIN = ([0-9.]+)", (ROOT / "examples/service.py").read_text(), re.MULTILINE)
    exit_timeout = inspect.signature(importlib.import_module("lifecycle").run).parameters["exit_timeout"].default
    assert drain is not None
    assert float(env["NOTICE"]) + float(drain[1]) < exit_timeout < spec["terminationGracePeriodSeconds"]


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as Sphinx and GitHub generate them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^):]*)\)", FENCE.sub("", page.read_text(encoding="utf-8")))
    for link in links:
        path, _, anchor = "".join(link.split()).partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in slugs(target) | generated(target), link


def generated(page: Path) -> set[str]:
    """Return the anchors of headings that a directive generates."""
    names = re.findall(r"^```\{section\} \w+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {name.lower().replace(" ", "-") for name in names}


# -- the errors on the troubleshooting page -------------------------------------------------------------------------

TROUBLES = re.findall(
    r"^> `(?:\w+: )?(.+)`$", (ROOT / "docs/howto/troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.fixture(scope="module")
def literals() -> str:
    """Return all string literals in the library, one per line, with a blank in place of each inserted value."""
    found: list[str] = []
    for path in (ROOT / "lifecycle").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(each.value) if isinstance(each, ast.Constant) else " " for each in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


@pytest.mark.parametrize("text", TROUBLES)
def test_every_error_that_is_explained_is_raised_with_this_text(literals: str, text: str) -> None:
    """On the page, ``…`` represents values. The library's strings must contain the text around it."""
    for part in re.split(r"…|[:;,] |\.\.\.$|'postgres'.*", text):
        assert part.strip() in literals, part


# -- evidence for the comparison -------------------------------------------------------------------------------

COMPARISON = ROOT / "docs/explanation/comparison.md"


def cells(text: str) -> list[str]:
    """Return the cells of all tables, without headings and the first column."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    bodies = [row for row, below in pairwise([*rows, [""]]) if not below[0].startswith("--") and row[0][:2] != "--"]
    return [cell.strip() for row in bodies for cell in row[1:] if cell.strip(" |")]


def footnotes(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\[\^([\w-]+)\]: (.*(?:\n {4}.*)*)", text, re.MULTILINE))


def test_every_cell_of_the_comparison_has_a_footnote_and_each_footnote_a_cell() -> None:
    text = COMPARISON.read_text(encoding="utf-8")
    said = [cell for cell in cells(text) if cell not in ("not measured", "not tried")]
    assert len(said) > 80
    assert [cell for cell in said if "[^" not in cell] == []
    assert {label for cell in said for label in re.findall(r"\[\^([\w-]+)\]", cell)} == footnotes(text).keys()


@pytest.mark.parametrize(("label", "backing"), footnotes(COMPARISON.read_text(encoding="utf-8")).items())
def test_tests_and_figures_that_back_the_comparison_exist(label: str, backing: str) -> None:
    functions = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", backing)
    figures = [
        (module, figure)
        for module, of in re.findall(r"`(benchmarks/\w+\.py)`: ((?:`\w+`[\s,;]*)+)", backing)
        for figure in re.findall(r"`(\w+)`", of)
    ]
    assert functions or figures or re.search(r"<https://[^>]+>", backing), label
    for path, name in functions:
        assert re.search(rf"^\s*(?:async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), name
    for path, name in figures:
        assert f'"{name}"' in (ROOT / path).read_text(encoding="utf-8"), name


def test_each_line_of_the_threat_model_names_a_test_that_exists() -> None:
    page = (ROOT / "docs/explanation/security.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.count(" | ") == 2 and not line.endswith(" | test")]
    assert len(lines) > 40
    for line in lines:
        assert re.search(r"`[\w/]+\.py::\w+`$", line), line
    for path, name in re.findall(r"`(?:tests/)?([\w/]+\.py)::(\w+)`", page):
        text = (ROOT / "tests" / path).read_text(encoding="utf-8")
        assert re.search(rf"^\s*(?:async )?def {name}\(", text, re.MULTILINE), f"{path}::{name}"


def test_figures_that_are_named_are_printed_by_a_benchmark() -> None:
    printed = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py"))
    pattern = r"`(\w+_over_\w+|\w+_ms(?:_\w+)?|\w+_percent|hot_\w+|linear_\w+)`"
    named = {name for page in PAGES for name in re.findall(pattern, page.read_text(encoding="utf-8"))}
    assert len(named) > 10
    assert sorted(name for name in named if name not in printed) == []


def test_the_readme_links_the_sections_that_back_its_rows() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"docs/explanation/comparison\.md#([\w-]+)", readme)
    rows = [line for line in readme.splitlines() if line.startswith("| ")][2:]
    assert len(links) == len(rows) > 3


# -- completeness of the reference -----------------------------------------------------------------------------


def helped(*words: str) -> str:
    """Return the output of ``lifecycle WORDS --help``."""
    with redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit):
        parse([*words, "--help"])
    return said.getvalue()


def offered(*words: str) -> Iterator[tuple[str, ...]]:
    """Yield ``words`` and all sub-commands."""
    yield words
    _, _, below = helped(*words).partition("commands:\n")
    for word in re.findall(r"^ {2,4}([a-z]+)(?:  |$)", below.partition("\n\n")[0], re.MULTILINE):
        yield from offered(*words, word)


@pytest.mark.parametrize("command", sorted({words[0] for words in offered() if words}))
def test_each_command_has_a_page_with_all_of_its_options_and_subcommands(command: str) -> None:
    pytest.importorskip("docutils")
    page = (ROOT / f"docs/reference/commands/{command}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# lifecycle {command}\n")
    shown = re.findall(r"^```\{options\} ([a-z ]+)$", page, re.MULTILINE)
    assert shown, "the page has no table of options"
    tables = "\n".join(_tables().options(each) for each in shown)
    said = set(re.findall(r"[\w-]+", tables)) | set(" ".join(shown).split())
    for words in offered(command):
        options = re.findall(r"^  (?:-\w(?: \w+)?, )?(--[a-z-]+)", helped(*words), re.MULTILINE)
        assert {words[-1], *options} - said - {"--help"} == set(), words


def _tables() -> Any:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs/tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_index_of_commands_lists_every_command() -> None:
    page = (ROOT / "docs/reference/commands/index.md").read_text(encoding="utf-8")
    commands = {words[0] for words in offered() if words}
    assert "```{commands}\n" in page
    pytest.importorskip("docutils")
    assert set(re.findall(r"^\| \[`lifecycle ([a-z]+)`\]", _tables().commands(), re.MULTILINE)) == commands
    assert set(re.findall(r"^[a-z]+$", page, re.MULTILINE)) == commands


def test_each_option_of_watch_and_each_key_of_a_process_is_in_a_generated_table() -> None:
    pytest.importorskip("docutils")
    tables = _tables()
    watch = tables.options("watch")
    # The last name in a row is the option. The names before it are aliases.
    rows = set(re.findall(r"^\| (?:`[A-Za-z-]+`, )*`--([a-z-]+)[^`]*` \|", watch, re.MULTILINE))
    assert rows == {"watch", *(option.shown for option in OPTIONS)}
    assert re.findall(r"^\| `([a-z-]+)` \|", tables.keys(), re.MULTILINE) == [
        *("command", "cwd", "env", "depends-on"),
        *(key.name for key in KEYS),
    ]


@pytest.mark.parametrize(
    ("page", "command", "count"),
    [("switch-to-watch", "watch", 80), ("migrate", "up", 50)],
)
def test_each_option_that_replaces_one_of_another_tool_exists(page: str, command: str, count: int) -> None:
    pytest.importorskip("docutils")
    text = (ROOT / f"docs/howto/{page}.md").read_text(encoding="utf-8")
    # `lifecycle ctl` has other options.
    rows = re.findall(r"^(.+) \| (.+)$", re.sub(r"`lifecycle ctl [^`]*`", "", text), re.MULTILINE)
    named = {name for _, here in rows for name in re.findall(r"`(--?[A-Za-z][a-z-]*)", here)}
    assert len(rows) > count
    cells = re.findall(r"^\| ([^|]+) \|", _tables().options(command), re.MULTILINE)
    known = {name for cell in cells for name in re.findall(r"`(--?[A-Za-z][a-z-]*)", cell)}
    assert sorted(named - known - {"--help"}) == []


def test_each_key_that_replaces_one_of_process_compose_exists() -> None:
    _, _, page = (ROOT / "docs/howto/migrate.md").read_text(encoding="utf-8").partition("\nYAML | here\n")
    rows = re.findall(r"^(`.+) \| (.+)$", page.partition("\n\n")[0], re.MULTILINE)
    keys = {"command", "cwd", "env", "depends-on", *(key.name for key in KEYS), *get_args(Condition)}
    named = {name for _, here in rows for name in re.findall(r"`([a-z][a-z-]*)`", here)}
    assert named - keys == set()


def test_every_event_is_in_the_table_of_topics() -> None:
    page = (ROOT / "docs/reference/topics.md").read_text()
    events = importlib.import_module("lifecycle.events")
    names = [name for name in events.__all__ if name == "FileBatch" or name.endswith("Event")]
    assert not [name for name in names if f"| `{name}(" not in page]
    for name in names[1:]:
        pattern = getattr(events, name)
        if name != "Event":
            topic = events.topics_of(pattern).partition("*")[0]
            assert f"`{topic}" in page, f"{name}: {topic}"


def test_commands_in_the_text_exist() -> None:
    """Commands in blocks are parsed elsewhere. This covers names such as `lifecycle ctl stacks` in sentences."""
    unknown: list[str] = []
    subparsers = _tables().subparsers
    for page in PAGES:
        # A line break in a paragraph may be inside the name.
        for command in re.findall(r"`lifecycle ([^`]+)`", page.read_text().replace("\n", " ")):
            words = command.split()
            parser = build_parser(words[0])
            while words and re.fullmatch("[a-z][a-z-]*", words[0]) and (below := subparsers(parser)):
                word = words.pop(0)
                if word not in below:
                    unknown.append(f"{relative(page)}: lifecycle {command}")
                    break
                parser = below[word]
    assert unknown == []


def test_servers_listen_where_the_page_on_security_says() -> None:
    page = (ROOT / "docs/explanation/security.md").read_text()
    for module, name in (("sources", "WebhookSource"), ("observe", "ProbeServer"), ("observe", "Dashboard")):
        parameters = inspect.signature(getattr(importlib.import_module(f"lifecycle.{module}"), name)).parameters
        host, port = parameters["host"].default, parameters["port"].default
        assert host == "127.0.0.1"
        assert f"`{host}:{port}`" in page or (port == 0 and f"`{name}` listens on `{host}`" in page)
    dedupe = inspect.signature(importlib.import_module("lifecycle.sources").WebhookSource).parameters["dedupe"].default
    assert f"`dedupe` seconds ({dedupe:g})" in page


def test_the_diagrams_of_states_match_the_tables_in_the_code() -> None:
    states, model = (
        importlib.import_module("lifecycle.flows.states"),
        importlib.import_module("lifecycle.workers.model"),
    )
    drawn: list[list[str]] = []
    for table in (states.FLOWS, states.WORKFLOWS, states.TASKS, states.JOBS):
        moves = [f"{old} --> {new}" for old, row in table.moves.items() for new in sorted(row)]
        moves += [f"{old} --> {new}: cancelled" for old, new in sorted(table.cancelled)]
        moves += [f"{old} --> {new}: retry" for old, new in sorted(table.retried)]
        moves += [f"{old} --> {table.initial}: reset" for old in sorted(table.reset)]
        drawn.append([f"[*] --> {table.initial}", *moves])
    moves = [f"{old} --> {new}" for old, row in model.TRANSITIONS.items() for new in model.Status if new in row]
    ends = [f"{old} --> [*]" for old, row in model.TRANSITIONS.items() if not row]
    drawn.append(["[*] --> created", *moves, *ends])
    pages = [ROOT / "docs/reference" / name for name in ("flow-states.md", "worker-states.md")]
    shown = [[line.strip() for line in block.text.splitlines()] for page in pages for block in blocks(page, "mermaid")]
    assert shown == [["stateDiagram-v2", *lines] for lines in drawn]


def test_the_tables_of_states_name_every_state() -> None:
    """Each table has a row for each state, and the phases of an engine are those that `Run.states` yields."""
    states, model = (
        importlib.import_module("lifecycle.flows.states"),
        importlib.import_module("lifecycle.workers.model"),
    )

    def named(page: str, heading: str) -> set[str]:
        text = (ROOT / "docs/reference" / page).read_text().partition(heading)[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (`.+?`) \|", text, re.MULTILINE)
        return {name for row in rows for name in re.findall("`(.+?)`", row)}

    assert named("flow-states.md", "## Workflow states") == set(states.FlowState)
    assert named("flow-states.md", "## Task states") == set(states.StepState) - {"RETRYING"}
    assert named("worker-states.md", "# Worker states") == set(model.Status)
    text = (ROOT / "docs/reference/flow-states.md").read_text().partition("## Engine phases")[2]
    # An engine announces GAME_OVER to hooks, but `Run.states` does not yield it.
    assert set(re.findall("`([A-Z_]+)`", text)) == set(states.EngineState) - {"UNDEFINED", "GAME_OVER"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the pages once per session. The xdist workers share the result."""
    pytest.importorskip("sphinx")
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (base / "html.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / "html").exists():
            _build(tmp_path_factory.mktemp("html")).rename(base / "html")
    return base / "html"


def _build(out: Path) -> Path:
    # The navigation of the theme that `make docs` uses takes a third of the time.
    options = ["--fail-on-warning", "--keep-going", "-q", "-b", "html", "-D", "html_theme=basic"]
    # Without garbage collection, the build takes a fifth less CPU time.
    program = "import gc, sys, sphinx.cmd.build as build; gc.disable(); sys.exit(build.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, *options, "docs", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.timeout(300)
def test_the_pages_build_without_a_warning(built: Path) -> None:
    assert (built / "index.html").exists()


@pytest.fixture(scope="module")
def entries(built: Path) -> list[tuple[str, int, str]]:
    """Return each object in the reference: its page, its ``id`` and its description."""
    found: list[tuple[str, int, str]] = []
    for page in (built / "reference").glob("*.html"):
        parts = re.split(r'(?=<dl class="py (?:class|exception|function|data))', page.read_text(encoding="utf-8"))
        for part in parts[1:]:
            [path, *_] = re.findall(r'id="(lifecycle\.[\w.]+)"', part)
            module, _, name = path.rpartition(".")
            thing = id(getattr(importlib.import_module(module), name))
            found.append((page.stem, thing, re.sub(r"<[^>]+>", "", part)))
    return found


@pytest.fixture(scope="module")
def described(entries: list[tuple[str, int, str]]) -> dict[int, str]:
    """Return the reference's description of each object by ``id``, because two packages may use the same name."""
    found: dict[int, str] = {}
    for _, thing, text in entries:
        found[thing] = found.get(thing, "") + text
    return found


@pytest.mark.timeout(300)
def test_every_public_name_is_described_once(entries: list[tuple[str, int, str]]) -> None:
    pages: dict[int, list[str]] = {}
    for page, thing, _ in entries:
        pages.setdefault(thing, []).append(page)
    found = {
        name: pages.get(id(getattr(importlib.import_module(f"lifecycle.{of}"), name))) for of, name in public_names()
    }
    assert {name: where for name, where in found.items() if where is None or len(where) > 1} == {}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(described: dict[int, str], package: str) -> None:
    module = importlib.import_module(f"lifecycle.{package}")
    assert [name for name in module.__all__ if id(getattr(module, name)) not in described] == []


#: Names that packages use internally. They are not public, but have no underscore because several packages use them.
INTERNAL = {
    "Auxiliary": "auxiliary",
    "Delivery": "announce another decline drop end finish keep match merge_into pass_on refuse route start",
    "Failure": "decode encode",
    "FakeSignals": "can_take check_every deliver end_process handles_sigterm has_source has_terminal is_ignored retake"
    " send_sigterm take",
    "InputSource": "is_terminal take",
    "Job": "claimed row see",
    "Lifetime": "all_failures all_routers as_current begin begin_for_signal call_soon captor conclude in_loop lifetime"
    " next_step own own_component own_delay own_flush own_router own_worker remove routers_for routes_changed"
    " stop_awaited task_starts up worker_failed",
    "MemoryStore": "cancel fence discard",
    "JobQueue": "acquit give_back begin next wait park",
    "Presence": "close is_gone lives",
    "ParameterizedForEach": "rebind",
    "Part": "changed",
    "Pattern": "rank search",
    "PoolWorker": "cancel_timers check_in check_out dump_stacks end_error healthy is_up kill_orphaned lost_during"
    " lost_error mark_healthy mark_pending mark_unhealthy request_stop",
    "PostgresStore": "holds_flows",
    "PromptSource": "is_terminal",
    "Route": "busy call concurrency counts current debouncer forget_lane has_events holds included is_full lane"
    " middleware open origin prepare removed successor take",
    "Subscription": "offer",
    "Run": "abandon adopt be_followed close given given_back interrupted parked proceed refused use wait_at_rest"
    " wait_over wait_restarted wake",
    "SignalSource": "close",
    "Source": "gate",
    "Task": "copy function kind priority retry",
    "Workflow": "bind call check fn name pattern signature",
    "VirtualLoop": "run_in_executor shutdown_default_executor",
}


def members(of: type) -> set[str]:
    ours = [base for base in of.__mro__ if base.__module__.startswith("lifecycle")]
    named = {name for base in ours for name in (*vars(base), *getattr(base, "__annotations__", ()))}
    kept = {name for base in ours for name in INTERNAL.get(base.__name__, "").split()}
    # The table of topics contains the topics of each event class.
    return {name for name in named - kept - {"topics"} if not name.startswith("_")}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("package", PACKAGES)
def test_every_member_of_a_public_class_is_in_the_reference(described: dict[int, str], package: str) -> None:
    """The members may be documented in the class, its base classes, or the Protocols that it implements."""
    module = importlib.import_module(f"lifecycle.{package}")
    everything = [getattr(importlib.import_module(f"lifecycle.{each}"), name) for each, name in public_names()]
    protocols = [each for each in everything if getattr(each, "_is_protocol", False)]
    for name in module.__all__:
        of = getattr(module, name)
        if inspect.isclass(of):
            likes = [each for each in protocols if members(each) <= members(of)]
            text = " ".join(described.get(id(each), "") for each in (*of.__mro__, *likes))
            assert sorted(members(of) - set(re.findall(r"\w+", text))) == [], name


def public_names() -> list[tuple[str, str]]:
    return [(package, name) for package in PACKAGES for name in importlib.import_module(f"lifecycle.{package}").__all__]


def test_the_top_package_exports_only_names_of_its_packages() -> None:
    exported = importlib.import_module("lifecycle").__all__
    assert set(exported) - {name for _, name in public_names()} - set(PACKAGES) <= {"events", "hooks", "__version__"}


def test_every_hook_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/hooks.md").read_text()
    hooks = importlib.import_module("lifecycle.hooks")
    assert not [name for name in hooks.__all__ if name != "Hook" and f"`{name}`" not in page]
