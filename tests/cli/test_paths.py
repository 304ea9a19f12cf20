"""How `lifecycle watch` reacts to a changed path."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.cli import options
from lifecycle.cli.options import Glob, Rule
from lifecycle.cli.output import ConfigError
from lifecycle.cli.paths import PathRules
from lifecycle.cli.watch.settings import Settings

if TYPE_CHECKING:
    from lifecycle.events import Change


def rules(here: Path, **given: Any) -> PathRules:
    on = tuple(rule for each in given.pop("on", ()) for rule in options.rules(each))
    given |= {key: tuple(map(Glob, given.get(key, ()))) for key in ("include", "ignore")}
    return PathRules(Settings(command=("true",), on=on, **given), here)


@pytest.mark.parametrize(
    ("glob", "path", "matches", "covers"),
    [
        ("*.py", "app.py", True, True),
        ("*.py", "src/deep/app.py", True, True),
        ("*.py", "app.pyc", False, False),
        ("src/*.py", "src/app.py", True, True),
        ("src/*.py", "src/deep/app.py", False, False),
        ("src/**/*.py", "src/deep/app.py", True, True),
        ("src/**/*.py", "src/app.py", True, True),
        ("./src/*.py", "src/app.py", True, True),
        ("/app.py", "app.py", True, True),
        ("/app.py", "src/app.py", False, False),
        ("build", "build", True, True),
        ("build", "build/a/b.js", False, True),
        ("build", "lib/build/x", False, True),
        ("build/", "build/a/b.js", True, True),
        ("build/", "build", False, False),
        ("build/", "builder/x", False, False),
        ("a/b", "a/b/c", False, True),
        ("a/b", "x/a/b", False, False),
        ("[ab].py", "a.py", True, True),
        ("?.py", "ab.py", False, False),
        (r"\*.py", "*.py", True, True),
        (r"\*.py", "a.py", False, False),
    ],
)
def test_globs_follow_gitignore_rules(glob: str, path: str, matches: bool, covers: bool) -> None:
    assert (Glob(glob).matches(path), Glob(glob).covers(path)) == (matches, covers)


def test_paths_out_of_reach_have_an_action() -> None:
    """Files are considered deleted if, for example, their directory loses its x permission."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name).resolve()
        (here / "shut").mkdir()
        (here / "shut" / "app.py").touch()
        (here / ".gitignore").write_text("*.log")
        decide = rules(here, paths=(here,), ignore=("*.txt",))
        assert decide.action(here / "shut" / "app.py") == "restart"
        (here / "shut").chmod(0o444)
        as_root = os.geteuid() == 0
        if as_root:
            here.chmod(0o755)
            os.seteuid(65534)
        try:
            assert decide.action(here / "shut" / "app.py") == "restart"
            assert decide.action(here / "shut" / "app.log") == "ignore"
        finally:
            if as_root:
                os.seteuid(0)
            (here / "shut").chmod(0o755)


def test_everything_restarts_by_default(tmp_path: Path) -> None:
    assert rules(tmp_path).action(tmp_path / "deep" / "any.thing") == "restart"


@pytest.mark.parametrize(
    ("path", "action"),
    [
        ("app.py", "restart"),
        ("app.txt", "ignore"),
        ("data/a.csv", "restart"),
        ("x.tar.gz", "restart"),
        ("py", "ignore"),
    ],
)
def test_ext_and_include_combine(tmp_path: Path, path: str, action: str) -> None:
    assert rules(tmp_path, ext=("py", "tar.gz"), include=("data/*.csv",)).action(tmp_path / path) == action


@pytest.mark.parametrize(
    ("path", "action"),
    [
        ("a/x.html", "reload"),
        ("app.py", "restart"),
        ("gen/app.py", "ignore"),
        ("gen/x.html", "reload"),
        ("tmp/x.html", "reload"),
        ("tmp/app.py", "ignore"),
    ],
)
def test_the_first_rule_wins_and_beats_the_lists(tmp_path: Path, path: str, action: str) -> None:
    seen = rules(tmp_path, ext=("py",), on=("*.html=reload", "gen/*=ignore", "gen/app.py=restart"), ignore=("tmp",))
    assert seen.action(tmp_path / path) == action


