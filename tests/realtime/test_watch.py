"""`lifecycle watch` with real files, processes and signals, without a terminal."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from lifecycle.workers.containment.cgroup import own_cgroup
from tests.guards import is_guard
from tests.programs import in_this_process
from tests.realtime.watches import APP, LIMIT, has_ended, here, watch, write
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["here", "watch"]  # fixtures

#: The loop of a program that waits for signals. If it were one long sleep, a signal that arrived just before it would
#: be handled only afterwards.
FOR_EVER = "all(not time.sleep(0.02) for _ in iter(int, 1))\n"

#: Runs a command line, then prints the modules that it has loaded, and whether a collection at exit skips all objects.
LOADED = """\
import atexit, gc, sys
from lifecycle.cli import main
atexit.register(lambda: print("frozen" if gc.get_freeze_count() > 10_000 else "collected"))
main(sys.argv[1:])
print("loaded", *sys.modules)
"""

#: Starts a process that leaves the session and the process tree, as daemons do, and prints both PIDs.
DAEMON = """\
import os, time
theirs, ours = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(ours, b"%d" % os.getpid())
        time.sleep(600)
    os._exit(0)
os.wait()
print("up", os.getpid(), int(os.read(theirs, 20)))
time.sleep(600)
"""

#: Fails until its third start.
FRAIL = """\
import os, sys, time
attempt = int(os.environ["LIFECYCLE_ATTEMPT"])
print("attempt", attempt, os.environ["LIFECYCLE_PREV_EXIT"], os.environ["LIFECYCLE_RESUME_ID"])
if attempt < 3:
    sys.exit(attempt)
time.sleep(600)
"""


LOUD = """\
for n in range(20):
    print(n, flush=True)
    time.sleep(0.01)
