"""`lifecycle up` prints the lines of its processes, and a summary."""

from __future__ import annotations

import io
import re
import sys
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli.output import UsageError
from lifecycle.cli.up.screen import Outcome, Screen, describe_end, exit_status, summary
from lifecycle.workers import Exit, WorkerState
from lifecycle.workers.model import Status

if TYPE_CHECKING:
    from pathlib import Path


def state(name: str, status: Status, *, ran: float | None = 2.0, at: float = 10.0, **known: object) -> WorkerState:
    started = None if ran is None else at - ran
    return WorkerState(name, "process", status, started_at=started, updated_at=at, **known)  # type: ignore[arg-type]


class TestOutcomes:
    @pytest.mark.parametrize(
        ("ended", "code"),
        [
            (Outcome(state("a", Status.FINISHED, exit_code=0)), 0),
            (Outcome(state("a", Status.STOPPED, exit_code=-15)), 0),
            (Outcome(state("a", Status.FAILED, exit_code=3)), 3),
            (Outcome(state("a", Status.FAILED, exit_code=-11)), 139),
            (Outcome(state("a", Status.KILLED, exit_code=-9)), 137),
            (Outcome(state("a", Status.FAILED, ran=None, exit_code=-15)), 1),
            (Outcome(state("a", Status.FAILED, ran=None, exit_code=3)), 3),
        ],
    )
    def test_exit_code_is_that_of_a_shell(self, ended: Outcome, code: int) -> None:
        assert exit_status([ended]) == code

    @pytest.mark.parametrize(("cause", "code"), [(FileNotFoundError(), 127), (PermissionError(), 126), (None, 1)])
    def test_program_that_cannot_be_executed_has_exit_code_of_a_shell(self, cause: OSError | None, code: int) -> None:
        error = RuntimeError("cannot start")
        error.__cause__ = cause
        ended = Outcome(state("a", Status.FAILED, ran=None), Exit(Status.FAILED, error))
        assert exit_status([ended]) == code

    def test_the_first_failure_counts(self) -> None:
        late, early = (Outcome(state("a", Status.FAILED, exit_code=code, at=code)) for code in (5.0, 4.0))
        assert exit_status([late, early]) == 4
        assert exit_status([]) == 0

    def test_summary_has_a_line_per_process(self) -> None:
        outcomes = [
            Outcome(state("web", Status.STOPPED, exit_code=-15, restarts=1)),
            Outcome(state("worker", Status.FAILED, exit_code=3, ran=75.0, restarts=3, circuit="open")),
            Outcome(state("db", Status.KILLED, exit_code=-9, ran=7320.0)),
            Outcome(state("odd", Status.FAILED, exit_code=-60)),
            Outcome(state("late", Status.STOPPED, ran=None)),
            Outcome(state("gone", Status.FAILED, ran=None)),
            Outcome(state("slow", Status.FAILED, ran=None, exit_code=-15)),
        ]
        assert summary(outcomes) == [
            "web     stopped            after 2.0 s       1 restart",
            "worker  failed, status 3   after 1 min 15 s  given up after 3 restarts",
            "db      killed, SIGKILL    after 2 h 2 min",
            "odd     failed, signal 60  after 2.0 s",
            "late    not started",
            "gone    could not start",
            "slow    not ready",
        ]

    def test_not_started_processes_have_no_duration(self) -> None:
        assert summary([]) == []

    def test_end_is_described_by_the_worker_error(self) -> None:
        assert describe_end(state("a", Status.FINISHED)) == "finished after 2.0 s"
        error = "'a' exited with status 3"
        assert describe_end(state("a", Status.FAILED, error=error)) == "exited with status 3 after 2.0 s"
        error = "'a' ended before it was ready: it exited with status 3; the end of its stderr:\nboom"
        assert (
            describe_end(state("a", Status.FAILED, ran=None, error=error))
            == "ended before it was ready: it exited with status 3"
        )
        error = "'a' did not stop in time and was killed"
        assert describe_end(state("a", Status.KILLED, error=error)) == "did not stop in time and was killed"
        error = "'a' did not accept connections within 5 s and was stopped; set a longer start_timeout"
        assert "set a longer start-timeout" in describe_end(state("a", Status.FAILED, ran=None, error=error))
        error = "'a' cannot start: it is not there; make it"
        assert (
            describe_end(state("a", Status.FAILED, ran=None, error=error)) == "cannot start: it is not there; make it"
        )


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Deaf(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


class TestScreen:
    def test_each_line_follows_an_aligned_name(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Screen(["web", "my-worker"], log_dir=None, on_reader_gone=pytest.fail) as screen:
            screen.output("web")("one", "stdout")
            screen.output("my-worker")("two", "stderr")
            screen.console.info("three")
        assert capsys.readouterr() == ("web       | one\nmy-worker | two\n", "system    | three\n")

    def test_time_precedes_each_line_on_request(self, capsys: pytest.CaptureFixture[str]) -> None:
        screen = Screen(["web"], log_dir=None, on_reader_gone=pytest.fail, timestamps=True)
        screen.output("web")("one", "stdout")
        screen.console.info("two")
        out, err = capsys.readouterr()
        assert re.fullmatch(r"\d\d:\d\d:\d\d web    \| one\n", out)
        assert re.fullmatch(r"\d\d:\d\d:\d\d system \| two\n", err)

    def test_colours_end_with_the_line_and_carriage_return_repeats_the_prefix(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        screen = Screen(["web"], log_dir=None, on_reader_gone=pytest.fail)
        screen.output("web")("\x1b[31mred", "stdout")
        screen.output("web")("10%\r20%", "stdout")
        assert capsys.readouterr().out == "web    | \x1b[31mred\x1b[0m\nweb    | 10%\rweb    | 20%\n"

    @pytest.mark.parametrize(
        ("line", "shown"),
        [
            ("a\tb \u2713", "a\tb \u2713"),
            ("\x1b[38;5;2mgreen", "\x1b[38;5;2mgreen\x1b[0m"),
            ("\x1b]0;a title\x07text", "text"),
            ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\x1b[1A\x1b[2Koverwritten", "overwritten"),
            ("\x1b[?1049h\x1b[2J\x1b[H\x1bc\x1b(0full", "full"),
            ("\x9b2Jc1", "c1"),
            ("\x1b\x1b[2J[2J", r"\x1b[2J"),
            ("\x1b]52;c;aGk=", r"\x1b]52;c;aGk="),
            ("a\x08b\x0bc\u2028d", r"a\x08b\x0bc\u2028d"),
            ("one\r\x1b[1Atwo", "one\rweb    | two"),
        ],
    )
    def test_a_process_cannot_control_the_terminal(
        self, capsys: pytest.CaptureFixture[str], line: str, shown: str
    ) -> None:
        Screen(["web"], log_dir=None, on_reader_gone=pytest.fail).output("web")(line, "stdout")
        assert capsys.readouterr().out == f"web    | {shown}\n"

    def test_a_message_cannot_control_the_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        Screen(["web"], log_dir=None, on_reader_gone=pytest.fail).console.info("one\x1b[2J\x1bx\x85two\r\n  three\n")
        assert capsys.readouterr().err == "system | one\\x85two\nsystem |   three\n"

    def test_names_have_colours_at_a_terminal_unless_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for wanted in (True, False):
            monkeypatch.setenv("TERM", "xterm")
            monkeypatch.setenv("NO_COLOR", "" if wanted else "1")
            monkeypatch.setattr(sys, "stdout", stream := FakeTerminal())
            screen = Screen(["web", "api"], log_dir=None, on_reader_gone=pytest.fail)
            screen.output("web")("a", "stdout")
            screen.output("api")("b", "stdout")
            coloured = "\x1b[36mweb    |\x1b[0m a\n\x1b[33mapi    |\x1b[0m b\n"
            assert stream.getvalue() == (coloured if wanted else "web    | a\napi    | b\n")

    def test_lines_go_to_files_as_they_were_written(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for _ in range(2):
            with Screen(["web", "api"], log_dir=tmp_path / "a" / "log", on_reader_gone=pytest.fail) as screen:
                screen.output("web")("\x1b[31mhöhe", "stdout")
        assert (tmp_path / "a" / "log" / "web.log").read_text() == "\x1b[31mhöhe\n" * 2
        assert (tmp_path / "a" / "log" / "api.log").read_text() == ""
        assert "höhe" in capsys.readouterr().out

    def test_files_that_cannot_be_written_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "web.log").mkdir()
        with (
            pytest.raises(UsageError, match=r"--log-dir .*web\.log: Is a directory"),
            Screen(["api", "web"], log_dir=tmp_path, on_reader_gone=pytest.fail),
        ):
            pass

    def test_full_disk_ends_nothing_and_is_reported_once(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "web.log").symlink_to("/dev/full")
        with Screen(["web"], log_dir=tmp_path, on_reader_gone=pytest.fail) as screen:
            screen.output("web")("one", "stdout")
            screen.output("web")("two", "stdout")
        shown, said = capsys.readouterr()
        assert shown == "web    | one\nweb    | two\n"
        assert (
            said == f"system | {tmp_path}/web.log: No space left on device; log lines of web are lost (reported once)\n"
        )

    def test_own_output_file_never_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with io.FileIO("/dev/full", "w") as full:
            monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(full, write_through=True))
            Screen(["web"], log_dir=None, on_reader_gone=pytest.fail).output("web")("one", "stdout")

    def test_gone_reader_is_reported_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[None] = []
        with (tmp_path / "file").open("w") as file:
            stream = Deaf()
            monkeypatch.setattr(stream, "fileno", file.fileno)
            monkeypatch.setattr(sys, "stdout", stream)
            screen = Screen(["web"], log_dir=None, on_reader_gone=lambda: calls.append(None))
            screen.output("web")("a", "stdout")
        assert calls == [None]
        assert not screen.is_read

    def test_unknown_character_loses_no_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = io.TextIOWrapper(raw := io.BytesIO(), "ascii")
        monkeypatch.setattr(sys, "stdout", stream)
        Screen(["web"], log_dir=None, on_reader_gone=pytest.fail).output("web")("höhe", "stdout")
        assert raw.getvalue() == b"web    | h?he\n"