def test_with_a_signal_a_change_reloads_unless_a_rule_restarts(tmp_path: Path) -> None:
    seen = rules(tmp_path, signal=options.signal("usr1"), on=("*.toml=restart",))
    assert seen.action(tmp_path / "a.py") == "reload"
    assert seen.action(tmp_path / "a.toml") == "restart"


class TestGitIgnore:
    def test_ignored_directories_are_pruned_unless_a_rule_names_a_path_below_them(self, tmp_path: Path) -> None:
        (tmp_path / ".git").mkdir()
        (tmp_path / ".gitignore").write_text("dist\nlogs/\n*.d\n")
        for name in ("dist", "logs", "out.d", "src", "tmp", "env"):
            (tmp_path / name).mkdir()
        seen = rules(tmp_path, on=("logs/main.log=restart", "app.js=restart"), ignore=("tmp", "env/"))
        pruned = [path.name for path in sorted(tmp_path.iterdir()) if path.is_dir() and seen.prunes(path)]
        assert pruned == ["dist", "env", "out.d", "tmp"]
        assert not PathRules(Settings(command=("true",), gitignore=False), tmp_path).prunes(tmp_path / "dist")
        env = Settings(command=("true",), env_file=Path("dist/.env"))
        assert not PathRules(env, tmp_path).prunes(tmp_path / "dist")

    @pytest.fixture
    def repo(self, tmp_path: Path) -> Path:
        (tmp_path / ".git" / "info").mkdir(parents=True)
        (tmp_path / ".git" / "info" / "exclude").write_text("secret.*\n")
        (tmp_path / ".gitignore").write_text("*.log\n/dist/\n.env\nvendor\n!keep.log\n*.js\n")
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / ".gitignore").write_text("!special.log\nlocal.txt\n")
        return tmp_path

    @pytest.mark.parametrize(
        ("path", "ignored"),
        [
            ("a.log", True),
            ("keep.log", False),
            ("sub/a.log", True),
            ("sub/special.log", False),
            ("special.log", True),
            ("sub/local.txt", True),
            ("local.txt", False),
            ("dist/app.py", True),
            ("sub/dist/app.py", False),
            ("dist", False),
            ("vendor", True),
            ("vendor/keep.log", True),
            ("secret.key", True),
            ("app.py", False),
        ],
    )
    def test_files_ignored_by_git_do_not_count(self, repo: Path, path: str, ignored: bool) -> None:
        assert (rules(repo).action(repo / path) == "ignore") is ignored

    @pytest.mark.parametrize(
        ("lines", "ignored"),
        [
            ("!*\n/*\n", True),
            ("/*\n!*\n", False),
            ("*\n!sub/\n", True),
            ("sub/\n!sub\n", False),
            ("/sub/\n!/\n", True),
            ("*\n!*/**\n", True),
            ("sub/**\n", True),
            ("sub/**\n!sub/app.py\n", False),
        ],
    )
    def test_the_last_rule_for_a_file_or_its_directory_decides(self, repo: Path, lines: str, ignored: bool) -> None:
        (repo / ".gitignore").write_text(lines)
        assert (rules(repo).action(repo / "sub" / "app.py") == "ignore") is ignored

    def test_many_stars_do_not_take_exponential_time(self, repo: Path) -> None:
        (repo / ".gitignore").write_text("*" * 60 + "x\n")
        assert rules(repo).action(repo / "a_name_that_is_long_and_ends_in.y") == "restart"
        assert rules(repo).action(repo / "ends_in.x") == "ignore"

    def test_watched_file_counts_when_included(self, repo: Path) -> None:
        asked = PathRules(Settings(command=("true",), gitignore=False), repo)
        assert asked.action(repo / "a.log") == "restart"

    def test_a_rule_that_names_a_file_beats_git_and_one_with_wildcards_does_not(self, repo: Path) -> None:
        seen = rules(repo, on=("*.js=restart", ".env=restart"))
        assert seen.action(repo / ".env") == "restart"
        assert seen.action(repo / "out.js") == "ignore"

    def test_the_env_file_counts(self, repo: Path) -> None:
        assert rules(repo, env_file=Path(".env"), ext=("py",)).action(repo / ".env") == "restart"

    def test_a_changed_gitignore_is_read_again(self, repo: Path) -> None:
        seen = rules(repo)
        assert seen.action(repo / "new.txt") == "restart"
        (repo / ".gitignore").write_text("new.txt\n")
        assert seen.action(repo / "new.txt") == "ignore"
        (repo / ".gitignore").unlink()
        assert seen.action(repo / "new.txt") == "restart"

    def test_the_top_of_the_repository_is_found_from_below(self, repo: Path) -> None:
        assert rules(repo / "sub").action(repo / "sub" / "a.log") == "ignore"

    def test_a_directory_watched_by_name_counts_though_git_ignores_it(self, repo: Path) -> None:
        (repo / "dist").mkdir()
        seen = rules(repo, paths=(Path("dist"),))
        assert seen.action(repo / "dist" / "app.py") == "restart"

    def test_a_file_watched_by_name_counts_though_git_ignores_it(self, repo: Path) -> None:
        (repo / ".env").touch()
        assert rules(repo, paths=(Path(".env"),)).action(repo / ".env") == "restart"

    def test_rules_that_cannot_be_read_ignore_nothing(self, repo: Path) -> None:
        (repo / ".gitignore").unlink()
        (repo / ".gitignore").mkdir()
        assert rules(repo).action(repo / "a.log") == "restart"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "home"
    (directory / ".config" / "git").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(directory))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return directory


