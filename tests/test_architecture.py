"""The package's structure: imports between layers, the cost of an import, and the exports of each package."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import grimp
import pytest

import lifecycle

ROOT = Path(lifecycle.__file__).parent
MODULES = sorted(
    {"lifecycle", *(each.name for each in pkgutil.walk_packages([str(ROOT)], "lifecycle."))} - {"lifecycle.__main__"}
)
STUBS = sorted(ROOT.rglob("__init__.pyi"))
HEAVY = {
    "aiohttp",
    "nats",
    "opentelemetry",
    "prometheus_client",
    "prompt_toolkit",
    "psycopg",
    "rich",
    "watchfiles",
    "yaml",
}

#: Imports each module alone, and prints the modules that cannot be imported.
ALONE = """
import importlib, json, sys, traceback
failed = {}
for name in json.load(sys.stdin):
    for each in [each for each in sys.modules if each.split(".")[0] == "lifecycle"]:
        del sys.modules[each]
    try:
        importlib.import_module(name)
    except Exception:
        failed[name] = traceback.format_exc()
print(json.dumps(failed))
"""

LOADED = """
import json, sys
{}
print(json.dumps(sorted(sys.modules)))
"""


def python(program: str, given: str = "") -> Any:
    done = subprocess.run(
        [sys.executable, "-c", program], input=given, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def loaded_by(statement: str) -> set[str]:
    return {name.split(".")[0] for name in python(LOADED.format(statement))}


def test_packages_import_only_what_their_layer_allows() -> None:
    """The linter runs in a separate process, because it reconfigures logging and disables existing loggers."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    checked = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout


#: The import circles that are left. Remove a line when its circle is gone, and add none.
CIRCLES = {
    ("cli.app", "cli.completions"),
    ("cli.up.process_compose", "cli.up.processes"),
    ("cli.up.screen", "cli.up.starts"),
    ("flows.queue", "flows.worker"),
    ("observe.eventlog.files", "observe.eventlog.recorder"),
    ("workers.pool.child.executors", "workers.pool.child.loop_executor", "workers.pool.child.runtime"),
}


def test_no_modules_import_each_other_except_those_listed() -> None:
    """Imports for type checkers are included, because readers follow them."""
    graph = grimp.build_graph("lifecycle", cache_dir=None)
    below = {name: graph.find_upstream_modules(name) for name in graph.modules}
    circles = {frozenset({name, *(each for each in below[name] if name in below[each])}) for name in below}
    assert {
        tuple(sorted(name.removeprefix("lifecycle.") for name in each)) for each in circles if len(each) > 1
    } == CIRCLES


@pytest.mark.parametrize("share", range(8))
def test_every_module_can_be_imported_alone(share: int) -> None:
    """The modules are split into shares to keep each test short."""
    assert python(ALONE, json.dumps(MODULES[share::8])) == {}


