"""The processes that `lifecycle up` selects by name, number of copies and port."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli import main
from lifecycle.cli.app import parse
from lifecycle.cli.output import UsageError
from lifecycle.cli.up.processes import Process, environment, in_order, parse_procfile, read_file
from lifecycle.cli.up.selection import selected, up_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE = Path("/srv/Procfile")
TABLES = """
    [processes]
    db = "x"
    cache = { command = "x", disabled = true }
    api = { command = "x", depends-on = { db = "started" }, after = "cache" }
    web = { command = "x", after = ["api"] }
    mail = "x"
"""


@pytest.fixture
def processes(tmp_path: Path) -> tuple[Process, ...]:
    (tmp_path / "lifecycle.toml").write_text(TABLES)
    return read_file(tmp_path / "lifecycle.toml")


def select(processes: Sequence[Process], *words: str) -> tuple[Process, ...]:
    return selected(processes, up_settings(vars(parse(["up", *words]))), FILE).copies


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], ["api", "db", "mail", "web"]),
        (["web"], ["api", "db", "web"]),
        (["web", "--no-deps"], ["web"]),
        (["web", "cache"], ["api", "cache", "db", "web"]),
        (["-c", "mail=0,web=2", "-c", "db=3"], ["api", "db.1", "db.2", "db.3", "web.1", "web.2"]),
        (["mail", "-c", "web=2"], ["mail"]),
    ],
)
def test_names_and_copies_select_processes(processes: Sequence[Process], words: list[str], names: list[str]) -> None:
    assert sorted(each.name for each in select(processes, *words)) == names


def test_dependent_process_waits_for_all_copies(processes: Sequence[Process]) -> None:
    found = {each.name: each.needs for each in select(processes, "-c", "api=2,db=2")}
    assert found["api.2"] == {"db.1": "started", "db.2": "started"}
    assert found["web"] == {"api.1": "up", "api.2": "up"}


def test_copies_have_ports_in_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "7000")
    found = select(parse_procfile("web: x\nworker: x", FILE), "-c", "web=2", "-p", "8000")
    ports = {each.name: environment(each, tmp_path / ".env")["PORT"] for each in found}
    assert ports == {"web.1": "8000", "web.2": "8001", "worker": "8100"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["wbe"], r"/srv/Procfile has no process 'wbe'; did you mean web\?"),
        (["-c", "zzz=1"], "no process 'zzz'; known: api, cache, db, mail, web"),
        (["web=3"], "'web=3' is not the name of a process; to run several copies, use -c web=3"),
        (["-c", "mail=0", "mail"], "nothing to run: all processes in .* are disabled or have 0 copies"),
        (["-p", "80"], "-p 80 has no effect on tables; set env = { PORT = 80 } in a table"),
    ],
)
def test_wrong_selection_is_refused(processes: Sequence[Process], words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        select(processes, *words)


def test_dry_run_prints_what_would_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (tmp_path / "test.env").write_text("SECRET=1")
    (tmp_path / "lifecycle.toml").write_text(
        "processes.web = { command = ['touch', 'a b'], depends-on = { db = 'healthy' } }\n"
        "processes.db = { command = 'touch x', probe = 'port:1', env = { A = 'b' } }\n"
    )
    assert main(["up", "--dry-run", "-e", "test.env"]) == 0
    assert capsys.readouterr().out == (
        f"db: touch x\n  directory: {tmp_path}\n  variables: A, PYTHONUNBUFFERED, SECRET\n"
        f"web: touch 'a b'\n  directory: {tmp_path}\n  variables: PYTHONUNBUFFERED, SECRET\n  after: db (healthy)\n"
    )
    assert not (tmp_path / "x").exists()
    assert main(["up", "--dry-run", "-e", "nope.env"]) == 2
    assert "--env-file nope.env: no such file" in capsys.readouterr().err


def test_wrong_number_of_copies_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["up", "-c", "web"])
    assert "'web': use NAME=N, such as web=2,worker=3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["-c", "all=0,web=2"], ["web.1", "web.2"]),
        (["-c", "all=2", "-c", "api=1,db=0,mail=0"], ["api", "web.1", "web.2"]),
        (["-m", "web=2"], ["web.1", "web.2"]),
        (["-m", "web=2,all=1"], ["api", "db", "mail", "web.1", "web.2"]),
        (["-m", "mail=1", "-m", "web=1"], ["mail", "web"]),
    ],
)
def test_all_sets_the_number_of_the_other_processes(
    processes: Sequence[Process], words: list[str], names: list[str]
) -> None:
    assert sorted(each.name for each in select(processes, *words)) == names


def test_scaled_processes_keep_the_names_and_ports_of_copies_that_remain() -> None:
    settings = up_settings(vars(parse(["up", "-c", "worker=0", "-p", "8000"])))
    formation = selected(in_order(parse_procfile("web: x\nworker: x", FILE), FILE), settings, FILE)
    formation.scale("web", 3)
    formation.scale("worker", 2)
    assert [(each.name, each.env["PORT"]) for each in formation.copies] == [
        *(("web", "8000"), ("web.2", "8001"), ("web.3", "8002")),
        *(("worker.1", "8100"), ("worker.2", "8101")),
    ]
    formation.scale("worker", 1)
    formation.scale("web", 0)
    assert [each.name for each in formation.copies] == ["worker.1"]
    assert formation.numbers() == {"web": 0, "worker": 1}


def test_dependents_follow_the_copies_of_a_scaled_process(processes: Sequence[Process]) -> None:
    formation = selected(processes, up_settings(vars(parse(["up"]))), FILE)
    formation.scale("api", 2)
    [web] = (each for each in formation.copies if each.name == "web")
    assert web.needs == {"api": "up", "api.2": "up"}


@pytest.mark.parametrize(
    ("words", "value", "status", "message"),
    [
        (["--dashboard", "0"], None, 3, "PAGE_TOKEN (--dashboard-token-env) is not set; set it to the secret"),
        (
            ["--dashboard", "0"],
            "two words",
            2,
            "--dashboard-token-env PAGE_TOKEN: the token must be one word of printable",
        ),
        ([], "right", 2, "--dashboard-token-env PAGE_TOKEN has no effect without --dashboard; add --dashboard PORT"),
    ],
)
def test_an_unusable_token_of_the_page_is_an_error_before_a_process_starts(
    words: list[str],
    value: str | None,
    status: int,
    message: str,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("Procfile").write_text("web: touch started\n")
    if value is not None:
        monkeypatch.setenv("PAGE_TOKEN", value)
    assert main(["up", *words, "--dashboard-token-env", "PAGE_TOKEN"]) == status
    assert message in capsys.readouterr().err
    assert not Path("started").exists()
