"""`lifecycle up` reads process-compose files."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli import main
from lifecycle.cli.output import ConfigError
from lifecycle.cli.up.processes import find_file, read_file

if TYPE_CHECKING:
    from pathlib import Path

    from lifecycle.cli.up.processes import Process

pytest.importorskip("yaml")


def read(directory: Path, text: str, *, warnings: list[str] | None = None) -> dict[str, Process]:
    file = directory / "process-compose.yaml"
    file.write_text(text)
    warn = pytest.fail if warnings is None else warnings.append
    return {each.name: each for each in read_file(find_file(directory), directory / ".env", warn=warn)}


def test_keys_that_mean_the_same_are_translated(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "web.env").write_text("FROM=file\nOVER=file\n")
    found = read(
        tmp_path,
        """
        version: "0.5"
        environment: [ALL=1, OVER=all]
        shell: { shell_command: sh }
        processes:
          db:
            command: postgres -D data
            readiness_probe: { http_get: { port: 8008, path: /ready }, failure_threshold: 4, period_seconds: 5 }
            availability: { restart: always, backoff_seconds: 2, max_restarts: 7 }
            shutdown: { signal: 2, timeout_seconds: 20 }
          seed:
            entrypoint: [python, seed.py]
            availability: { restart: no }
          cache:
            command: redis-server
            ready_log_line: Ready (to accept).
            replicas: 2
            disabled: true
          web:
            description: the application
            command: python app.py
            working_dir: src
            env_file: web.env
            environment: ["OVER=web", "LIST=a=b"]
            depends_on:
              db: { condition: process_healthy }
              cache: { condition: process_log_ready }
              seed: { condition: process_completed_successfully }
              log: { condition: process_completed }
            success_exit_codes: [143]
          log: { command: "true", x-team: core }
        """,
    )
    db, seed, cache, web = (found[name] for name in ("db", "seed", "cache", "web"))
    assert (db.command, seed.command) == (("sh", "-c", "postgres -D data"), ("python", "seed.py"))
    assert (db.ready, db.probe, db.start_timeout) == ("http://127.0.0.1:8008/ready", db.ready, 20)
    assert (db.probe_interval, db.probe_timeout, db.probe_failures, db.restart_unhealthy) == (5, 1, 4, True)
    assert (db.restart, db.delays.delay(5, chance=lambda: 0), db.delays.max_restarts) == ("always", 2, 7)
    assert (db.stop_signal, db.stop_timeout) == (signal.SIGINT, 20)
    assert (seed.restart, seed.essential) == ("never", False)
    assert (cache.ready, cache.replicas, cache.disabled) == (r"line:Ready\ \(to\ accept\)\.", 2, True)
    assert (web.cwd, web.success_exit_codes) == (tmp_path / "src", (143,))
    assert web.env == {"PC_PROC_NAME": "web", "ALL": "1", "FROM": "file", "OVER": "web", "LIST": "a=b"}
    assert web.needs == {"db": "healthy", "cache": "healthy", "seed": "completed", "log": "ended"}


def test_commands_check_health_in_the_shell(tmp_path: Path) -> None:
    warnings: list[str] = []
    found = read(
        tmp_path,
        """
        processes:
          web:
            command: serve
            readiness_probe: { exec: { command: test -e $$X | cat, working_dir: a b } }
            liveness_probe: { http_get: { host: localhost } }
        """,
        warnings=warnings,
    )
    assert found["web"].probe == """cmd:bash -c 'cd '"'"'a b'"'"' && test -e $X | cat'"""
    assert not found["web"].is_job
    assert warnings == ["processes.web.liveness_probe is ignored, because readiness_probe is a command"]


@pytest.mark.parametrize(
    ("availability", "stops"),
    [
        ("{ restart: exit_on_failure }", [False, True]),
        ("{ exit_on_end: true }", [True, True]),
        ("{ restart: on_failure }", [False, False]),
    ],
)
def test_ends_that_stop_all_processes(tmp_path: Path, availability: str, stops: list[bool]) -> None:
    found = read(tmp_path, f"processes: {{ web: {{ command: serve, availability: {availability} }} }}")
    assert [found["web"].stops_others(failed=failed) for failed in (False, True)] == stops


def test_variables_are_replaced_and_the_shell_replaces_unknown_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIR", "src")
    monkeypatch.setenv("N", "2")
    monkeypatch.delenv("UNSET", raising=False)
    (tmp_path / "src").mkdir()
    (tmp_path / ".env").write_text("WHO=you")
    text = """
        processes:
          web:
            command: echo $WHO $UNSET ${UNSET:-x} $$WHO
            working_dir: ${DIR}
            environment: ["A=$WHO ${UNSET:-there} $${WHO}"]
            replicas: $N
    """
    web = read(tmp_path, text)["web"]
    assert web.argv[-1] == "echo you $UNSET ${UNSET:-x} $WHO"
    assert (web.cwd, web.env["A"], web.replicas) == (tmp_path / "src", "you there ${WHO}", 2)
    web = read(tmp_path, "disable_env_expansion: true\nprocesses: { web: { command: 'echo $$ $WHO' } }")["web"]
    assert web.argv[-1] == "echo $$ $WHO"


@pytest.mark.parametrize(
    ("process", "message"),
    [
        ("command: x, is_daemon: true", "processes.web.is_daemon is not supported; run the program in the foreground"),
        ("command: x, schedule: { cron: '* * * * *' }", "processes.web.schedule is not supported; start the program"),
        (
            "command: x, shutdown: { command: y }",
            "processes.web.shutdown.command is not supported; use shutdown.signal",
        ),
        ("extends: other", "processes.web.extends is not supported; write the keys into this file"),
        ("command: x, enviroment: []", r"processes.web.enviroment is not known; did you mean environment\?"),
        ("command: x, environment: { A: 1 }", "processes.web.environment is not a list of strings such as 'KEY=VALUE'"),
        ("command: x, environment: ['A=$NOT_SET']", "processes.web.environment: .NOT_SET is not set; set NOT_SET, or"),
        ("command: x, availability: { restart: often }", "availability.restart: 'often' is not known; known: always"),
        ("command: x, replicas: many", "processes.web.replicas: 'many' is not a whole number"),
        ("command: x, disabled: 3", "processes.web.disabled: 3 is not a boolean"),
        ("command: x, depends_on: { db: {} }", "web starts after 'db', which does not exist"),
        ("command: x, depends_on: { web: { condition: up } }", "web.condition: 'up' is not known; known: process_"),
        ("command: x, working_dir: nowhere", 'processes.web: cwd = "nowhere": .* is not a directory'),
        ("", "processes.web has no command; add one"),
        ("comand: x", r"processes.web.comand is not known; did you mean command\?"),
    ],
)
def test_wrong_or_unsupported_keys_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: str, message: str
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, f"processes: {{ web: {{ {process} }} }}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("processes: [", "process-compose.yaml: cannot be read: while parsing"),
        ("a: &b [*b]", "process-compose.yaml: is nested too deeply, or contains itself"),
        (
            "x0: &x0 [a]\n" + "".join(f"x{n + 1}: &x{n + 1} [{', '.join([f'*x{n}'] * 9)}]\n" for n in range(9)),
            r"its aliases make up \d{9,} values, and the limit is 100000; remove some aliases",
        ),
        (
            "x0: &x0 {a: 1, b: 2}\n"
            + "".join(f"x{n + 1}: &x{n + 1} {{<<: [{', '.join([f'*x{n}'] * 9)}]}}\n" for n in range(9)),
            "cannot be read: << merges too many keys; remove some aliases",
        ),
        ("[" * 3000, "process-compose.yaml: is nested too deeply, or contains itself"),
        ("processes: !!bool maybe", "process-compose.yaml: cannot be read: not a valid bool .* line 1, column 12"),
        ("processes: { web: { command: x }, web: {} }", "the key web occurs twice; remove one of them .* line 1"),
        ("processes: { on: { command: x } }", "the key on is a boolean; write it in quotes .* line 1, column 14"),
        ("- web", "process-compose.yaml: the file is not a mapping"),
        ("version: '1'", "defines no processes; write processes: NAME: command: COMMAND"),
        ("vars: { A: 1 }\nprocesses: { web: { command: x } }", "vars is not supported; write the values into"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_merged_mappings_can_be_overridden(tmp_path: Path) -> None:
    text = """
        x-base: &base { command: base, replicas: 2 }
        x-more: &more { <<: *base, replicas: 3 }
        processes: { web: { <<: *more, command: web }, "on": { <<: *base } }
    """
    found = read(tmp_path, text)
    assert [(each.argv[-1], each.replicas) for each in found.values()] == [("web", 3), ("base", 2)]


def test_ignored_keys_are_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pc.yml").write_text("processes: { web: { command: serve, log_location: web.log, is_daemon: false } }")
    assert main(["up", "-f", "pc.yml", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("web: bash -c serve\n")
    assert said.err.count("processes.web.log_location is ignored; use --log-dir") == 1


def test_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"YAML needs PyYAML; install the extra 'yaml'"):
        read(tmp_path, "processes: {}")