def test_files_named_in_architecture_md_exist() -> None:
    page = (ROOT.parent / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", page))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).is_file() and not (ROOT.parent / path).is_file()] == []


def test_methods_named_in_architecture_md_exist() -> None:
    page = (ROOT.parent / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`(_?[A-Z]\w+)\.(\w+)`", page))
    words: dict[str, set[str]] = {}
    for path in (*ROOT.rglob("*.py"), *ROOT.glob("observe/page/*.js")):
        text = path.read_text()
        for name in re.findall(r"^(?:export )?class (\w+)", text, re.MULTILINE):
            words.setdefault(name, set()).update(re.findall(r"\w+", text))
    assert [f"{name}.{part}" for name, part in sorted(named) if part not in words.get(name, ())] == []


def test_import_lifecycle_alone_loads_nothing_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIFECYCLE_LOOP", raising=False)  # it imports asyncio
    assert not loaded_by("import lifecycle") & {"asyncio", *HEAVY}


def test_only_the_pool_and_the_console_can_run_code_from_data() -> None:
    """`pickle`, `marshal` and `shelve` run code while they decode, and `eval` and `exec` run text."""
    decoders, calls = {"pickle", "marshal", "shelve", "dill"}, {"eval", "exec"}

    def can_run_code(node: ast.AST) -> bool:
        if isinstance(node, ast.Import):
            return bool({each.name for each in node.names} & decoders)
        if isinstance(node, ast.ImportFrom):
            return node.module in decoders
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in calls

    found = {path for path in ROOT.rglob("*.py") if any(map(can_run_code, ast.walk(ast.parse(path.read_text()))))}
    assert {str(path.relative_to(ROOT)) for path in found} == {
        "observe/python_console.py",
        "workers/pool/protocol.py",
    }


def test_tasks_are_created_by_start_task() -> None:
    """With `asyncio.eager_task_factory`, other tasks would run before their owner has stored them.

    `run` creates its first task before the loop runs, and task groups store theirs.
    """
    creates = re.compile(r"(asyncio|loop(\(\))?)\.create_task\(")
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if creates.search(path.read_text())}
    assert found == {"_async.py", "runtime/programs.py"}


def test_router_and_run_load_no_records_and_no_optional_parts() -> None:
    """Creating a dataclass is slow, so records are loaded when a program first uses them."""
    parts = {
        f"lifecycle.{name}"
        for name in ("events.records", "control.records", "control.merging", "runtime.health", "runtime.records")
    }
    assert parts <= set(MODULES)
    assert not set(python(LOADED.format("from lifecycle import Router, run"))) & {*parts, "termios"}


@pytest.mark.parametrize(
    "statement",
    [
        "from lifecycle import Router, run",
        "import lifecycle.control, lifecycle.runtime, lifecycle.sources, lifecycle.handlers, lifecycle.testing",
        "from lifecycle import FileWatchSource, WebhookSource, PromptSource, new_interactive_router, ProcessWorker",
    ],
)
def test_common_imports_load_no_optional_library(statement: str) -> None:
    assert not loaded_by(statement) & HEAVY


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_and_complete(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, "the module has no docstring"
    names = list(module.__all__)
    # The names in a lazy table are sorted when the module is imported, not by ruff.
    assert names in (sorted(set(names), key=_as_ruff_sorts), sorted(set(names)))
    assert [each for each in names if not hasattr(module, each)] == []


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    """Return a sort key that puts CONSTANTS first, then Classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_imported_names_are_exported_by_their_module() -> None:
    taken = {
        (str(node.module), alias.name)
        for name in MODULES
        for node in ast.walk(ast.parse(Path(str(importlib.import_module(name).__file__)).read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lifecycle")
        for alias in node.names
    }
    assert [
        f"{name} from {module}"
        for module, name in sorted(taken)
        # Names that exist only for type checkers cannot be exported at run time.
        if f"{module}.{name}" not in MODULES
        and hasattr(importlib.import_module(module), name)
        and name not in importlib.import_module(module).__all__
    ] == []
    # An import from the top level would hide the dependency from import-linter.
    assert [name for module, name in taken if module == "lifecycle" and f"lifecycle.{name}" not in MODULES] == []


@pytest.mark.parametrize("name", [name for name in MODULES if "." not in name.removeprefix("lifecycle.")])
def test_packages_list_their_exports_in_dir(name: str) -> None:
    module = importlib.import_module(name)
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


def test_no_module_has_the_name_of_something_that_its_package_exports() -> None:
    hidden = [
        name
        for name in MODULES
        if "." in name and name.rpartition(".")[2] in importlib.import_module(name.rpartition(".")[0]).__all__
    ]
    assert hidden == []


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: str(stub.parent.relative_to(ROOT)))
def test_stubs_and_lazy_packages_export_the_same_names(stub: Path) -> None:
    package = ".".join(("lifecycle", *stub.parent.relative_to(ROOT).parts))
    lines = [line for line in ast.parse(stub.read_text()).body if isinstance(line, ast.ImportFrom)]
    stubbed = {str(alias.asname): str(line.module) for line in lines for alias in line.names}
    package_module = importlib.import_module(package)
    assert {name for name in stubbed if f"{package}.{name}" not in MODULES} == set(package_module.__all__)
    for name, module in stubbed.items():
        assert getattr(package_module, name) is getattr(importlib.import_module(module), name)
    # import-linter does not read stubs, which may import only from their own package and from the core.
    assert {module for module in stubbed.values() if not f"{module}.".startswith(f"{package}.")} <= {
        "lifecycle.backoff",
        "lifecycle.errors",
        "lifecycle.events",
        "lifecycle.events.sources",
    }


def test_help_of_lifecycle_shows_forty_names_in_their_packages() -> None:
    shown: dict[str, str] = {}
    for line in str(lifecycle.__doc__).partition("The packages")[2].splitlines():
        if named := re.match(r"(lifecycle\.[\w.]+)  +[a-zA-Z]", line):
            room = named[1]
            assert room in MODULES
        elif names := re.match(r" {4}(\w+(?:, \w+)*)", line):
            shown |= dict.fromkeys(names[1].split(", "), room)
    assert len(shown) == 40
    assert set(shown) <= set(importlib.import_module("lifecycle").__all__)
    assert [name for name, room in shown.items() if name not in importlib.import_module(room).__all__] == []
