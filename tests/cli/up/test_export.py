"""`lifecycle export systemd` writes unit files for the processes of `lifecycle up`."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli import main

if TYPE_CHECKING:
    from pathlib import Path

TABLES = r"""
[processes.db]
command = "exec postgres -D data"
ready = "port:5432"
stop-signal = "INT"
restart = "always"
max-restarts = 5
probe = "port:5432"

[processes.seed]
command = ["python", "seed.py", "a\"b\\c $HOME 100% é", ";", "line\nbreak\u0007"]
restart = "never"
after = ["db"]

[processes.web]
command = "echo \"$PORT\" 50%"
depends-on = { seed = "ended", db = "started" }
env = { A = "q\"$x%\\ y", PORT = 8 }
success-exit-codes = [3, 143]
stop-timeout = 20
replicas = 2

[processes.bus]
command = ["/opt/bus", "--port", "1"]
ready = "notify"
user = "bus"
restart = "on-failure"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "a b%c"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setenv("PATH", "/srv/bin:/usr/bin")
    monkeypatch.delenv("PORT", raising=False)
    return directory


def unit(path: Path) -> dict[str, list[str]]:
    """Return the values of each setting."""
    found: dict[str, list[str]] = {}
    for key, equals, value in (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines()):
        if equals:
            found.setdefault(key, []).append(value)
    return found


def test_a_target_starts_a_service_for_each_process(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "lifecycle.toml").write_text(TABLES, encoding="utf-8")
    (here / ".env").write_text("SECRET='p$w\"d`\\\\'\nA=file\n")
    assert main(["export", "systemd", "units"]) == 0
    names = ["bus.service", "db.service", "seed.service", "web.1.service", "web.2.service"]
    said = capsys.readouterr()
    units = here / "units"
    assert sorted(said.out.splitlines()) == sorted(
        str(units / f"a_b_c{name}")
        for name in (
            ".target",
            *(f"-{each}" for each in names),
            *(f"-{each.replace('service', 'env')}" for each in names),
        )
    )
    assert "db: systemd does not wait until it is ready; use ready = 'notify'" in said.err
    assert "db: probe is left out" in said.err
    assert unit(units / "a_b_c.target")["WantedBy"] == ["multi-user.target"]
    assert sorted(unit(units / "a_b_c.target")["Wants"][0].split()) == [f"a_b_c-{name}" for name in names]

    db, seed, web, bus = (unit(units / f"a_b_c-{name}.service") for name in ("db", "seed", "web.2", "bus"))
    assert (db["ExecStart"], db["Restart"], db["KillSignal"]) == (
        ['/bin/sh "-c" "exec postgres -D data"'],
        ["always"],
        ["SIGINT"],
    )
    assert (db["StartLimitIntervalSec"], db["StartLimitBurst"]) == (["60"], ["6"])
    assert (seed["Type"], seed["Requires"], seed["After"]) == (["oneshot"], ["a_b_c-db.service"], ["a_b_c-db.service"])
    assert (web["Wants"], web["Requires"]) == (["a_b_c-seed.service"], ["a_b_c-db.service"])
    assert (web["SuccessExitStatus"], web["TimeoutStopSec"], web["KillMode"]) == (["3 143 SIGTERM"], ["20"], ["mixed"])
    assert (bus["Type"], bus["User"], bus["ExecStart"]) == (["notify"], ["bus"], ['/opt/bus "--port" "1"'])


def test_special_characters_are_escaped_and_secrets_are_in_a_private_file(here: Path) -> None:
    (here / "lifecycle.toml").write_text(TABLES, encoding="utf-8")
    (here / ".env").write_text("SECRET='p$w\"d`\\\\'\nA=file\n")
    assert main(["export", "systemd"]) == 0
    seed, web = (unit(here / f"a_b_c-{name}.service") for name in ("seed", "web.1"))
    assert seed["ExecStart"] == [r'/usr/bin/env "python" "seed.py" "a\"b\\c $$HOME 100%% é" ";" "line\nbreak\x07"']
    assert web["ExecStart"] == [r'/bin/sh "-c" "echo \"$$PORT\" 50%%"']
    assert web["WorkingDirectory"] == [str(here).replace("%", "%%")]
    assert web["Environment"] == ['"PATH=/srv/bin:/usr/bin"', '"PYTHONUNBUFFERED=1"']
    assert web["EnvironmentFile"] == [str(here / "a_b_c-web.1.env").replace("%", "%%")]
    secret = here / "a_b_c-web.1.env"
    assert secret.read_text().splitlines()[1:] == [r'SECRET="p\$w\"d\`\\"', r'A="q\"\$x%\\ y"', 'PORT="8"']
    assert secret.stat().st_mode & 0o777 == 0o600
    assert "p$w" not in (here / "a_b_c-web.1.service").read_text()
    if (verify := shutil.which("systemd-analyze", path="/usr/bin:/bin")) is not None:
        text = (here / "a_b_c-bus.service").read_text().replace("/opt/bus", "/bin/true").replace("User=bus\n", "")
        (here / "a_b_c-bus.service").write_text(text)
        files = sorted(map(str, here.glob("*.service")))
        done = subprocess.run([verify, "verify", "--man=no", *files], capture_output=True, text=True, check=False)
        ours = [line for line in done.stderr.splitlines() if "a_b_c" in line]
        assert ours == []


def check_secret_stays_private(here: Path, capsys: pytest.CaptureFixture[str], name: str) -> dict[str, list[str]]:
    """Export the processes, and check that only the private file contains the secret. Returns the unit."""
    assert main(["up", "-f", name, "--dry-run"]) == 0
    assert main(["export", "systemd", "-f", name, "out"]) == 0
    said = capsys.readouterr()
    assert "s3cr3t" not in said.out + said.err
    readable = [path for path in (here / "out").iterdir() if "s3cr3t" in path.read_text()]
    assert [(path.name, path.stat().st_mode & 0o777) for path in readable] == [("a_b_c-web.env", 0o600)]
    return unit(here / "out" / "a_b_c-web.service")