class TestOtherIgnoreFiles:
    @pytest.fixture
    def repo(self, tmp_path: Path) -> Path:
        (tmp_path / "repo" / ".git").mkdir(parents=True)
        return tmp_path / "repo"

    def test_a_file_named_ignore_takes_precedence_over_gitignore(self, repo: Path) -> None:
        (repo / ".gitignore").write_text("*.log\n")
        (repo / ".ignore").write_text("!keep.log\n*.tmp\n")
        seen = rules(repo)
        assert [seen.action(repo / name) for name in ("a.log", "keep.log", "a.tmp")] == ["ignore", "restart", "ignore"]
        assert rules(repo, gitignore=False).action(repo / "a.tmp") == "restart"

    def test_ignore_file_of_the_user_counts_unless_the_repository_overrides_it(self, repo: Path, home: Path) -> None:
        (home / ".config" / "git" / "ignore").write_text("*.swo\n*.orig\n")
        (repo / ".gitignore").write_text("!*.orig\n")
        seen = rules(repo)
        assert [seen.action(repo / name) for name in ("a.swo", "a.orig")] == ["ignore", "restart"]

    @pytest.mark.parametrize("place", [".gitconfig", ".config/git/config"])
    @pytest.mark.parametrize("value", ["~/mine", '"~/mine"'])
    def test_ignore_file_of_the_user_may_be_configured(self, repo: Path, home: Path, place: str, value: str) -> None:
        text = f"[user]\n\tname = x\n[Core]\n\teditor = vi\n\texcludesFile = {value}  \n[alias]\n\tst = status\n"
        (home / place).write_text(text)
        (home / "mine").write_text("*.swo\n")
        assert rules(repo).action(repo / "a.swo") == "ignore"

    @pytest.mark.parametrize("line", ["[z-a]", "x\\", "[[:alpha:]]*"])
    def test_a_line_that_cannot_be_parsed_is_named_and_the_others_apply(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str
    ) -> None:
        (tmp_path / ".gitignore").write_text(f"*.log\n{line}\n*.tmp\n")
        seen = rules(tmp_path)
        assert [seen.action(tmp_path / name) for name in ("a.log", "b.tmp", "z")] == ["ignore", "ignore", "restart"]
        assert f"cannot parse line 2 of {tmp_path / '.gitignore'}" in caplog.text

    def test_only_newlines_end_a_line_and_a_byte_order_mark_is_skipped(self, tmp_path: Path) -> None:
        (tmp_path / ".gitignore").write_bytes(b"\xef\xbb\xbfa\r\nb\x0cc\n[[]d\n")
        seen = rules(tmp_path)
        ignored = [name for name in ("a", "b", "c", "b\x0cc", "[d") if seen.action(tmp_path / name) == "ignore"]
        assert ignored == ["a", "b\x0cc", "[d"]

    def test_a_list_of_paths_to_ignore_applies_without_git(self, tmp_path: Path) -> None:
        (tmp_path / "here").mkdir()
        (tmp_path / "lib").mkdir()
        (tmp_path / "skip").write_text("# generated\nbuild/\n*.log\n!keep.log\n")
        given = {"ignore_file": (Path("../skip"),), "gitignore": False, "paths": (Path(), Path("../lib"))}
        seen = rules(tmp_path / "here", **given)
        for name in ("build/x", "a.log", "sub/build/x"):
            assert seen.action(tmp_path / "here" / name) == seen.action(tmp_path / "lib" / name) == "ignore"
        assert seen.action(tmp_path / "here" / "keep.log") == "restart"

    def test_filters_in_a_file_are_included(self, tmp_path: Path) -> None:
        (tmp_path / "filters").write_text("# sources\n\n*.py\nsrc/**/*.html\n")
        seen = rules(tmp_path, filter_file=(tmp_path / "filters",))
        found = [seen.action(tmp_path / name) for name in ("a/b.py", "src/x/y.html", "y.html", "a.txt")]
        assert found == ["restart", "restart", "ignore", "ignore"]

    def test_a_wrong_filter_names_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "filters").write_text("a[\n")
        with pytest.raises(ConfigError, match=r"filters: .*not closed"):
            rules(tmp_path, filter_file=(tmp_path / "filters",))


