"""`lifecycle up` with real processes, files and signals."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.programs import LIMIT, Running, in_this_process
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Runs until it is stopped, and prints its PID.
LIVES = "echo up $$; exec sleep 600"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    directory = tmp_path / "here"
    directory.mkdir()
    return directory


@pytest.fixture
def up(here: Path) -> Iterator[Callable[..., Running]]:
    """Return a function that starts `lifecycle up` with files, given by name and text."""
    programs: list[Running] = []

    def start(text: str, *argv: str, name: str = "Procfile", **env: str) -> Running:
        (here / name).write_text(textwrap.dedent(text))
        programs.append(Running("-m", "lifecycle", "up", *argv, cwd=here, env={"NO_COLOR": "1", **env}))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


@pytest.fixture
def tables(up: Callable[..., Running]) -> Callable[..., Running]:
    return lambda text, *argv, **env: up(text, *argv, name="lifecycle.toml", **env)


@pytest.fixture
def answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return a function that runs `lifecycle ctl` in this process, and returns its status and the answer or error."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def ask(*words: str) -> tuple[int, str]:
        status, out, err = in_this_process(capsys, "ctl", *words)
        return status, out if status == 0 else out + err

    return ask


def pids(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\| up (\d+)", text)]


def wait_gone(numbers: list[int]) -> None:
    """Wait until the processes have exited. A process's new parent may not have reaped it yet."""
    assert numbers
    end = time.monotonic() + LIMIT
    while any(map(is_alive, numbers)):
        assert time.monotonic() < end, f"some of {numbers} are still running"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class TestDashboard:
    def test_the_address_is_printed_without_a_terminal_and_the_token_is_read_from_a_variable(
        self, up: Callable[..., Running]
    ) -> None:
        options = "--dashboard", "0", "--dashboard-token-env", "PAGE_TOKEN"
        program = up(f"web: {LIVES}", *options, PAGE_TOKEN="of-the-page")
        program.until("web    | up")
        found = re.search(r"^system \| dashboard: (http://127\.0\.0\.1:[1-9]\d*)$", program.text, re.MULTILINE)
        assert found is not None, program.text
        request = urllib.request.Request(f"{found[1]}/api/nodes", headers={"Authorization": "Bearer of-the-page"})
        with urllib.request.urlopen(request) as response:
            assert '"web"' in response.read().decode()

    def test_a_generated_token_is_not_printed_without_a_terminal(self, up: Callable[..., Running]) -> None:
        program = up("web: echo up", "--dashboard", "0")
        text = program.rest(0)
        assert re.search(
            r"^system \| dashboard: http://127\.0\.0\.1:[1-9]\d*/ needs its token, which is printed only on a "
            r"terminal; set one with --dashboard-token-env NAME$",
            text,
            re.MULTILINE,
        )
        assert "#token=" not in text

    def test_a_port_in_use_is_reported_before_processes_start(self, up: Callable[..., Running]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            text = up(f"web: {LIVES}", "--dashboard", str(port)).rest(1)
        assert f"system | cannot serve the page at 127.0.0.1 port {port}: Address already in use; use another" in text
        assert "started" not in text


class TestProcfile:
    def test_first_end_stops_all_and_sets_the_exit_code(self, up: Callable[..., Running], here: Path) -> None:
        program = up(f"""\
            # ours
            web: {LIVES}
            clock: {LIVES}
            job: echo begun; while ! test -e go; do sleep 0.05; done; echo wrong >&2; exit 3
        """)
        program.until("job    | begun")
        (here / "go").touch()
        text = program.rest(3)
        assert "system | Procfile: web, clock, job\n" in text
        assert re.search(r"^web    \| up \d+$", text, re.MULTILINE)
        assert "job    | wrong\n" in text
        assert "not started again" not in text
        ending = text[text.index("system | job exited with status 3 after") :]
        assert re.fullmatch(
            r"system \| job exited with status 3 after [\d.]+ s; stopping the other processes\n"
            r"(?:system \| stopping (?:web|clock)\n){2}"
            r"system \| web    stopped           after [\d.]+ s\n"
            r"system \| clock  stopped           after [\d.]+ s\n"
            r"system \| job    failed, status 3  after [\d.]+ s\n",
            ending,
        ), ending
        wait_gone(pids(text))

    def test_success_of_an_essential_process_stops_all(self, up: Callable[..., Running]) -> None:
        text = up(f"web: {LIVES}\njob: true\n").rest(0)
        assert "job finished after" in text
        assert "web  stopped" in text

    def test_a_signal_is_named_and_gives_the_exit_code_of_a_shell(self, up: Callable[..., Running]) -> None:
        text = up("web: kill -ABRT $$\n").rest(128 + signal.SIGABRT)
        assert "failed, SIGABRT" in text

    def test_missing_command_is_reported_by_the_shell(self, up: Callable[..., Running]) -> None:
        text = up("web: no-such-command here\n").rest(127)
        assert re.search(r"web    \| .*no-such-command.*not found", text)

    def test_process_has_port_and_env_file_and_no_input(self, up: Callable[..., Running], here: Path) -> None:
        (here / ".env").write_text("PORT=7000\nWHO=you\n")
        text = up("a: sleep 600\nb: echo $WHO $PORT; cat; pwd\n", "b", PORT="").rest(0)
        # A variable that is already set keeps its value, even if the value is empty. The port depends on the line, not
        # on the selected processes.
        assert lines_of("b", text) == ["b      | you 5100", f"b      | {here}"]

    def test_incomplete_line_is_shown_at_the_end_and_logged(self, up: Callable[..., Running], here: Path) -> None:
        text = up("a: printf 'one\\ntwo'\n", "--log-dir", "log").rest(0)
        assert lines_of("a", text) == ["a      | one", "a      | two"]
        assert (here / "log" / "a.log").read_text() == "one\ntwo\n"


class TestStops:
    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
    def test_ctrl_c_stops_all_processes_without_failure(
        self, up: Callable[..., Running], signum: signal.Signals
    ) -> None:
        program = up(f"a: {LIVES}\nb: sh -c '{LIVES}' & {LIVES}\n")
        for _ in range(3):
            program.until("| up")
        text = program.stop(signum)
        assert len(set(pids(text))) == 3
        wait_gone(pids(text))

    def test_slow_process_does_not_keep_others_running(self, up: Callable[..., Running], here: Path) -> None:
        program = up("""\
            a: trap 'echo leaving; exit' TERM; echo up $$; while :; do sleep 0.05; done
            b: trap '' TERM; echo up $$; while ! test -e go; do sleep 0.05; done
        """)
        for _ in range(2):
            program.until("| up")
        program.process.terminate()
        program.until("a      | leaving")
        (here / "go").touch()
        assert re.search(r"b  stopped ", program.rest(0))

    def test_sighup_without_a_terminal_stops_up_also_with_watched_files(self, tables: Callable[..., Running]) -> None:
        program = tables(f"""
            [processes.a]
            command = "{LIVES}"
            watch = ["."]
        """)
        program.until("a      | up")
        assert "a  stopped" in program.stop(signal.SIGHUP)

    def test_each_process_gets_its_stop_signal_and_its_last_output_is_shown(
        self, tables: Callable[..., Running]
    ) -> None:
        program = tables("""
            [processes.a]
            command = "trap 'echo hung up; exit 0' HUP; echo up; while :; do sleep 0.05; done"
            stop-signal = "HUP"
        """)
        program.until("a      | up")
        text = program.stop()
        assert "a      | hung up\n" in text
        assert "a  stopped" in text

    def test_process_that_does_not_stop_in_time_is_killed_and_counts_as_failure(
        self, tables: Callable[..., Running]
    ) -> None:
        program = tables("""
            [processes.a]
            command = "trap '' TERM; echo up $$; while :; do sleep 0.05; done"
            stop-timeout = 0.1
        """)
        program.until("a      | up")
        program.process.terminate()
        text = program.rest(128 + signal.SIGKILL)
        assert "a did not stop in time and was killed" in text
        wait_gone(pids(text))

    def test_a_second_ctrl_c_forces(self, up: Callable[..., Running]) -> None:
        program = up("a: trap 'echo stopping' TERM; echo up $$; while :; do sleep 0.05; done\n")
        program.until("a      | up")
        program.process.send_signal(signal.SIGINT)
        program.until("a      | stopping")
        time.sleep(0.1)  # two presses within 50 ms would be treated as one
        program.process.send_signal(signal.SIGINT)
        wait_gone(pids(program.rest(1)))

    def test_nothing_outlives_a_kill(self, up: Callable[..., Running]) -> None:
        program = up(f"a: {LIVES}\nb: trap '' TERM HUP; setsid sh -c '{LIVES}' & echo up $$; wait\n")
        for _ in range(3):
            program.until("| up")
        program.until("\n")
        program.process.kill()
        program.process.wait(LIMIT)
        assert len(set(pids(program.text))) == 3
        wait_gone(pids(program.text))

    def test_it_ends_quietly_when_the_reader_has_gone(self, here: Path) -> None:
        (here / "Procfile").write_text("a: echo up $$; while :; do echo more; sleep 0.01; done\n")
        line = f"'{sys.executable}' -m lifecycle up | head -1"
        ended = subprocess.run(
            ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
            cwd=here,
            env={**os.environ, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert ended.returncode == 0
        assert "Error" not in ended.stderr
        assert "stopped" not in ended.stderr
        wait_gone(pids(ended.stdout))


class TestPolicies:
    def test_process_starts_when_its_dependencies_are_ready(self, tables: Callable[..., Running], here: Path) -> None:
        program = tables(f"""
            [processes.web]
            command = "{LIVES}"
            after = ["db"]
            [processes.db]
            command = "echo booting; while ! test -e go; do sleep 0.05; done; echo listening; exec sleep 600"
            ready = "line:listening"
        """)
        program.until("db     | booting")
        assert "started web" not in program.text
        (here / "go").touch()
        program.until("started web")
        text = program.stop()
        assert text.index("ready: db") < text.index("started web")
        assert text.index("stopping web") < text.index("stopping db")

    def test_process_that_does_not_become_ready_stops_all(self, tables: Callable[..., Running]) -> None:
        text = tables("""
            [processes.db]
            command = "sleep 600"
            ready = "line:listening"
            start-timeout = 0.1
            [processes.web]
            command = "echo no"
            after = "db"
        """).rest(1)
        assert re.search(r"db did not .* within 0\.1 s", text)
        assert "db   not ready\n" in text
        assert "web  not started\n" in text

    def test_first_start_is_retried_without_stopping_the_others(
        self, tables: Callable[..., Running], here: Path
    ) -> None:
        program = tables(f"""
            [processes.db]
            command = "test -e go || exit 3; echo listening; exec sleep 600"
            ready = "line:listening"
            first-start = "retry"
            backoff = 0.05
            [processes.web]
            command = "{LIVES}"
            [processes.app]
            command = "{LIVES}"
            after = "db"
        """)
        program.until("started web")
        program.until("db will be restarted in")
        assert "started app" not in program.text
        (here / "go").touch()
        program.until("started app")
        text = program.stop()
        assert text.index("ready: db") < text.index("started app")
        assert "stopping the other processes" not in text

    def test_process_whose_probe_fails_is_restarted(self, tables: Callable[..., Running], here: Path) -> None:
        (here / "healthy").touch()
        program = tables(f"""
            [processes.web]
            command = "{LIVES}"
            restart = "on-failure"
            probe = "cmd:sh -c 'test -e $FLAG'"
            probe-interval = 0.1
            restart-unhealthy = true
            env = {{ FLAG = "healthy" }}
        """)
        program.until("started web")
        (here / "healthy").unlink()
        program.until("restart 1)")

    def test_failure_restarts_until_given_up(self, tables: Callable[..., Running]) -> None:
        program = tables(f"""
            [processes.web]
            command = "{LIVES}"
            [processes.flaky]
            command = "echo attempt $LIFECYCLE_ATTEMPT; exit 4"
            restart = "on-failure"
            backoff = 0.01
            max-restarts = 2
        """)
        for number in (1, 2, 3):
            program.until(f"flaky  | attempt {number}")
        program.until("gave up on 'flaky'")
        program.process.terminate()
        text = program.rest(4)
        assert re.search(r"web    stopped +after [\d.]+ s\n", text)
        assert re.search(r"flaky  failed, status 4 +after [\d.]+ s  given up after 2 restarts\n", text)

    def test_watched_process_that_is_given_up_waits_for_a_change(
        self, tables: Callable[..., Running], here: Path
    ) -> None:
        program = tables("""
            [processes.a]
            command = "test -e go && echo up && exec sleep 600"
            restart = "always"
            backoff = 0.01
            max-restarts = 1
            watch = ["."]
        """)
        program.until("gave up on 'a' after more than 1 restart within 60 s\nsystem | a: waiting for the next change\n")
        (here / "go").touch()
        program.until("a      | up")
        program.stop()

    def test_single_process_is_restarted_and_given_up_without_orphans(self, tables: Callable[..., Running]) -> None:
        text = tables("""
            [processes.flaky]
            command = "echo attempt $LIFECYCLE_ATTEMPT; exit 4"
            restart = "always"
            backoff = 0.01
            max-restarts = 2
        """).rest(4)
        assert "attempt 3\n" in text
        assert "attempt 4\n" not in text
        assert "given up after 2 restarts" in text

    def test_up_ends_when_all_jobs_have_ended(self, tables: Callable[..., Running], here: Path) -> None:
        program = tables("""
            [processes]
            a = { command = "echo done; exit 5", restart = "never" }
            b = { command = "while ! test -e go; do sleep 0.05; done", restart = "never" }
        """)
        program.until("a exited with status 5")
        (here / "go").touch()
        text = program.rest(5)
        assert "b finished after" in text
        assert "stopping" not in text

    def test_exit_codes_that_count_as_success_are_no_failure(self, tables: Callable[..., Running]) -> None:
        text = tables("""
            [processes]
            a = { command = "exit 3", restart = "on-failure", success-exit-codes = [3, 143] }
            b = { command = "kill $$; sleep 9", after = ["a"], restart = "on-failure", success-exit-codes = [3, 143] }
        """).rest(0)
        assert re.search(r"a  finished, status 0 .*\n.*b  finished, status 0", text)

    def test_words_run_without_a_shell_and_missing_program_is_named(self, tables: Callable[..., Running]) -> None:
        text = tables("""
            [processes]
            a = { command = ["echo", "$HOME", "a b"], restart = "never" }
            b = { command = ["./no-such-program"] }
        """).rest(127)
        assert "b cannot start: the command './no-such-program' does not exist" in text
        assert "Traceback" not in text

    def test_change_restarts_only_the_processes_that_watch_the_file(
        self, tables: Callable[..., Running], here: Path
    ) -> None:
        for name in ("a.txt", "b.txt"):
            (here / name).write_text("old\n")
        program = tables(f"""
            [processes]
            a = {{ command = "cat a.txt; {LIVES}", watch = ["a.txt"] }}
            b = {{ command = "cat b.txt", watch = ["b.txt"] }}
            c = "{LIVES}"
        """)
        program.until("started c")
        (here / "a.txt").write_text("new\n")
        program.until("changed: a.txt; restarting a")
        program.until("a      | new")
        (here / "b.txt").write_text("newer\n")
        program.until("changed: b.txt; restarting b")
        program.until("b      | newer")
        text = program.stop()
        assert text.count("b      | old") == 1
        assert "b finished after" in text
        assert "waiting for a change" in text
        assert len(pids(text)) == 3

    def test_a_touch_or_a_save_without_a_change_restarts_nothing(
        self, tables: Callable[..., Running], here: Path
    ) -> None:
        for name in ("a.txt", "b.txt"):
            (here / name).write_text("old\n")
        program = tables(f"""
            [processes]
            a = {{ command = "{LIVES}", watch = ["a.txt"] }}
            b = {{ command = "{LIVES}", watch = ["."] }}
        """)
        for _ in "ab":
            program.until("| up")
        (here / "a.txt").touch()
        (here / "a.txt").write_text("old\n")
        # If one of the earlier writes had been detected, it would appear in this message or before it.
        (here / "b.txt").write_text("new\n")
        program.until("changed: b.txt; restarting b")
        program.until("| up")
        (here / "a.txt").write_text("new\n")
        program.until("changed: a.txt; restarting a\n")
        program.until("changed: a.txt; restarting b\n")
        assert program.stop().count("changed:") == 3

    def test_an_error_in_a_python_or_env_file_keeps_the_old_process(
        self, tables: Callable[..., Running], answered: Callable[..., tuple[int, str]], here: Path, tmp_path: Path
    ) -> None:
        program = tables(
            f"""
            [processes.web]
            command = "echo up $$; cd . && exec '{sys.executable}' -c 'input()' </dev/zero"
            watch = ["."]
        """,
            XDG_RUNTIME_DIR=str(tmp_path),
        )
        program.until("web    | up")
        (here / "app.py").write_text("def f(:\n")
        program.until("changed: app.py (added); the old web keeps running because of this error:\n")
        program.until("SyntaxError")
        status, text = answered("restart", "web")
        assert (status, "the old web keeps running" in text, "SyntaxError" in text) == (1, True, True)
        (here / ".env").write_text("A: 1\n")
        program.until("the old web keeps running because of these errors:\n")
        program.until(".env:1: 'A: 1' cannot be read")
        (here / "app.py").write_text("def f(): pass\n")
        program.until("keeps running because of this error:\n")
        (here / ".env").write_text("A=1\n")
        program.until("restarting web")
        program.until("web    | up")
        assert len(set(pids(program.stop()))) == 2


#: Waits until the file ``go`` exists, prints that it is listening, and keeps running.
LISTENS = "echo booting; while ! test -e go; do sleep 0.02; done; echo listening; exec sleep 600"


class TestOrder:
    def test_independent_process_does_not_wait(self, tables: Callable[..., Running], here: Path) -> None:
        program = tables(f"""
            [processes]
            db = {{ command = "{LISTENS}", ready = "line:listening" }}
            api = {{ command = "{LIVES}", after = ["db"] }}
            web = "{LIVES}"
        """)
        program.until("web    | up")
        assert "ready: db" not in program.text
        (here / "go").touch()
        program.until("ready: db")
        program.until("api    | up")
        program.stop()

    def test_process_after_a_job_waits_for_its_success(self, tables: Callable[..., Running]) -> None:
        program = tables("""
            [processes]
            web = { command = "test -e done && echo found || echo missing; exec sleep 600", after = ["migrate"] }
            migrate = { command = "sleep 0.2; touch done", restart = "never" }
        """)
        program.until("web     | found")
        text = program.stop()
        assert text.index("migrate finished") < text.index("started web")

    def test_a_job_that_fails_stops_all_if_others_are_after_it(self, tables: Callable[..., Running]) -> None:
        text = tables(f"""
            [processes]
            migrate = {{ command = "exit 3", restart = "never" }}
            web = {{ command = "{LIVES}", after = ["migrate"] }}
            api = {{ command = "{LIVES}", after = ["web"] }}
        """).rest(3)
        assert re.search(r"migrate exited with status 3 after [\d.]+ s; stopping the other processes\n", text)
        assert "system  | web does not start because migrate failed\n" in text
        assert "system  | api does not start because migrate failed\n" in text
        assert "web      not started\n" in text
        assert "api      not started\n" in text

    def test_conditions_of_compose_decide_when_a_process_starts(
        self, tables: Callable[..., Running], here: Path
    ) -> None:
        program = tables(f"""
            [processes]
            cache = {{ command = "{LISTENS}", ready = "line:listening" }}
            db = {{ command = "{LIVES}", probe = "cmd:test -e healthy", probe-interval = 0.05 }}
            seed = {{ command = "echo seeding; while ! test -e seeded; do sleep 0.02; done", restart = "on-failure" }}
            web = {{ command = "{LIVES}", depends-on = {{ cache = "started", db = "healthy", seed = "completed" }} }}
            other = {{ command = "{LIVES}", depends-on = {{ cache = "started" }} }}
        """)
        program.until("other  | up")
        (here / "seeded").touch()
        program.until("seed finished")
        assert "started web" not in program.text
        (here / "healthy").touch()
        program.until("web    | up")
        assert "ready: cache" not in program.text
        program.stop()

    def test_the_first_healthy_probe_is_found_long_before_the_interval_ends(
        self, tables: Callable[..., Running]
    ) -> None:
        program = tables("""\
            [processes]
            db = { command = "sleep 0.2; touch ok; exec sleep 600", probe = "cmd:test -e ok", probe-interval = 900 }
            web = { command = "echo begun; exec sleep 600", depends-on = { db = "healthy" } }
        """)
        program.until("web    | begun")
        program.stop()

    def test_process_that_ends_for_good_before_it_is_healthy_stops_all(self, tables: Callable[..., Running]) -> None:
        text = tables(f"""
            [processes.db]
            command = "exit 4"
            restart = "on-failure"
            backoff = 0.01
            max-restarts = 1
            probe = "cmd:false"
            [processes]
            web = {{ command = "{LIVES}", depends-on = {{ db = "healthy" }} }}
            api = {{ command = "{LIVES}", after = ["web"] }}
        """).rest(4)
        assert "gave up on 'db'" in text
        assert "system | web does not start because db failed\n" in text
        assert "system | api does not start because db failed\n" in text

    def test_each_process_stops_after_its_dependents_without_waiting_for_others(
        self, tables: Callable[..., Running], here: Path
    ) -> None:
        stops = "trap 'echo leaving; exit' TERM; echo up $$; while :; do sleep 0.02; done"
        slow = "trap '' TERM; echo up $$; while ! test -e go; do sleep 0.02; done"
        program = tables(f"""
            [processes]
            db = "{stops}"
            web = {{ command = "{stops}", after = ["db"] }}
            cache = "{stops}"
            api = {{ command = "{slow}", after = ["cache"] }}
        """)
        for _ in range(4):
            program.until("| up")
        program.process.terminate()
        program.until("db     | leaving")
        assert "web    | leaving" in program.text
        assert "stopping cache" not in program.text
        (here / "go").touch()
        program.until("cache  | leaving")
        program.rest(0)

    def test_a_watched_job_that_fails_is_waited_for_until_a_change_makes_it_succeed(
        self, tables: Callable[..., Running], here: Path
    ) -> None:
        (here / "source").write_text("1")
        program = tables(f"""
            [processes]
            build = {{ command = "exit $(cat source)", restart = "never", watch = ["source"] }}
            web = {{ command = "{LIVES}", after = ["build"] }}
        """)
        program.until("; waiting for a change")
        assert "started web" not in program.text
        (here / "source").write_text("0")
        program.until("restarting build")
        program.until("web    | up")
        program.stop()

    def test_a_change_does_not_wait_for_the_restart_of_another(
        self, tables: Callable[..., Running], here: Path
    ) -> None:
        for name in ("go", "a.txt", "b.txt"):
            (here / name).touch()
        program = tables(f"""
            [processes]
            db = {{ command = "{LISTENS}", ready = "line:listening", watch = ["a.txt"] }}
            web = {{ command = "{LIVES}", watch = ["b.txt"] }}
        """)
        for _ in range(2):
            program.until("(pid ")
        (here / "go").unlink()
        (here / "a.txt").write_text("new")
        program.until("db     | booting")
        (here / "b.txt").write_text("new")
        program.until("restarting web")
        program.until("started web")
        (here / "go").touch()
        program.until("ready: db")
        program.stop()

    def test_change_of_several_processes_restarts_them_in_order(
        self, tables: Callable[..., Running], here: Path
    ) -> None:
        for name in ("go", "source"):
            (here / name).touch()
        program = tables(f"""
            [processes]
            web = {{ command = "{LIVES}", watch = ["source"], after = ["db"] }}
            db = {{ command = "{LISTENS}", ready = "line:listening", watch = ["source"] }}
        """)
        program.until("web    | up")
        (here / "go").unlink()
        (here / "source").write_text("new")
        program.until("db     | booting")
        (here / "go").touch()
        program.until("restart 1)")
        program.until("restart 1)")
        text = program.stop()
        restarted = re.findall(r"(?:ready:|started) (\w+) \(pid \d+, restart 1\)", text)
        assert restarted == ["db", "web"]

    def test_manually_restarted_job_has_not_failed(
        self, tables: Callable[..., Running], here: Path, tmp_path: Path
    ) -> None:
        program = tables(
            f"""
            [processes]
            job = {{ command = "test -e done || exec sleep 600", restart = "never" }}
            web = {{ command = "{LIVES}", after = ["job"] }}
            """,
            XDG_RUNTIME_DIR=str(tmp_path),
        )
        program.until("started job")
        (here / "done").touch()
        with ctl(tmp_path, "restart", "job") as restart:
            program.until("web    | up")
        assert restart.returncode == 0
        program.stop()

    def test_manual_restart_replaces_a_start(self, tables: Callable[..., Running], here: Path, tmp_path: Path) -> None:
        program = tables(
            f"""
            [processes]
            db = {{ command = "{LISTENS}", ready = "line:listening" }}
            web = {{ command = "{LIVES}", after = ["db"] }}
            """,
            XDG_RUNTIME_DIR=str(tmp_path),
        )
        program.until("db     | booting")
        with ctl(tmp_path, "restart", "db") as restart:
            program.until("db     | booting")
            (here / "go").touch()
            program.until("web    | up")
        assert restart.returncode == 0
        program.stop()


def test_up_continues_while_its_process_is_stopped_by_hand(tables: Callable[..., Running], tmp_path: Path) -> None:
    program = tables(f'processes.web = {{ command = "{LIVES}" }}', XDG_RUNTIME_DIR=str(tmp_path))
    program.until("web    | up")
    for word in ("stop", "start"):
        with ctl(tmp_path, "-p", "up-here", word, "web") as verb:
            assert verb.wait(LIMIT) == 0
    program.until("web    | up")
    program.stop()


def ctl(runtime: Path, *words: str, stderr: int | None = None) -> subprocess.Popen[str]:
    """Run `lifecycle ctl` on the only program that has its socket in ``runtime``."""
    command = [sys.executable, "-m", "lifecycle", "ctl", *words]
    return subprocess.Popen(command, env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)}, stderr=stderr, text=True)


def test_processes_of_process_compose_run(up: Callable[..., Running], here: Path) -> None:
    pytest.importorskip("yaml")
    text = f"""
        processes:
          fails: {{ command: exit 3 }}
          next: {{ command: echo next, depends_on: {{ fails: {{ condition: process_completed }} }} }}
          web:
            command: {LIVES.replace("$", "$$")}
            readiness_probe: {{ exec: {{ command: test -e go }}, period_seconds: 1 }}
          last:
            command: echo last; exit 4
            depends_on: {{ web: {{ condition: process_healthy }} }}
            availability: {{ restart: exit_on_failure }}
    """
    program = up(text, name="process-compose.yaml")
    program.until("web    | up")
    program.until("next   | next")
    assert "last   |" not in program.text
    (here / "go").touch()
    text = program.rest(3)
    assert "last exited with status 4" in text
    assert "web    stopped" in text
    wait_gone(pids(text))


@pytest.mark.xfail(strict=True, reason="lifecycle up gives no terminal to a process, and ignores is_tty with a warning")
def test_a_process_of_process_compose_has_a_terminal_if_it_asks_for_one(up: Callable[..., Running]) -> None:
    pytest.importorskip("yaml")
    text = """
        processes:
          colours: { command: if test -t 1; then exit 0; else exit 3; fi, is_tty: true }
    """
    up(text, name="process-compose.yaml").rest(0)


class TestScale:
    def test_copies_are_added_and_removed_while_the_others_continue(
        self, up: Callable[..., Running], answered: Callable[..., tuple[int, str]], tmp_path: Path
    ) -> None:
        program = up(
            f"web: echo port $PORT; {LIVES}\nworker: {LIVES}\n", "--log-dir", "log", XDG_RUNTIME_DIR=str(tmp_path)
        )
        for _ in range(2):
            program.until("| up")
        assert answered("scale", "web=3,worker=0") == (0, "web: web, web.2, web.3\nworker: no copy\n")
        for name, port in (("web.2", 5001), ("web.3", 5002)):
            program.until(f"{name}  | port {port}\n")
            program.until(f"{name}  | up")
            assert (tmp_path / "here" / "log" / f"{name}.log").read_text().startswith(f"port {port}\n")
        assert answered("scale", "web=1") == (0, "web: web\n")
        text = program.stop()
        assert text.index("stopping web.3") < text.index("stopping web.2")
        summary = text[text.rindex("stopping") :]
        assert re.search(r"web  stopped", summary)
        assert "web.2" not in summary
        assert "worker" not in summary
        wait_gone(pids(text))

    def test_scaled_process_stops_after_its_dependents_and_restarts_with_its_files(
        self, tables: Callable[..., Running], answered: Callable[..., tuple[int, str]], here: Path, tmp_path: Path
    ) -> None:
        (here / "source").touch()
        program = tables(
            f"""
            [processes]
            db = {{ command = "{LIVES}", watch = ["source"] }}
            web = {{ command = "{LIVES}", after = ["db"] }}
            """,
            XDG_RUNTIME_DIR=str(tmp_path),
        )
        program.until("web    | up")
        assert answered("scale", "db=2")[0] == 0
        program.until("db.2   | up")
        (here / "source").write_text("new")
        for _ in range(2):
            program.until("restart 1)")
        text = program.stop()
        assert text.rindex("stopping web") < text.rindex("stopping db.2")

    def test_up_continues_without_copies_and_reports_copies_that_cannot_start(
        self, tables: Callable[..., Running], answered: Callable[..., tuple[int, str]], tmp_path: Path
    ) -> None:
        program = tables(
            """
            [processes.web]
            command = "mkdir only || exit 3; echo listening; exec sleep 600"
            ready = "line:listening"
            """,
            XDG_RUNTIME_DIR=str(tmp_path),
        )
        program.until("ready: web")
        status, text = answered("scale", "web=2")
        assert (status, "web.2 was not added" in text, "status 3" in text) == (1, True, True)
        assert answered("scale", "web=0") == (0, "web: no copy\n")
        assert answered("status")[0] == 0
        status, text = answered("scale", "web=1")
        assert (status, "web was not added" in text) == (1, True)
        assert answered("status")[0] == 0
        assert "Traceback" not in program.stop()

    def test_scaling_down_is_refused_once_the_program_stops(
        self, tables: Callable[..., Running], here: Path, tmp_path: Path
    ) -> None:
        program = tables(
            """
            [processes.web]
            command = "trap 'until [ -e go ]; do sleep 0.02; done; exit 0' TERM; echo up; while :; do sleep 0.1; done"
            restart = "always"
            replicas = 3
            [processes.other]
            command = "until [ -e end ]; do sleep 0.02; done"
            """,
            XDG_RUNTIME_DIR=str(tmp_path),
        )
        for number in (1, 2, 3):
            program.until(f"web.{number}  | up")
        with ctl(tmp_path, "scale", "web=1", stderr=subprocess.PIPE) as scale:
            program.until("stopping web.3")
            (here / "end").touch()
            program.until("stopping the other processes")
            (here / "go").touch()
            answer = scale.communicate(timeout=LIMIT)[1]
        assert "web.3 was not removed because the program is stopping" in answer
        text = program.rest()
        assert "Traceback" not in text
        assert re.search(r"web.3  stopped", text)

    def test_stop_ends_a_copy_that_is_not_ready_yet(self, tables: Callable[..., Running], tmp_path: Path) -> None:
        program = tables(
            """
            [processes.web]
            command = "mkdir only && echo listening; echo up $$; exec sleep 600"
            ready = "line:listening"
            """,
            XDG_RUNTIME_DIR=str(tmp_path),
        )
        program.until("web    | up")
        with ctl(tmp_path, "scale", "web=2", stderr=subprocess.PIPE) as scale:
            program.until("web.2  | up")
            text = program.stop()
            answer = scale.communicate(timeout=LIMIT)[1]
        assert (scale.returncode, "the program is stopping" in answer) == (1, True)
        assert "Traceback" not in text
        assert "did not finish its events" not in text
        wait_gone(pids(text))

    def test_commands_take_several_names_the_name_of_all_copies_and_all(
        self,
        up: Callable[..., Running],
        answered: Callable[..., tuple[int, str]],
        here: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(here)
        program = up(f"web: {LIVES}\nworker: {LIVES}\n", "-c", "web=2", XDG_RUNTIME_DIR=str(tmp_path))
        until_blocking(lambda: program.says("| up", 1.0) and len(pids(program.text)) == 3, "the start")
        before = pids(program.text)
        assert answered("restart", "web", "worker")[0] == 0
        wait_gone(before)
        assert answered("stop", "all")[0] == 0
        assert answered("start", "web")[0] == 0
        status = answered("status")[1]
        states = dict(re.findall(r"^ +(\S+) +process +(\w+)", status, re.MULTILINE))
        assert states == {"web.1": "running", "web.2": "running", "worker": "stopped"}
        assert re.fullmatch(r"web.1  \| up \d+\nweb.2  \| up \d+\nworker \| up \d+\n", answered("logs", "-n", "1")[1])
        assert re.fullmatch(r"web.1 \| up \d+\nweb.2 \| up \d+\n", answered("logs", "web", "-n", "1")[1])
        assert re.fullmatch(r"up \d+\n", answered("logs", "web.2", "-n", "1")[1])
        assert "no worker is called 'wbe'" in answered("restart", "web", "wbe")[1]
        assert answered("suspend") == (
            1,
            "[lifecycle] up-here: this program cannot be suspended, because it has no handler for this command\n",
        )

    def test_new_lines_of_several_processes_have_prefixes(self, up: Callable[..., Running], tmp_path: Path) -> None:
        program = up(f"web: {LIVES}\nworker: {LIVES}\n", XDG_RUNTIME_DIR=str(tmp_path))
        until_blocking(lambda: program.says("| up", 1.0) and len(pids(program.text)) == 2, "the start")
        logs = Running("-m", "lifecycle", "ctl", "logs", "-f", env={"XDG_RUNTIME_DIR": str(tmp_path), "NO_COLOR": "1"})
        try:
            logs.until("web    | up")
            logs.until("worker | up")
            program.stop()
            assert "up-here has exited" in logs.rest(1)
        finally:
            logs.close()

    def test_a_program_in_another_directory_is_stopped_only_by_name(
        self, up: Callable[..., Running], answered: Callable[..., tuple[int, str]], here: Path, tmp_path: Path
    ) -> None:
        program = up(f"web: {LIVES}\n", XDG_RUNTIME_DIR=str(tmp_path))
        program.until("| up")
        for words in (["stop"], ["stop", "web"], ["terminate"]):
            message = f"[lifecycle] up-here runs in {here}, not here; to stop it, use -p up-here\n"
            assert answered(*words) == (2, message)
        assert answered("status")[0] == 0
        assert answered("-p", "up-here", "stop")[0] == 0
        program.rest(0)

    def test_wrong_number_or_name_is_answered(
        self, up: Callable[..., Running], answered: Callable[..., tuple[int, str]], tmp_path: Path
    ) -> None:
        program = up(f"web: {LIVES}\n", XDG_RUNTIME_DIR=str(tmp_path))
        program.until("| up")
        for words, answer in (
            (["wbe=2"], "no process 'wbe' runs here; did you mean web?"),
            (["web=-1"], "scale web=-1: use NAME=N, such as web=2,worker=3"),
            (["web"], "scale web: use NAME=N, such as web=2,worker=3"),
            ([], "scale: use NAME=N, such as web=2"),
        ):
            status, text = answered("scale", *words)
            assert (status, answer in text) == (1, True), text
            assert answered("scale", "web=1") == (0, "web: web\n")
        program.stop()

    def test_completions_contain_one_copy_more_and_one_fewer(self, up: Callable[..., Running], tmp_path: Path) -> None:
        program = up(f"web: {LIVES}\n", XDG_RUNTIME_DIR=str(tmp_path))
        program.until("| up")
        command = [sys.executable, "-m", "lifecycle", "--candidates", "ctl", "scale", "w"]
        env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}

        def candidates() -> str:
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=LIMIT)
            return done.stdout

        # On a busy machine, the program may not answer within the short time that a completion may take.
        assert until_blocking(candidates) == "web=0\nweb=2\n"
        program.stop()


def lines_of(name: str, text: str) -> list[str]:
    """Return the output of one process. Messages may stand between its lines."""
    return [line for line in text.splitlines() if line.startswith(f"{name} ") and "|" in line]