def test_references_to_variables_do_not_put_secrets_into_units(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / ".env").write_text("PW=s3cr3t$\n")
    (here / "lifecycle.toml").write_text(
        """
        [processes.web]
        command = ["serve", "--pw=${PW}", "$${PW}"]
        env = { URL = "pg://u:${PW}@h" }
        ready = "line:${PW}"
        restart = "always"
        [processes.other]
        command = "true"
        env = { PW = "" }
        after = ["web"]
        """
    )
    web = check_secret_stays_private(here, capsys, "lifecycle.toml")
    assert web["ExecStart"] == ['/usr/bin/env "serve" "${LIFECYCLE_WORD_1}" "${LIFECYCLE_WORD_2}"']
    assert unit(here / "out" / "a_b_c-web.env") == {
        "PW": [r'"s3cr3t\$"'],
        "URL": [r'"pg://u:s3cr3t\$@h"'],
        "LIFECYCLE_WORD_1": [r'"--pw=s3cr3t\$"'],
        "LIFECYCLE_WORD_2": [r'"\${PW}"'],
    }


def test_values_from_files_of_process_compose_do_not_reach_units(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("yaml")
    (here / ".env").write_text("PW=s3cr3t\n")
    (here / "web.env").write_text("DB_PASSWORD=s3cr3t-too\n")
    (here / "pc.yaml").write_text(
        """
        environment: ["GLOBAL=${PW}"]
        processes: { web: { command: "serve --pw ${PW}", env_file: web.env } }
        """
    )
    web = check_secret_stays_private(here, capsys, "pc.yaml")
    assert web["ExecStart"] == ['/usr/bin/env "bash" "-c" "${LIFECYCLE_WORD_2}"']


def test_lines_of_a_procfile_get_ports_and_are_always_restarted(here: Path) -> None:
    (here / "Procfile").write_text("web: serve\nworker: work\n")
    assert main(["export", "systemd", "-m", "worker=2", "-p", "7000", "out"]) == 0
    assert not (here / "out" / "a_b_c-web.service").exists()
    worker = unit(here / "out" / "a_b_c-worker.2.service")
    assert '"PORT=7101"' in worker["Environment"]
    assert worker["Restart"] == ["always"]
    assert "EnvironmentFile" not in worker


def test_files_of_others_are_not_replaced(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "Procfile").write_text("web: serve\n")
    assert main(["export", "systemd"]) == 0
    (here / "Procfile").write_text("web: serve again\n")
    assert main(["export", "systemd"]) == 0
    assert "serve again" in (here / "a_b_c-web.service").read_text()
    (here / "a_b_c-web.service").write_text("[Unit]\n")
    (here / "a_b_c.target").unlink()
    assert main(["export", "systemd"]) == 2
    assert "a_b_c-web.service was not written by lifecycle export; remove it" in capsys.readouterr().err
    assert not (here / "a_b_c.target").exists()


@pytest.mark.parametrize(
    ("directory", "message"),
    [("file", "file: File exists; use another directory"), ("units", "a_b_c.target: Is a directory; use another")],
)
def test_wrong_directory_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], directory: str, message: str
) -> None:
    (here / "Procfile").write_text("web: serve\n")
    (here / "file").touch()
    (here / "units" / "a_b_c.target").mkdir(parents=True)
    assert main(["export", "systemd", directory]) == 2
    said = capsys.readouterr()
    assert (said.out, message in said.err) == ("", True)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            r'user = "root\nExecStartPre=/bin/true"',
            r"user 'root\nExecStartPre=/bin/true' cannot be used in a unit; use",
        ),
        (r'user = "root\\"', "cannot be used in a unit"),
        ('env-file = "own.env"', r"the variable 'A\nB' cannot be used in a unit"),
    ],
)
def test_a_value_cannot_add_a_line_to_a_unit(
    here: Path, capsys: pytest.CaptureFixture[str], keys: str, message: str
) -> None:
    (here / "own.env").write_text("'A\nB'=1\n")
    (here / "lifecycle.toml").write_text(f'[processes.web]\ncommand = "serve"\n{keys}\n')
    assert main(["export", "systemd"]) == 3
    assert message in capsys.readouterr().err
    assert not [*here.glob("*.service")]


def test_services_only_wait_for_exits_that_dependents_need(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "lifecycle.toml").write_text(
        """
        [processes.db]
        command = "postgres"
        restart = "never"
        stop-timeout = 0
        [processes.job]
        command = "work"
        restart = "never"
        [processes.seed]
        command = "seed"
        restart = "on-failure"
        [processes.web]
        command = "serve"
        restart = "always"
        stop-timeout = 1234567
        backoff = 0.25
        depends-on = { db = "started", job = "completed", seed = "ended" }
        """
    )
    assert main(["export", "systemd"]) == 0
    types = {name: unit(here / f"a_b_c-{name}.service")["Type"] for name in ("db", "job", "seed")}
    assert types == {"db": ["exec"], "job": ["oneshot"], "seed": ["exec"]}
    said = capsys.readouterr().err
    assert "web: systemd does not wait until seed is ended; set restart = 'never' for seed" in said
    assert "until job" not in said
    web = unit(here / "a_b_c-web.service")
    assert (web["TimeoutStopSec"], web["RestartSec"]) == (["1234567"], ["0.25"])
    assert unit(here / "a_b_c-db.service")["TimeoutStopSec"] == ["1ms"]  # 0 would mean without a limit