open("loud", "w").close()
time.sleep(600)
"""


class TestChanges:
    def test_edit_restarts_with_the_changes_in_the_environment(self, watch: Any, here: Path) -> None:
        seen = watch()
        seen.seen(r"up 1 \[\]")
        [old] = seen.children()
        write(here / "app.py", "VALUE = 2\n" + APP)

        seen.seen(re.escape(f'up 2 [{{"path": "{here}/app.py", "change": "modified"}}]'))
        assert "changed: app.py; restarting" in seen.err.read_text()
        assert has_ended(old)
        assert len(seen.children()) == 1

    def test_continuous_changes_restart_rarely(self, watch: Any, here: Path) -> None:
        seen = watch("--wait", "0.2")
        seen.seen("up 1")
        end = time.monotonic() + 1.6
        while time.monotonic() < end:
            write(here / "data.txt", str(time.monotonic()))
            time.sleep(0.01)
        write(here / "app.py", "VALUE = 2\n" + APP)
        seen.seen("up 2")
        # If each of the source's batches caused a restart, there would be seven.
        assert seen.out.read_text().count("up ") <= 4

    def test_a_broken_edit_keeps_the_old_process_and_shows_the_error(self, watch: Any, here: Path) -> None:
        seen = watch()
        seen.seen("up 1")
        [old] = seen.children()
        write(here / "app.py", "VALUE = = 2\n" + APP)
        seen.said(r"app\.py; the old process keeps running")
        seen.said("SyntaxError")
        assert old.is_running()

        write(here / "app.py", "VALUE = 3\n" + APP)
        seen.seen("up 3")

    def test_a_crash_is_shown_and_waits_for_the_next_change(self, watch: Any, here: Path) -> None:
        write(here / "app.py", "raise SystemExit(3)\n")
        seen = watch()
        seen.said("exited with status 3 .*; waiting for a change")
        assert seen.children() == []

        write(here / "app.py", "VALUE = 2\n" + APP)
        seen.seen("up 2")

    def test_a_change_while_the_old_one_stops_is_not_lost(self, watch: Any, here: Path) -> None:
        slow = (
            "import signal, sys, time; signal.signal(15, lambda *_: (print('stopping'), time.sleep(1), sys.exit()))\n"
        )
        write(here / "app.py", "VALUE = 1\n" + slow + APP.replace("time.sleep(600)", FOR_EVER))
        seen = watch()
        seen.seen("up 1")
        write(here / "app.py", "VALUE = 2\n" + APP)
        seen.seen("stopping")
        write(here / "app.py", "VALUE = 3\n" + APP)
        seen.seen("up 3")
        assert len(seen.children()) == 1

    def test_files_ignored_by_git_do_not_restart(self, watch: Any, here: Path) -> None:
        write(here / ".gitignore", "*.log\n")
        seen = watch()
        seen.seen("up 1")
        write(here / "a.log", "x")
        write(here / "b.txt", "x")
        seen.said(r"changed: b\.txt \(added\); restarting")
        assert "a.log" not in seen.err.read_text()

    @pytest.mark.skipif(sys.platform != "linux", reason="counts the watches of inotify")
    def test_directories_ignored_by_git_are_not_watched_until_they_are_included(self, watch: Any, here: Path) -> None:
        for number in range(50):
            (here / "data" / str(number)).mkdir(parents=True)
        write(here / ".gitignore", "data\n")
        seen = watch()
        seen.seen("up 1")
        infos = Path(f"/proc/{seen.process.pid}/fdinfo")
        assert sum(info.read_text().count("inotify wd:") for info in infos.iterdir()) < 10
        write(here / ".gitignore", "other\n")
        seen.said(r"changed: \.gitignore.*; restarting")
        write(here / "data" / "7" / "new", "x")
        seen.said(r"changed: .*data/7/new.*; restarting")

    def test_a_signal_goes_to_the_child_in_place_of_a_restart(self, watch: Any, here: Path) -> None:
        taken = "import signal; signal.signal(1, lambda *_: print('hung up'))\n"
        write(here / "app.py", "VALUE = 1\n" + taken + APP.replace("time.sleep(600)", FOR_EVER))
        seen = watch("--on", "*.html=reload")
        seen.seen("up 1")
        write(here / "page.html", "x")
        seen.seen("hung up")
        assert "sent SIGHUP" in seen.err.read_text()
        write(here / "app.py", "VALUE = 2\n" + APP)
        seen.seen("up 2")

    def test_queued_changes_lead_to_another_run_after_the_end(self, watch: Any, here: Path) -> None:
        write(here / "app.py", "import time; print('begin'); time.sleep(1); print('end')\n")
        seen = watch("--busy", "queue")
        seen.seen("begin")
        write(here / "x", "1")
        seen.seen("begin\nend\nbegin\nend\n")

    def test_postpone_starts_with_the_first_change(self, watch: Any, here: Path) -> None:
        seen = watch("--postpone")
        seen.said("waiting for the first change")
        write(here / "x", "1")
        seen.seen(r'up 1 .*"added"')

    def test_a_change_of_the_env_file_restarts_with_its_values(self, watch: Any, here: Path) -> None:
        write(here / ".env", "WHO=you\n")
        write(here / ".gitignore", ".env\n")
        seen = watch("--env-file", ".env", "--shell", "--", "echo hello $WHO; exec sleep 600")
        seen.seen("hello you")
        write(here / ".env", "WHO=me\n")
        seen.seen("hello me")

    def test_polling_sees_changes_too(self, watch: Any, here: Path) -> None:
        seen = watch("--poll", "0.1")
        seen.seen("up 1")
        write(here / "app.py", "VALUE = 2\n" + APP)
        seen.seen("up 2")

    def test_a_watched_directory_may_vanish_and_come_back(self, watch: Any, here: Path) -> None:
        (here / "src").mkdir()
        seen = watch("src")
        seen.seen("up 1")
        (here / "src").rmdir()
        (here / "src").mkdir()
        write(here / "src" / "new.txt", "x")
        seen.said(r"changed: src/new\.txt \(added\); restarting")
        seen.seen("up 1", times=2)

    def test_a_working_directory_that_is_replaced_is_used_again(self, watch: Any, here: Path) -> None:
        seen = watch("--restart", "always", "--", "sh", "-c", "ls; sleep 0.2")
        seen.seen("app.py")
        here.rename(here.parent / "old")
        here.mkdir()
        write(here / "new.py", "")
        seen.seen("new.py")

    def test_own_log_next_to_watched_files_does_not_trigger_a_restart(self, watch: Any, here: Path) -> None:
        line = shlex.join([sys.executable, "-m", "lifecycle", "watch", "--", sys.executable, "app.py"])
        seen = watch("--shell", "--postpone", "--on", "go=restart", "--ignore", "*", "--", f"exec {line} >log 2>&1")
        seen.said("waiting for the first change")
        write(here / "go", "")
        log = here / "log"
        until_blocking(lambda: log.exists() and {"watching", "up"} <= set(log.read_text().split()))
        # If the log had caused a restart, that restart would have come before this write.
        write(here / "app.py", "VALUE = 2\n" + APP)
        until_blocking(lambda: "up 2" in log.read_text())
        assert re.findall("changed: (.*);", log.read_text()) == ["app.py"]

    @pytest.mark.parametrize("options", [(), ("--prompt",)])
    def test_sighup_reloads_without_a_terminal(self, watch: Any, options: tuple[str, ...]) -> None:
        seen = watch(*options)
        seen.seen("up 1")
        seen.process.send_signal(signal.SIGHUP)
        seen.said("reload requested; restarting")
        seen.seen("up 1", times=2)


class TestOptions:
    def test_command_gets_variables_and_directory(self, watch: Any, here: Path) -> None:
        (here / "below").mkdir()
        script = here / "below" / "show"
        write(script, "#!/bin/sh\necho $A $(basename $PWD); exec sleep 600\n")
        script.chmod(0o755)
        seen = watch("-q", "-E", "A=1", "--workdir", "below", "--", "./show", ready=False)
        seen.seen("1 below")
        assert seen.err.read_text() == ""

    def test_exit_on_error_passes_on_the_status(self, watch: Any, here: Path) -> None:
        write(here / "app.py", "raise SystemExit(3)\n")
        seen = watch("--exit-on-error", ready=False)
        seen.ends(3)

    def test_mapped_signal_is_sent_and_discarded_signal_is_not(self, watch: Any, here: Path) -> None:
        taken = "import signal; [signal.signal(n, lambda n, _: print('got', n, flush=True)) for n in (1, 10, 12)]\n"
        write(here / "app.py", "VALUE = 1\n" + taken + APP.replace("time.sleep(600)", FOR_EVER))
        seen = watch("--map-signal", "USR2:", "--map-signal", "USR1:HUP")
        seen.seen("up 1")
        seen.process.send_signal(signal.SIGUSR2)
        seen.process.send_signal(signal.SIGUSR1)
        assert seen.seen(r"got \d+") == ["got 1"]

    @pytest.mark.parametrize("poll", [(), ("--poll", "0.1")])
    def test_verbose_shows_each_change_and_only_chosen_kinds_and_depths_count(
        self, watch: Any, here: Path, poll: tuple[str, ...]
    ) -> None:
        (here / "deep").mkdir()
        seen = watch("-W", ".", "--fs-events", "added", "--ignore", "*.log", "-v", *poll)
        seen.seen("up 1")
        write(here / "deep" / "x.txt", "x")
        write(here / "app.py", "VALUE = 2\n" + APP)
        write(here / "a.log", "x")
        seen.said(r"modified app\.py: ignore")
        seen.said(r"added a\.log: ignore")
        write(here / "b.txt", "x")
        seen.said(r"added b\.txt: restart")
        seen.said(r"changed: b\.txt \(added\); restarting")
        assert "x.txt" not in seen.err.read_text()


class TestStreams:
    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "| true", "2>&1 | true"])
    @pytest.mark.parametrize("options", ["", "--prompt"])
    def test_closed_streams_do_not_end_the_watch(self, here: Path, closed: str, options: str) -> None:
        """The watcher keeps watching, and the command runs until it is stopped in the usual order."""
        write(here / "app.py", "import os, time\nopen('pid', 'w').write(f'{os.getppid()} {os.getpid()}.')\n" + LOUD)
        python = shlex.quote(sys.executable)
        line = f"{python} -m lifecycle watch --ext py {options} -- {python} app.py"
        with subprocess.Popen(["sh", "-c", f"{{ {line}; echo $? >status; }} {closed}"], cwd=here) as shell:
            until_blocking((here / "loud").exists)
            ours, app = map(int, (here / "pid").read_text().rstrip(".").split())
            os.kill(ours, signal.SIGTERM)
            assert shell.wait(LIMIT) == 0
        assert (here / "status").read_text() == "0\n"
        assert not psutil.pid_exists(app)

    def test_lines_come_at_once_and_keep_their_stream(self, watch: Any) -> None:
        """By default, Python buffers several kilobytes of output to a pipe."""
        seen = watch(env={"PYTHONUNBUFFERED": ""})
        seen.seen("up 1")
        seen.seen("to stderr", err=True)
        assert "lifecycle" not in seen.out.read_text()


class TestEnds:
    @pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_everything(self, watch: Any, signum: int) -> None:
        seen = watch()
        seen.seen("up 1")
        left = seen.children()
        seen.process.send_signal(signum)
        seen.ends(0)
        assert left
        assert all(has_ended(each) for each in left)

    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
    def test_the_interpreter_for_the_next_check_ends_with_the_watch(self, watch: Any, signum: int) -> None:
        seen = watch()
        checker = until_blocking(seen.checker)
        seen.process.send_signal(signum)
        until_blocking(lambda: has_ended(checker))

    def test_commands_from_a_pipe_are_carried_out(self, here: Path) -> None:
        ended = subprocess.run(
            [sys.executable, "-m", "lifecycle", "watch", "--prompt", "--", sys.executable, "app.py"],
            cwd=here,
            input="status\nrestrat\nquit\n",
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert ended.returncode == 0
        assert "Unknown command 'restrat'" in ended.stdout
        assert f"{sys.executable} app.py: " in ended.stderr

    def test_command_that_ignores_the_stop_signal_is_killed_with_its_children(self, watch: Any) -> None:
        seen = watch("--stop-timeout", "0.2", "--shell", "--", "trap '' TERM; (sleep 600) & echo up; wait; sleep 600")
        seen.seen("up")
        left = until_blocking(lambda: seen.children() if len(seen.children()) == 2 else None)
        seen.process.terminate()
        seen.ends(0)
        assert all(has_ended(each) for each in left)

    def test_force_exit_leaves_no_process(self, watch: Any, here: Path) -> None:
        seen = watch("--shell", "--", "trap 'echo stopping' TERM; echo up; while :; do sleep 600; done")
        seen.seen("up")
        left = seen.children()
        seen.process.terminate()
        seen.seen("stopping")
        # A second SIGTERM within a second would belong to the first.
        seen.process.send_signal(signal.SIGINT)
        seen.ends(1)
        until_blocking(lambda: all(has_ended(each) for each in left), "the end of the child")


class TestSupervision:
    def test_crash_restarts_and_sets_handover_variables(self, watch: Any, here: Path) -> None:
        write(here / "app.py", FRAIL)
        seen = watch("--restart", "on-failure")
        seen.seen("attempt 3")
        lives = [line.split() for line in seen.out.read_text().splitlines()]
        assert [life[1:3] for life in lives] == [["1", "0"], ["2", "1"], ["3", "2"]]
        assert len({life[3] for life in lives}) == 1
        assert len(seen.said(r"will be restarted in \d\.\d s: .* exited with status \d")) == 2
        assert "waiting for a change" not in seen.err.read_text()

    def test_always_restarts_after_success(self, watch: Any) -> None:
        seen = watch("--restart", "always", "--", sys.executable, "-c", "print('done')")
        seen.seen("done", times=3)

    def test_ready_is_printed_and_change_interrupts_hanging_start(self, watch: Any, here: Path) -> None:
        seen = watch("--ready", "line:^up 2")
        seen.seen("up 1")
        assert "ready:" not in seen.err.read_text()
        write(here / "app.py", "VALUE = 2\n" + APP)
        seen.said(r"changed: app\.py; restarting")
        seen.said(r"ready: .* app\.py \(pid \d+\)")
        assert len(seen.children()) == 1

    def test_run_that_is_not_ready_in_time_is_stopped_and_waits_for_a_change(self, watch: Any) -> None:
        seen = watch("--ready", "notify", "--start-timeout", "0.1")
        seen.said(r"within 0\.1 s and was stopped; .* set a longer start-timeout; waiting for a change")
        assert seen.children() == []

    def test_processes_of_a_run_end_before_the_next_begins(self, watch: Any, here: Path) -> None:
        write(here / "app.py", DAEMON)
        seen = watch()
        old = [psutil.Process(int(pid)) for pid in seen.seen(r"up (\d+) (\d+)")[0]]
        write(here / "app.py", "VALUE = 2\n" + APP)
        seen.seen("up 2 ")
        assert all(has_ended(each) for each in old)

    def test_a_command_that_ends_by_itself_leaves_its_daemons(self, watch: Any, here: Path) -> None:
        write(here / "app.py", DAEMON.removesuffix("time.sleep(600)\n"))
        seen = watch()
        daemon = psutil.Process(int(seen.seen(r"up \d+ (\d+)")[0]))
        try:
            seen.said("the command exited with status 0")
            write(here / "app.py", "print('changed')\n")
            seen.seen("changed")
            seen.said("the command exited with status 0", times=2)
            seen.process.terminate()
            seen.ends(0)
            assert not has_ended(daemon)
            own = own_cgroup()
            assert own is None or not [*own.glob(f"lifecycle-{seen.process.pid}-*")]
        finally:
            daemon.kill()

    @pytest.mark.parametrize("keeps", [False, True])
    def test_a_command_that_is_stopped_leaves_its_daemons_only_on_request(
        self, watch: Any, here: Path, keeps: bool
    ) -> None:
        write(here / "app.py", DAEMON)
        seen = watch(*(["--keep-daemons"] if keeps else []))
        [[main, other]] = seen.seen(r"up (\d+) (\d+)")
        daemon = psutil.Process(int(other))
        try:
            seen.process.terminate()
            seen.ends(0)
            assert not psutil.pid_exists(int(main))
            assert has_ended(daemon) is not keeps
        finally:
            if keeps:
                daemon.kill()

    @pytest.mark.parametrize("options", [(), ("--prompt",)])
    def test_kill_leaves_neither_the_command_nor_its_daemon(
        self, watch: Any, here: Path, options: tuple[str, ...]
    ) -> None:
        write(here / "app.py", DAEMON)
        seen = watch(*options)
        left = [psutil.Process(int(pid)) for pid in seen.seen(r"up (\d+) (\d+)")[0]]
        assert len(left) == 2
        guards = [each for each in seen.process.children() if is_guard(each)]
        seen.process.kill()
        until_blocking(
            lambda: all(has_ended(each) for each in (*left, *guards)), "the end of the command and its daemon"
        )


class TestWebhook:
    SECRET = "s3cret"

    def post(self, url: str, secret: str, path: str = "/deploy") -> int:
        mac = hmac.new(secret.encode(), b"{}", hashlib.sha256).hexdigest()
        request = urllib.request.Request(url + path, b"{}", {"X-Hub-Signature-256": f"sha256={mac}"})
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def test_a_good_signature_restarts_and_a_bad_one_does_not(self, watch: Any) -> None:
        seen = watch("--webhook", "127.0.0.1:0", "--secret-env", "HOOK", env={"HOOK": self.SECRET})
        seen.seen("up 1")
        [url] = seen.said(r"webhook at (http://127\.0\.0\.1:\d+)")
        assert self.post(url, "wrong") == 401
        seen.said("refused POST '/deploy' from 127.0.0.1: 401, the signature in X-Hub-Signature-256 is wrong")
        assert self.post(url, self.SECRET) == 202
        seen.said("webhook: POST /deploy; restarting")
        assert "signed or not" not in seen.err.read_text()
        seen.seen("up 1", times=2)
        assert self.post(url, self.SECRET, "/") == 202
        seen.said("webhook: POST /; restarting")

    def test_taken_port_is_reported(self, watch: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            seen = watch("--webhook", f"127.0.0.1:{taken.getsockname()[1]}", ready=False)
            seen.ends(1)
        assert "started" not in seen.err.read_text()
        assert "is in use by another program" in seen.err.read_text()
        assert "Traceback" not in seen.err.read_text()


class TestMistakes:
    @pytest.fixture
    def ended(
        self, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> Callable[..., tuple[int, str, str]]:
        """Return a function that runs `lifecycle watch` in this process, and returns its exit status and output."""
        monkeypatch.chdir(here)

        def run(*argv: str) -> tuple[int, str, str]:
            return in_this_process(capsys, "watch", *argv)

        return run

    @pytest.mark.parametrize(
        ("argv", "status", "said"),
        [
            ([], 2, "no command to run"),
            (["--", "no-such-command"], 2, "'no-such-command': command not found on PATH"),
            (["--", "./app.py"], 2, "'./app.py': not executable; run chmod +x ./app.py"),
            (["--", "./none"], 2, "'./none': no such file"),
            (["gone", "--", "true"], 2, "'gone': no such file or directory to watch"),
            (["-F", "nowhere", "--", "true"], 2, "'nowhere': no such"),
            (["--ignore-file", "nowhere", "--", "true"], 2, "'nowhere': no such"),
            (["--watch-non-recursive", "nowhere", "--", "true"], 2, "'nowhere': no such"),
            (["--workdir", "nowhere", "--", "true"], 2, "--workdir nowhere: no such directory"),
            (["--busy", "x", "--", "true"], 2, "expected restart, queue or drop"),
            (["--webhook", "0.0.0.0:0", "--", "true"], 2, "can be reached from other machines"),
            (["--webhook", "127.0.0.1:0", "--secret-env", "NOPE", "--", "true"], 3, "the environment variable NOPE"),
            (["--env-file", "nope", "--", "true"], 3, "nope: cannot be read"),
        ],
    )
    def test_a_mistake_is_named_and_nothing_is_started(
        self, ended: Callable[..., tuple[int, str, str]], argv: list[str], status: int, said: str
    ) -> None:
        exit_code, out, err = ended(*argv)
        assert (exit_code, said in err, out) == (status, True, ""), err
        assert "Traceback" not in err

    def test_missing_path_of_the_file_is_a_configuration_error(
        self, ended: Callable[..., tuple[int, str, str]], here: Path
    ) -> None:
        (here / "pyproject.toml").write_text("[tool.lifecycle.watch]\npaths = ['gone']\n")
        status, _, err = ended("--", "true")
        assert status == 3
        assert "gone': no such file or directory to watch; correct paths in [tool.lifecycle.watch]" in err

    def test_a_wrong_key_in_the_file_is_named(self, ended: Callable[..., tuple[int, str, str]], here: Path) -> None:
        (here / "pyproject.toml").write_text("[tool.lifecycle.watch]\nexts = 'py'\n")
        status, _, err = ended("--", "true")
        assert status == 3
        assert "exts is not known; did you mean ext?" in err


@pytest.mark.parametrize("argv", [["watch", "--exit-on-error", "--", "false"], ["up"]], ids=["watch", "up"])
def test_a_plain_run_loads_and_collects_nothing_without_need(argv: list[str], tmp_path: Path) -> None:
    """Each start of the command would pay for it."""
    (tmp_path / "Procfile").write_text("a: true\n")
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *argv], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=LIMIT
    )
    unused = {
        "difflib",
        "http",
        "lifecycle.flows.records",
        "lifecycle.observe.eventlog.explanations",
        "lifecycle.observe.mermaid",
        "lifecycle.observe.snapshots",
        "tomllib",
        "uuid",
    }
    *loaded, at_exit = done.stdout.rpartition("loaded")[2].split()
    assert not unused & set(loaded)
    assert at_exit == "frozen"
