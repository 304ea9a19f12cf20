"""`lifecycle up` reads its command line, Procfiles, tables and environments, and determines the start order."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli import main
from lifecycle.cli.app import parse
from lifecycle.cli.output import CliError, ConfigError
from lifecycle.cli.up.processes import Process, environment, find_file, parse_procfile, read_file

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path("/srv/Procfile")


def write(file: Path, text: str) -> Path:
    file.write_text(textwrap.dedent(text))
    return file


@pytest.fixture
def tables(tmp_path: Path) -> Callable[[str], tuple[Process, ...]]:
    return lambda text: read_file(write(tmp_path / "lifecycle.toml", text))


class TestProcfile:
    def test_each_line_is_a_shell_command_run_in_the_directory_of_the_file(self) -> None:
        found = parse_procfile("# ours\nweb: python app.py --port $PORT\n\n  my-worker_2 :a: b && c # d \r\n", FILE)
        assert found == (
            Process("web", "python app.py --port $PORT", cwd=Path("/srv"), port=0),
            Process("my-worker_2", "a: b && c # d", cwd=Path("/srv"), port=100),
        )
        assert found[0].argv == ("/bin/sh", "-c", "python app.py --port $PORT")

    def test_end_of_an_essential_process_stops_all(self) -> None:
        [only] = parse_procfile("web: a", FILE)
        assert only.essential
        assert not only.comes_back(failed=True)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("web python app.py", r"/srv/Procfile:1: 'web python app\.py' is not a process; write NAME: COMMAND"),
            ("a: b\n\nweb:", "Procfile:3: 'web:' is not a process"),
            (": b", "Procfile:1: ': b' is not a process"),
            ("web app: b", "Procfile:1: 'web app: b' is not a process"),
            ("web: a\0b", "Procfile:1: .* is not a process"),
            ("web: a\nb: c\nweb: d", "Procfile:3: web is already defined on line 1; choose another name"),
        ],
    )
    def test_wrong_line_is_named(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            parse_procfile(text, FILE)

    @pytest.mark.parametrize("content", [b"web: \xff", b"", b"# nothing\n", None])
    def test_file_without_processes_is_named(self, tmp_path: Path, content: bytes | None) -> None:
        file = tmp_path / "Procfile"
        if content is None:
            file.mkdir()
        else:
            file.write_bytes(content)
        with pytest.raises(ConfigError, match="Procfile"):
            read_file(file)


class TestTables:
    def test_table_can_set_every_key(self, tmp_path: Path, tables: Callable[[str], tuple[Process, ...]]) -> None:
        (tmp_path / "src").mkdir()
        text = """
            [processes]
            db = "postgres -D data"
            [processes.web]
            command = ["python", "app.py"]
            cwd = "src"
            env = { PORT = 8000, NAME = "x" }
            env-file = "web.env"
            ready = "port:8000"
            start-timeout = 5
            after = ["db"]
            restart = "on-failure"
            backoff = 0.5
            max-restarts = 3
            watch = "src"
            stop-signal = "INT"
            stop-timeout = 2
            user = "www-data"
            probe = "cmd:true"
            probe-interval = 3
            restart-unhealthy = true
            first-start = "retry"
            disabled = true
            success-exit-codes = [0, 143]
        """
        assert tables(text) == (
            Process("db", "postgres -D data", cwd=tmp_path),
            Process(
                "web",
                ("python", "app.py"),
                cwd=tmp_path / "src",
                env={"PORT": "8000", "NAME": "x"},
                env_file=tmp_path / "web.env",
                ready="port:8000",
                start_timeout=5.0,
                after=("db",),
                restart="on_failure",
                backoff=0.5,
                max_restarts=3,
                watch=(tmp_path / "src",),
                stop_signal=signal.SIGINT,
                stop_timeout=2.0,
                user="www-data",
                probe="cmd:true",
                probe_interval=3.0,
                restart_unhealthy=True,
                first_start="retry",
                disabled=True,
                success_exit_codes=(0, 143),
            ),
        )

    def test_restarted_or_watched_process_may_end_alone(self, tables: Callable[[str], tuple[Process, ...]]) -> None:
        found = tables("""
            [processes]
            a = "x"
            [processes.b]
            command = "x"
            restart = "never"
            [processes.c]
            command = "x"
            watch = "."
        """)
        assert [each.essential for each in found] == [True, False, False]

    def test_a_key_may_have_the_underscores_that_python_needs(
        self, tables: Callable[[str], tuple[Process, ...]]
    ) -> None:
        found = tables("processes.web = { command = 'x', stop_signal = 'INT', restart = 'on_failure' }")
        assert [(each.stop_signal, each.restart) for each in found] == [(signal.SIGINT, "on_failure")]

    @pytest.mark.parametrize("ready", ["line:listening on .*", "http://127.0.0.1:8000/health", "notify"])
    def test_readiness_condition_is_passed_on(self, tables: Callable[[str], tuple[Process, ...]], ready: str) -> None:
        assert tables(f"processes.web = {{ command = 'x', ready = '{ready}' }}")[0].ready == ready

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("processes.w = { command = 'x', probe = 'line:x' }", r"probe = \"line:x\": give .* .unknown kind.$"),
            ("processes.w = { command = 'x', first-start = 'no' }", 'first-start = "no": expected fail or retry'),
            ("processes.w = { command = 'x', restart-unhealthy = 1 }", "restart-unhealthy = 1 is not a boolean"),
            ("processes.w = { command = 'x', restart-unhealthy = true }", r"restart-unhealthy needs a probe"),
            ('[processes.w\ncommand = "x"', "lifecycle.toml: cannot be read: .*at line 1, column 13"),
            ("processes = 3", "processes = 3 is not a table"),
            ("", "defines no processes; write tables .processes.NAME."),
            ("processes.w = 3", r"command = 3 is neither a string nor a list"),
            ("processes.w = {}", r"has no command"),
            ("processes.w = { comand = 'x' }", r"comand is not known; did you mean command\?"),
            ("processes.w = []", r"command = \[\] is empty"),
            ("processes.w = ' '", "command = .* is empty"),
            ("processes.w = ['a', '']", "command = .* contains an empty string"),
            ("processes.w = ''", 'command = "" contains an empty string; use one such as "a"'),
            ('processes."we b" = "x"', r"\[processes.we b\] is not a valid process name"),
            ("processes.w = { command = 'x', redy = 'port:1' }", r"redy is not known; did you mean ready\?"),
            ("processes.w = { command = 'x', stop_signl = 'INT' }", r"stop_signl .*; did you mean stop-signal\?"),
            ("processes.w = { command = 'x', stop_timeout = 1, stop-timeout = 2 }", "sets the same value as another"),
            ("processes.w = { command = 'x', ready = 'prt:1' }", r"\[processes.w\] ready = \"prt:1\": give "),
            ("processes.w = { command = 'x', restart = 'often' }", 'restart = "often": expected never, on-failure'),
            ("processes.w = { command = 'x', max-restarts = 2.5 }", "max-restarts = 2.5: expected a whole number"),
            ("processes.w = { command = 'x', backoff = -1 }", "backoff = -1: expected seconds"),
            ("processes.w = { command = 'x', cwd = 'nowhere' }", 'cwd = "nowhere": .*/nowhere is not a directory'),
            ("processes.w = { command = 'x', cwd = 3 }", "cwd = 3 is not a path"),
            ("processes.w = { command = 'x', watch = 'nowhere' }", 'watch = "nowhere": .*/nowhere does not exist'),
            ("processes.w = { command = 'x', env = 3 }", "env = 3 is not a table"),
            ("processes.w = { command = 'x', success-exit-codes = '0' }", "is not a list of numbers"),
            ("processes.w = { command = 'x', success-exit-codes = [256] }", "256: expected an exit code from 0 to 255"),
            ("processes.w = { command = 'x', cwd = '${no_X}' }", r"cwd: \$\{no_X\} is not set; set"),
            ("processes.w = { command = 'x', env = { A = true } }", "env: A = true is not a string"),
            ("processes.w = { command = 'x', env = { 'A-B' = 'c' } }", "expected the name of an environment variable"),
            ("processes.w = { command = 'x', after = 'bd1' }\nprocesses.db1 = 'x'", r"after 'bd1', .* mean db1\?"),
        ],
    )  # fmt: skip
    def test_a_mistake_is_named_with_its_place(
        self, tables: Callable[[str], tuple[Process, ...]], text: str, message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            tables(text)

    def test_references_stand_for_variables_except_in_lines_for_the_shell(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WHERE", "src")
        monkeypatch.delenv("EMPTY_ONE", raising=False)
        (tmp_path / "src").mkdir()
        shared = write(tmp_path / ".env", "WHERE=other\nN=1\n")
        text = """
            [processes.web]
            command = ["echo", "${N}-${N}", "$${N}", "$N", "${EMPTY_ONE:-a b}"]
            cwd = "${WHERE}"
            env = { A = "${N}0" }
            [processes.api]
            command = "echo ${N}"
        """
        web, api = read_file(write(tmp_path / "lifecycle.toml", text), shared, tmp_path / "missing")
        assert web.command == ("echo", "1-1", "${N}", "$N", "a b")
        assert (web.cwd, web.env) == (tmp_path / "src", {"A": "10"})
        assert api.command == "echo ${N}"


class TestOrder:
    def test_processes_start_after_their_dependencies(self, tables: Callable[[str], tuple[Process, ...]]) -> None:
        found = tables("""
            [processes]
            web = { command = "x", after = ["api", "cache"] }
            api = { command = "x", after = "db" }
            db = "x"
            cache = "x"
        """)
        names = [each.name for each in found]
        assert sorted(names) == ["api", "cache", "db", "web"]
        assert names.index("db") < names.index("api") < names.index("web")
        assert names.index("cache") < names.index("web")

    def test_conditions_of_dependencies_are_part_of_the_order(
        self, tables: Callable[[str], tuple[Process, ...]]
    ) -> None:
        db, migrate, web = tables("""
            [processes]
            web = { command = "x", after = "migrate", depends-on = { db = "healthy" } }
            migrate = { command = "x", restart = "never", depends_on = { db = "started" } }
            db = { command = "x", probe = "port:5432" }
        """)
        assert [each.needs for each in (db, migrate, web)] == [
            {},
            {"db": "started"},
            {"migrate": "up", "db": "healthy"},
        ]

    @pytest.mark.parametrize(
        ("db", "need", "message"),
        [
            ("", "{ db = 'healthy' }", "web waits until db is healthy, but db has neither ready nor probe; "),
            ("", "{ db = 'completed' }", 'but all processes stop when it exits; set restart = "never" for db'),
            ("restart = 'always'", "{ db = 'completed' }", "but it is restarted whenever it exits; set"),
            ("", "{ other = 'started' }", "web starts after 'other', which does not exist; known: db, web"),
            ("", "{ db = 'up' }", 'depends-on: db = "up": expected started, healthy, completed or ended'),
            ("", "['db']", r"depends-on = \['db'\] is not a table; use one such as"),
        ],
    )
    def test_condition_that_can_never_be_fulfilled_is_refused(
        self, tables: Callable[[str], tuple[Process, ...]], db: str, need: str, message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            tables(f"[processes.web]\ncommand = 'x'\ndepends-on = {need}\n[processes.db]\ncommand = 'x'\n{db}")

    def test_order_without_dependencies_is_that_of_the_file(self, tables: Callable[[str], tuple[Process, ...]]) -> None:
        assert [each.name for each in tables("processes.b = 'x'\nprocesses.c = 'x'\nprocesses.a = 'x'")] == [
            "b",
            "c",
            "a",
        ]

    def test_dependency_cycle_is_shown(self, tables: Callable[[str], tuple[Process, ...]]) -> None:
        text = "[processes]\na = { command = 'x', after = 'b' }\nb = { command = 'x', after = 'a' }\nc = 'x'"
        with pytest.raises(ConfigError, match=r"(a after b after a|b after a after b); remove one dependency"):
            tables(text)


class TestFiles:
    def test_the_nearest_is_taken_and_a_procfile_before_the_tables(self, tmp_path: Path) -> None:
        below = tmp_path / "a" / "b"
        below.mkdir(parents=True)
        pyproject = write(tmp_path / "a" / "pyproject.toml", "[tool.lifecycle.processes]\nweb = 'x'\n")
        assert find_file(below) == pyproject
        assert [each.name for each in read_file(pyproject)] == ["web"]
        file = write(tmp_path / "a" / "lifecycle.toml", "[processes]\n")
        assert find_file(below) == file
        assert find_file(below / "nowhere") == file
        procfile = write(tmp_path / "a" / "Procfile", "web: x")
        assert find_file(below) == procfile

    def test_files_without_the_table_are_skipped(self, tmp_path: Path) -> None:
        write(tmp_path / "pyproject.toml", "[tool.lifecycle.watch]\n")
        write(tmp_path / "lifecycle.toml", "[other]\n")
        with pytest.raises(ConfigError, match=r"no Procfile, .* no lifecycle\.toml with \[processes\.NAME\] and"):
            find_file(tmp_path)

    def test_named_file_must_exist_and_have_processes(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="Procfile: no such file"):
            read_file(tmp_path / "Procfile")
        file = write(tmp_path / "pyproject.toml", "[tool]\n")
        with pytest.raises(ConfigError, match=r"defines no processes; write tables \[tool.lifecycle.processes.NAME\]"):
            read_file(file)


class TestEnvironment:
    @pytest.fixture(autouse=True)
    def _no_port(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PORT", raising=False)

    def test_own_env_overrides_ours_and_ours_the_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shared = write(tmp_path / ".env", "A=shared\nB=shared\nC=shared\nD=shared\n")
        own = write(tmp_path / "own.env", "B=file\nC=file\nD=file\n")
        monkeypatch.setenv("C", "ours")
        monkeypatch.setenv("D", "ours")
        found = environment(Process("web", "x", cwd=tmp_path, env_file=own, env={"D": "its"}), shared)
        assert [found[name] for name in "ABCD"] == ["shared", "file", "ours", "its"]

    def test_later_shared_file_overrides_an_earlier_one(self, tmp_path: Path) -> None:
        files = [write(tmp_path / "a", "A=1\nB=1\n"), write(tmp_path / "b", "B=2\n"), tmp_path / "missing"]
        found = environment(Process("web", "x", cwd=tmp_path), *files)
        assert (found["A"], found["B"]) == ("1", "2")

    def test_a_process_of_a_procfile_has_a_port_of_its_own(self, tmp_path: Path) -> None:
        web, worker = parse_procfile("web: x\nworker: x", tmp_path / "Procfile")
        shared = tmp_path / ".env"
        assert [environment(each, shared)["PORT"] for each in (web, worker)] == ["5000", "5100"]
        write(shared, "PORT=3000\n")
        assert [environment(each, shared)["PORT"] for each in (web, worker)] == ["3000", "3100"]
        for wrong in ("some", "65500"):
            write(shared, f"PORT={wrong}\n")
            with pytest.raises(ConfigError, match=f"PORT='{wrong}' is not valid as the first process's port"):
                environment(worker, shared)

    def test_process_of_a_table_has_no_port(self, tmp_path: Path) -> None:
        assert "PORT" not in environment(Process("web", "x", cwd=tmp_path), tmp_path / ".env")


class TestCommandLine:
    def test_file_names_and_logs_can_be_typed(self) -> None:
        arguments = parse(["up", "-f", "a/Procfile", "--log-dir", "log", "web", "db"])
        assert (arguments.file, arguments.names, arguments.log_dir) == (Path("a/Procfile"), ["web", "db"], Path("log"))

    def test_command_after_dashes_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["up", "--", "python", "app.py"]) == 2
        assert "takes no command" in capsys.readouterr().err

    def test_a_mistake_is_one_line_and_a_status(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["up", "-f", "nope"]) == 3
        assert capsys.readouterr().err == f"[lifecycle] {tmp_path}/nope: no such file\n"
        assert issubclass(ConfigError, CliError)