def test_files_of_a_directory_watched_without_those_below(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "a.py").touch()
    (tmp_path / "src" / "deep" / "b.py").touch()
    seen = rules(tmp_path, paths=(Path("lib"),), watch_non_recursive=(Path("src"),))
    assert seen.files == (tmp_path / "lib", tmp_path / "src" / "a.py")


def test_outside_a_repository_the_file_of_the_watched_directory_counts(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log\n")
    assert rules(tmp_path).action(tmp_path / "a.log") == "ignore"


def test_names_are_relative_to_here_else_to_the_watched_directory(tmp_path: Path) -> None:
    here, lib = tmp_path / "here", tmp_path / "lib"
    here.mkdir()
    lib.mkdir()
    seen = rules(here, paths=(Path(), Path("../lib")))
    assert seen.name(here / "a" / "b.py") == "a/b.py"
    assert seen.name(lib / "c.py") == "c.py"
    assert seen.name(Path("/elsewhere/d.py")) == "elsewhere/d.py"


def test_file_of_own_output_never_counts(tmp_path: Path) -> None:
    log, other = tmp_path / "log", tmp_path / "other"
    log.touch()
    other.touch()
    settings = Settings(command=("true",), on=options.rules("log=restart"))
    status = log.stat()
    decided = PathRules(settings, tmp_path, outputs=[(status.st_dev, status.st_ino)])
    assert (decided.action(log), decided.action(other)) == ("ignore", "restart")


def test_globs_of_a_file_start_at_its_directory_and_typed_ones_here(tmp_path: Path) -> None:
    here = tmp_path / "sub"
    settings = Settings(
        command=("true",),
        paths=(tmp_path,),
        on=(
            Rule(Glob("sub/*.html"), "restart"),
            Rule(Glob("sub/*.html", tmp_path), "reload"),
            Rule(Glob("*.css", tmp_path), "reload"),
        ),
        include=(Glob("lib/*.py", tmp_path), Glob("own/*.py")),
        ignore=(Glob("lib/gen/", tmp_path),),
    )
    seen = PathRules(settings, here)
    actions = {
        name: seen.action(tmp_path / name)
        for name in ("sub/a.html", "sub/sub/a.html", "x/a.css", "lib/a.py", "lib/gen/a.css", "own/a.py", "sub/own/a.py")
    }

    assert actions == {
        "sub/a.html": "reload",
        "sub/sub/a.html": "restart",
        "x/a.css": "reload",
        "lib/a.py": "restart",
        "lib/gen/a.css": "reload",
        "own/a.py": "restart",
        "sub/own/a.py": "restart",
    }


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"a.py": "modified"}, "changed: a.py"),
        ({"a.py": "added", "b.py": "deleted"}, "changed: a.py (added), b.py (deleted)"),
        (dict.fromkeys("abcde", "modified"), "changed: a, b, c (+2)"),
        ({"\x1b]0;a\x07\n[lifecycle] stopped": "modified"}, r"changed: \x1b]0;a\x07\n[lifecycle] stopped"),
    ],
)
def test_a_few_names_are_shown_and_the_others_counted(names: dict[str, Change], said: str) -> None:
    here = Path("/here")
    assert rules(here).describe({here / name: change for name, change in names.items()}) == said
