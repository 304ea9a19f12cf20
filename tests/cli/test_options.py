"""The command line and the table in pyproject.toml produce the same settings, and errors name the option."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path

import pytest

from lifecycle.cli.app import parse
from lifecycle.cli.options import Address, Glob, Rule, SignalMap
from lifecycle.cli.output import ConfigError, UsageError
from lifecycle.cli.watch.settings import Settings, find_table, watch_settings


def settings(*argv: str, here: Path | None = None) -> Settings:
    return watch_settings(vars(parse(["watch", *argv])), find_table(here) if here else {})


def configure(directory: Path, keys: str) -> Path:
    text = "[tool.lifecycle.watch]\n" + textwrap.dedent(keys)
    (directory / "pyproject.toml").write_text(text)
    return directory


def test_only_a_command_is_required() -> None:
    assert settings("--", "python", "app.py") == Settings(command=("python", "app.py"))


def test_every_option_can_be_typed() -> None:
    line = (
        "src lib --ext py,.toml --ext html --include data/** --ignore build/ --no-gitignore --on *.html=reload "
        "--on a=b=restart --wait 0 --busy queue --restart on-failure --ready port:8000 "
        "--start-timeout 60 --postpone --poll 2 --clear --env-file .env --shell "
        "--signal USR1 --stop-signal SIGINT --stop-timeout 3 --webhook [::1]:0 --secret-env SECRET "
        "--prompt --no-check --delay-run 1 --timeout 9 --map-signal USR1:HUP --map-signal USR2: --workdir lib "
        "-E A=b=c --env D= -q --bell --notify --color never "
        "-F filters --ignore-file skip --fs-events added,deleted"
    )
    assert settings(*line.split(), "--", "make --x") == Settings(
        command=("make --x",),
        paths=(Path("src"), Path("lib")),
        ext=("py", "toml", "html"),
        include=(Glob("data/**"),),
        ignore=(Glob("build/"),),
        gitignore=False,
        on=(Rule(Glob("*.html"), "reload"), Rule(Glob("a=b"), "restart")),
        wait=0.0,
        busy="queue",
        restart="on_failure",
        ready="port:8000",
        start_timeout=60.0,
        postpone=True,
        poll=2.0,
        clear=True,
        env_file=Path(".env"),
        shell=True,
        signal=signal.SIGUSR1,
        stop_signal=signal.SIGINT,
        stop_timeout=3.0,
        webhook=Address("::1", 0),
        secret_env="SECRET",
        prompt=True,
        check=False,
        delay_run=1.0,
        timeout=9.0,
        map_signal=(SignalMap(signal.SIGUSR1, signal.SIGHUP), SignalMap(signal.SIGUSR2, None)),
        workdir=Path("lib"),
        env=(("A", "b=c"), ("D", "")),
        quiet=True,
        bell=True,
        notify=True,
        color="never",
        filter_file=(Path("filters"),),
        ignore_file=(Path("skip"),),
        fs_events=("added", "deleted"),
    )


def test_directory_without_those_below_replaces_the_default_path(tmp_path: Path) -> None:
    seen = settings("-W", "src", "-W", "lib", "-v", "--", "true")
    assert (seen.paths, seen.watch_non_recursive, seen.verbose) == ((), (Path("src"), Path("lib")), True)
    assert settings("tests", "-W", "src", "--", "true").paths == (Path("tests"),)
    here = configure(tmp_path, "watch-non-recursive = 'src'\nfilter-file = ['a', 'b']")
    found = settings("--", "true", here=here)
    assert (found.paths, found.watch_non_recursive) == ((), (here / "src",))
    assert found.filter_file == (here / "a", here / "b")


def test_short_options_mean_what_they_mean_to_watchexec_and_nodemon() -> None:
    short = "-w src -w lib -e py -i build/ -d 50ms -s HUP -r -n -c -p"
    long = "src lib --ext py --ignore build/ --wait 0.05 --signal HUP --busy restart --no-shell --clear --postpone"
    assert settings(*short.split(), "--", "true") == settings(*long.split(), "--", "true")


def test_other_names_of_an_option_set_it() -> None:
    assert settings("--on-change-only", "--debounce", "2s", "--watch", "src", "--", "true") == Settings(
        command=("true",), postpone=True, wait=2.0, paths=(Path("src"),)
    )


def test_short_option_overrides_the_file(tmp_path: Path) -> None:
    here = configure(tmp_path, "busy = 'queue'\nshell = true")
    seen = settings("-r", "-n", "--", "true", here=here)
    assert (seen.busy, seen.shell) == ("restart", False)


def test_addresses_in_the_file_are_addresses(tmp_path: Path) -> None:
    """A plain tuple is equal to an address, but has no host and port."""
    keys = 'command = "make"\nsocket = "127.0.0.1:8000"\nwebhook = "127.0.0.1:9000"\n'
    found = settings(here=configure(tmp_path, keys))
    assert found.socket is not None
    assert found.webhook is not None
    assert (found.socket.host, found.socket.port, found.webhook.port) == ("127.0.0.1", 8000, 9000)


def test_every_option_can_stand_in_the_file(tmp_path: Path) -> None:
    here = configure(
        tmp_path,
        """
        command = ["make", "-j"]
        paths = ["src"]
        ext = ["py", "toml,html"]
        include = "data/**"
        ignore = ["build/"]
        no-gitignore = true
        on = ["*.html=reload"]
        wait = 1
        busy = "queue"
        restart = "on-failure"
        ready = "port:8000"
        start-timeout = 60
        postpone = true
        poll = 2
        clear = true
        env-file = ".env"
        shell = false
        signal = "USR1"
        stop-signal = "INT"
        stop-timeout = 3
        webhook = "127.0.0.1:9000"
        secret-env = "SECRET"
        prompt = true
        no-check = true
        delay-run = 1
        timeout = 9
        exit-on-error = false
        map-signal = "USR1:HUP"
        workdir = "lib"
        env = ["A=b=c", "D="]
        color = "always"
        """,
    )
    assert settings(here=here) == Settings(
        command=("make", "-j"),
        paths=(here / "src",),
        ext=("py", "toml", "html"),
        include=(Glob("data/**", here),),
        ignore=(Glob("build/", here),),
        gitignore=False,
        on=(Rule(Glob("*.html", here), "reload"),),
        wait=1.0,
        busy="queue",
        restart="on_failure",
        ready="port:8000",
        start_timeout=60.0,
        postpone=True,
        poll=2.0,
        clear=True,
        env_file=here / ".env",
        shell=False,
        signal=signal.SIGUSR1,
        stop_signal=signal.SIGINT,
        stop_timeout=3.0,
        webhook=Address("127.0.0.1", 9000),
        secret_env="SECRET",
        prompt=True,
        check=False,
        delay_run=1.0,
        timeout=9.0,
        map_signal=(SignalMap(signal.SIGUSR1, signal.SIGHUP),),
        workdir=here / "lib",
        env=(("A", "b=c"), ("D", "")),
        color="always",
    )


def test_the_command_line_wins(tmp_path: Path) -> None:
    here = configure(tmp_path, 'command = "make all"\next = "py"\nprompt = false\nwait = 9')
    seen = settings("--ext", "html", "--prompt", "--wait", "0", "--", "true", here=here)

    assert (seen.ext, seen.prompt, seen.wait, seen.command) == (("html",), True, 0.0, ("true",))


def test_the_nearest_file_with_the_table_counts(tmp_path: Path) -> None:
    """A sub-project's file without the table does not hide the file above it."""
    configure(tmp_path, 'command = "true"')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'a'\n")

    assert find_table(below) == {"command": "true"}


