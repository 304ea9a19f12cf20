"""``--log-format``: a command's messages as text, or as JSON with one object per line."""

from __future__ import annotations

import io
import json
import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.cli import main
from lifecycle.cli.app import parse
from lifecycle.cli.logs import JsonConsole, console_for, logging_to, print_failure, program_logging
from lifecycle.cli.output import Console
from lifecycle.cli.up.screen import Screen
from lifecycle.cli.watch.settings import watch_settings

if TYPE_CHECKING:
    from collections.abc import Iterator


def parsed_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@contextmanager
def alone() -> Iterator[None]:
    """Remove the test runner's handlers, because a separate program would not have them."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_every_message_is_a_json_object() -> None:
    stream = io.StringIO()
    console = JsonConsole(stream=stream)
    console.info("one\ntwo")
    console.success("up")
    console.warning("hm")
    console.error('no "disk" 😀')
    lines = parsed_lines(stream.getvalue())
    assert [(line["level"], line["message"]) for line in lines] == [
        ("info", "one\ntwo"),
        ("info", "up"),
        ("warning", "hm"),
        ("error", 'no "disk" 😀'),
    ]
    assert {(line["logger"], *sorted(line)) for line in lines} == {
        ("lifecycle.cli", "level", "logger", "message", "time")
    }


def test_library_messages_are_json_objects_with_the_error() -> None:
    stream = io.StringIO()
    log = logging.getLogger("lifecycle.control")
    with logging_to(JsonConsole(stream=stream)):
        log.info("not this")
        log.error("it failed: %s", "x", exc_info=ValueError("no"))
    [line] = parsed_lines(stream.getvalue())
    assert (line["logger"], line["level"], line["message"]) == ("lifecycle.control", "error", "it failed: x")
    assert "ValueError: no" in line["exception"]


def test_program_without_logging_shows_library_warnings() -> None:
    stream = io.StringIO()
    with alone(), program_logging(Console(stream=stream)):
        logging.getLogger("lifecycle.control").info("not this")
        logging.getLogger("lifecycle.control").warning("a source failed")
    assert stream.getvalue() == "[lifecycle] a source failed\n"


def test_the_end_of_stderr_is_left_out_only_where_the_output_is_shown() -> None:
    program, commands = io.StringIO(), io.StringIO()
    for shown, stream in ((program_logging, program), (logging_to, commands)):
        with alone(), shown(Console(stream=stream)):
            logging.getLogger("lifecycle.workers").warning("'web' failed; the end of its stderr:\nno table")
    assert program.getvalue() == "[lifecycle] 'web' failed; the end of its stderr:\n[lifecycle] no table\n"
    assert commands.getvalue() == "[lifecycle] 'web' failed\n"


@pytest.mark.parametrize("name", ["", "lifecycle"])
def test_program_with_own_logging_is_not_changed(name: str) -> None:
    stream, own = io.StringIO(), io.StringIO()
    logger, handler = logging.getLogger(name), logging.StreamHandler(own)
    with alone(), program_logging(Console(stream=stream)):
        logger.addHandler(handler)
        try:
            logging.getLogger("lifecycle.control").warning("a source failed")
        finally:
            logger.removeHandler(handler)
    assert (stream.getvalue(), own.getvalue()) == ("", "a source failed\n")


def test_json_format_logs_everything_and_restores_logging() -> None:
    stream = io.StringIO()
    with alone():
        with program_logging(JsonConsole(stream=stream)):
            logging.basicConfig(format="mine: %(message)s")
            logging.getLogger("shop").info("order %d", 7, extra={"customer": "bob"})
            logging.getLogger("lifecycle.control").debug("not this")
        assert logging.getLogger().handlers == []
        assert logging.getLogger().level == logging.WARNING
    assert [(line["logger"], line["message"], line["customer"]) for line in parsed_lines(stream.getvalue())] == [
        ("shop", "order 7", "bob")
    ]


def test_an_error_of_the_program_is_one_object() -> None:
    stream = io.StringIO()
    print_failure(JsonConsole(stream=stream), ValueError("no"))
    [line] = parsed_lines(stream.getvalue())
    assert (line["level"], line["message"]) == ("error", "no")
    assert "ValueError: no" in line["exception"]


def test_lines_of_processes_are_objects_that_say_whose_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen(["web"], log_dir=None, on_reader_gone=pytest.fail, log_format="json") as screen:
        screen.output("web")('GET "/" \x1b[31mred\r', "stderr")
        screen.console.info("started web")
    shown = capsys.readouterr()
    [line], [said] = parsed_lines(shown.out), parsed_lines(shown.err)
    assert (line["worker"], line["stream"], line["message"]) == ("web", "stderr", 'GET "/" \x1b[31mred\r')
    assert said["message"] == "started web"


def test_a_mistake_on_the_command_line_is_an_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--log-format", "json", "nowhere"]) == 2
    [line] = parsed_lines(capsys.readouterr().err)
    assert line["level"] == "error"
    assert "MODULE:ATTRIBUTE" in line["message"]


def test_text_is_the_default_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert type(console_for(None)) is Console
    assert type(console_for("text")) is Console
    assert main(["run", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("[lifecycle] ")


@pytest.mark.parametrize("argv", [["run", "a:b"], ["up"], ["watch", "--", "x"]])
def test_three_commands_have_log_format(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command, *rest = argv
    assert parse([command, "--log-format", "json", *rest]).log_format == "json"
    with pytest.raises(SystemExit):
        parse([command, "--log-format", "xml", *rest])
    assert "expected text or json" in capsys.readouterr().err


def test_watch_reads_log_format_from_the_file() -> None:
    assert watch_settings({}, {"command": "x", "log_format": "json"}).log_format == "json"
    assert watch_settings({"log_format": "text"}, {"command": "x", "log_format": "json"}).log_format == "text"


def test_closed_standard_stream_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    JsonConsole().info("without a stream")