@pytest.mark.parametrize(
    ("keys", "command"),
    [
        ("command = \"make -j 'a b'\"", ("make", "-j", "a b")),
        ("command = \"a 'b c' | d\"\nshell = true", ("a 'b c' | d",)),
    ],
)
def test_a_command_in_one_text_is_split_unless_a_shell_reads_it(
    tmp_path: Path, keys: str, command: tuple[str, ...]
) -> None:
    assert settings(here=configure(tmp_path, keys)).command == command


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--poll", "0", "--", "true"], "seconds above zero"),
        (["--wait", "-1", "--", "true"], "expected seconds"),
        (["--wait", "nan", "--", "true"], "expected seconds"),
        (["--wait", "5sm", "--", "true"], "expected seconds"),
        (["--wait", "ms", "--", "true"], "expected seconds"),
        (["--poll", "inf", "--", "true"], "expected seconds"),
        (["--busy", "wait", "--", "true"], "'wait': expected restart, queue or drop"),
        (["--restart", "sometimes", "--", "true"], "expected never, on-failure or always"),
        (["--ready", "soon", "--", "true"], "'soon': give 'port:N'"),
        (["--ready", "port:0", "--", "true"], "or 'notify' (N must be a number from 1 to 65535)"),
        (["--start-timeout", "0", "--", "true"], "seconds above zero"),
        (["--on", "*.html", "--", "true"], "expected GLOB=restart"),
        (["--on", "*.html=bark", "--", "true"], "expected GLOB=restart"),
        (["--on", "[a=restart", "--", "true"], "position 3"),
        (["--ignore", "a[", "--", "true"], "not closed"),
        (
            ["--ignore", "src/{name}", "--", "true"],
            "a glob for paths cannot contain names such as 'name' at position 4",
        ),
        (["--include", "", "--", "true"], "not a glob"),
        (["--ext", "py,,toml", "--", "true"], "py,toml"),
        (["--ext", "*.py", "--", "true"], "py,toml"),
        (["--signal", "FOO", "--", "true"], "'FOO': expected a signal"),
        (["--signal", "999", "--", "true"], "expected a signal"),
        (["--webhook", "9000", "--", "true"], "HOST:PORT"),
        (["--webhook", "::1:9000", "--", "true"], "HOST:PORT"),
        (["--webhook", "localhost:70000", "--", "true"], "65535"),
        (["--secret-env", "two words", "--", "true"], "name of an environment variable"),
        (["--env-file", "", "--", "true"], "expected a path"),
        (["-E", "A", "--", "true"], "'A': expected KEY=VALUE"),
        (["-E", "a b=c", "--", "true"], "expected KEY=VALUE"),
        (["--map-signal", "USR1", "--", "true"], "expected FROM:TO"),
        (["--map-signal", "TERM:INT", "--", "true"], "SIGTERM stops the command with --stop-signal"),
        (["--map-signal", "HUP:USR1", "--", "true"], "SIGHUP acts like a change"),
        (["--map-signal", "KILL:INT", "--", "true"], "SIGKILL cannot be mapped"),
        (["--fs-events", "create", "--", "true"], "expected added, modified or deleted"),
        (["--color", "red", "--", "true"], "expected auto, always or never"),
        (["--exte", "py", "--", "true"], "--exte"),
    ],
)
def test_a_wrong_value_ends_with_status_2(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        settings(*argv)

    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "no command to run"),
        (["src", "--"], "no command to run"),
        (["--secret-env", "S", "--", "true"], "has no effect without --webhook"),
        (["-q", "-v", "--", "true"], "--quiet hides what --verbose prints"),
        (["--exit-on-error", "--restart", "always", "--", "true"], "remove one of them"),
        (["--webhook", "0.0.0.0:9000", "--", "true"], "can be reached from other machines"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(argv: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        settings(*argv)


def test_a_key_may_have_the_underscores_that_python_needs(tmp_path: Path) -> None:
    configure(tmp_path, "stop_timeout = 1\nno_gitignore = true\nrestart = 'on_failure'")
    assert find_table(tmp_path) == {"stop_timeout": 1.0, "gitignore": False, "restart": "on_failure"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("exts = 'py'", "exts is not known; did you mean ext?"),
        ("stop_timout = 1", "did you mean stop-timeout?"),
        ("stop_timeout = 1\nstop-timeout = 1", "sets the same value as another key"),
        ("zzz = 1", "known: bell, "),
        ("ext = 1", "ext = 1 is neither a string nor a list of strings"),
        ("ext = ['py', 1]", "neither a string nor a list of strings"),
        ("poll = '1'", 'poll = "1" is not a number'),
        ("poll = true", "poll = true is not a number"),
        ("poll = -1", "poll = -1: expected seconds above zero"),
        ("clear = 'yes'", 'clear = "yes" is not a boolean'),
        ("clear = 1", "is not a boolean"),
        ("busy = 'wait'", 'busy = "wait": expected restart, queue or drop'),
        ("busy = ['queue']", "is not a string"),
        ("restart = true", "restart = true is not a string"),
        ("ready = 8000", "ready = 8000 is not a string"),
        ("on = ['*.html']", 'on = "*.html": expected GLOB=restart'),
        ('command = "echo \'a"', "close the quote"),
        ("paths = []", "paths = [] leaves nothing to watch"),
        ("command = 1", "neither a string nor a list of strings"),
        ("gitignore = true\nno-gitignore = true", "sets the same value as another key"),
    ],
)
def test_a_mistake_in_the_file_names_file_key_and_what_is_accepted(tmp_path: Path, keys: str, said: str) -> None:
    configure(tmp_path, keys)
    with pytest.raises(ConfigError) as raised:
        find_table(tmp_path)

    assert said in str(raised.value)
    assert str(tmp_path / "pyproject.toml") in str(raised.value)
    assert raised.value.status == 3


@pytest.mark.parametrize("text", ["[tool", "x = \x00", "[tool.lifecycle]\nwatch = 1\n"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"pyproject\.toml"):
        find_table(tmp_path)
