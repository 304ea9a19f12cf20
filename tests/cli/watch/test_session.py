"""Reactions to changes, webhooks and commands."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.cli import options
from lifecycle.cli.output import Console
from lifecycle.cli.paths import PathRules
from lifecycle.cli.watch.runner import Runner
from lifecycle.cli.watch.session import ChangedFiles, Session, handle_changes, watching
from lifecycle.cli.watch.settings import Settings
from lifecycle.control import FileBatch, ReloadEvent, Router, WebhookEvent
from lifecycle.errors import Dropped, SourceFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from lifecycle.events import Change


class FakeRunner(Runner):
    """A runner that records its requests."""

    alive = True

    def __init__(self) -> None:  # no process is running
        self.asked: list[tuple[Any, ...]] = []
        self.noted: list[str] = []

    def add_changes(self, changes: Mapping[Path, Change]) -> None:
        self.noted += [path.name for path in changes]

    def change(self, why: str) -> None:
        self.asked.append(("change", why))

    def restart(self, why: str) -> None:
        self.asked.append(("restart", why))

    def signal(self, signum: signal.Signals, why: str) -> None:
        self.asked.append(("signal", signum, why))


class Rig:
    def __init__(self, here: Path, **given: Any) -> None:
        on = tuple(rule for each in given.pop("on", ()) for rule in options.rules(each))
        settings = Settings(command=("true",), on=on, **given)
        self.here = here
        self.said = io.StringIO()
        self.runner = FakeRunner()
        rules = PathRules(settings, here)
        self.session = Session(
            settings, rules, self.runner, Console(stream=self.said, quiet=settings.quiet), interpreter=sys.executable
        )

    async def edit(self, **files: str) -> None:
        changes: dict[Path, Change] = {}
        for name, text in files.items():
            path = self.here / name.replace("_", ".")
            path.write_text(text)
            changes[path] = "modified"
        await self.report(changes)

    async def report(self, changes: dict[Path, Change]) -> None:
        counting = self.session.react(changes)
        if counting:
            await self.session.files(ChangedFiles(FileBatch({path: changes[path] for path in counting}), counting))


async def test_a_change_requests_a_restart_with_a_reason(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.edit(a_py="x = 1", b_html="")
    assert rig.runner.asked == [("change", "changed: a.py, b.html")]
    assert rig.runner.noted == ["a.py", "b.html"]


async def test_only_paths_that_count_are_named(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ext=("py",))
    await rig.edit(a_py="", b_html="")
    await rig.edit(b_html="")
    assert rig.runner.asked == [("change", "changed: a.py")]
    assert rig.runner.noted == ["a.py"]


@pytest.mark.parametrize(
    ("changed", "requests"),
    [
        (["a_txt"], []),
        (["a_txt", "a_html"], ["signal"]),
        (["a_txt", "a_html", "a_py"], ["change"]),
    ],
)
async def test_a_restart_covers_a_reload(tmp_path: Path, changed: list[str], requests: list[str]) -> None:
    rig = Rig(tmp_path, ext=("py",), on=("*.html=reload",))
    await rig.edit(**dict.fromkeys(changed, ""))
    assert [what for what, *_ in rig.runner.asked] == requests


async def test_a_rule_can_send_a_signal_in_place_of_a_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path, on=("*.html=reload",))
    await rig.edit(b_html="1")
    await rig.edit(a_py="", b_html="2")
    assert rig.runner.asked == [
        ("signal", signal.SIGHUP, "changed: b.html"),
        ("change", "changed: a.py, b.html"),
    ]


async def test_signal_replaces_every_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path, signal=signal.SIGUSR1)
    await rig.edit(a_py="")
    await rig.session.reload(ReloadEvent())
    await rig.session.webhook(WebhookEvent("POST", "/deploy", {}, {}, b"", "7"))
    await rig.session.restart(None)
    assert rig.runner.asked == [
        ("signal", signal.SIGUSR1, "changed: a.py"),
        ("signal", signal.SIGUSR1, "reload requested"),
        ("signal", signal.SIGUSR1, "webhook: POST /deploy"),
        ("restart", "restart requested"),
    ]


class TestBrokenFiles:
    async def test_the_old_process_is_kept_and_the_error_shown(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        await rig.edit(a_py="def f(:")
        assert rig.runner.asked == []
        assert "changed: a.py; the old process keeps running" in rig.said.getvalue()
        assert f'File "{tmp_path / "a.py"}", line 1' in rig.said.getvalue()
        assert "SyntaxError" in rig.said.getvalue()

    async def test_broken_file_keeps_the_old_process_until_fixed(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        await rig.edit(a_py="def f(:")
        await rig.edit(b_py="x = 1")
        assert rig.runner.asked == []

        await rig.edit(a_py="x = 1")
        assert rig.runner.asked == [("change", "changed: a.py")]
        assert rig.runner.noted == ["a.py", "b.py", "a.py"]

    async def test_broken_file_may_be_deleted(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        await rig.edit(a_py="def f(:")
        (tmp_path / "a.py").unlink()
        await rig.report({tmp_path / "a.py": "deleted"})
        assert rig.runner.asked == [("change", "changed: a.py (deleted)")]

    async def test_nothing_is_started_where_nothing_runs(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.runner.alive = False
        await rig.edit(a_py="def f(:")
        assert "not started" in rig.said.getvalue()

    async def test_check_can_be_disabled(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path, check=False)
        await rig.edit(a_py="def f(:")
        assert rig.runner.asked == [("change", "changed: a.py")]

    async def test_broken_env_file_keeps_the_old_process(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path, env_file=tmp_path / "vars.env")
        await rig.edit(vars_env="WHO you\n")
        assert rig.runner.asked == []
        assert "vars.env:1: 'WHO you' cannot be read; write KEY=VALUE" in rig.said.getvalue()
        await rig.edit(vars_env="WHO=you\n")
        assert rig.runner.asked == [("change", "changed: vars.env")]

    async def test_restart_command_is_refused_until_the_file_is_fixed(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        await rig.edit(a_py="def f(:")
        with pytest.raises(Dropped):
            await rig.session.restart(None)
        assert rig.runner.asked == []
        assert "restart requested; the old process keeps running" in rig.said.getvalue()

        (tmp_path / "a.py").write_text("x = 1")
        await rig.session.restart(None)
        assert rig.runner.asked == [("restart", "restart requested")]

    async def test_restart_command_checks_files_that_only_sent_a_signal(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path, signal=signal.SIGUSR1)
        await rig.edit(a_py="def f(:")
        rig.runner.asked.clear()
        with pytest.raises(Dropped):
            await rig.session.restart(None)
        assert rig.runner.asked == []

    async def test_restart_command_checks_held_changes(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.session.hold(None)
        await rig.edit(a_py="def f(:")
        with pytest.raises(Dropped):
            await rig.session.restart(None)
        assert rig.runner.asked == []


async def test_a_file_that_is_broken_keeps_the_old_process_from_a_webhook_too(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.edit(app_py="def broken(:")
    await rig.session.webhook(WebhookEvent("POST", "/deploy", {}, {}, b"", "7"))

    assert rig.runner.asked == []

    (tmp_path / "app.py").write_text("mended = True")
    await rig.session.webhook(WebhookEvent("POST", "/deploy", {}, {}, b"", "8"))

    assert rig.runner.asked == [("change", "webhook: POST /deploy")]


class TestPause:
    async def test_changes_while_held_lead_to_one_run(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.session.hold(None)
        await rig.edit(a_py="x = 1")
        await rig.edit(b_py="x = 1")
        assert (rig.runner.asked, rig.runner.noted, rig.session.held) == ([], [], True)
        assert "changes are held until release" in rig.said.getvalue()

        await rig.session.release(None)
        assert rig.runner.asked == [("change", "changed: a.py, b.py")]
        assert not rig.session.held
        await rig.edit(c_py="x = 1")
        assert rig.runner.noted == ["a.py", "b.py", "c.py"]

    async def test_commands_are_answered_even_if_quiet(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path, quiet=True)
        rig.session.hold(None)
        await rig.session.release(None)
        assert "changes are held until release" in rig.said.getvalue()
        assert "changes are no longer held" in rig.said.getvalue()

    async def test_unchanged_files_lead_to_no_run(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        await rig.edit(a_py="x = 1")
        rig.runner.asked.clear()
        rig.session.hold(None)
        await rig.edit(a_py="x = 2")
        await rig.edit(a_py="x = 1")
        await rig.session.release(None)
        assert rig.runner.asked == []

    async def test_second_hold_keeps_changes_and_second_release_is_reported(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.session.hold(None)
        await rig.edit(a_py="x = 1")
        rig.session.hold(None)
        await rig.session.release(None)
        await rig.session.release(None)
        assert rig.runner.asked == [("change", "changed: a.py")]
        assert "no changes are held" in rig.said.getvalue()

    async def test_webhooks_wait_while_held_and_manual_commands_do_not(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.session.hold(None)
        await rig.edit(a_py="x = 1")
        for number in "78":
            await rig.session.webhook(WebhookEvent("POST", "/deploy", {}, {}, b"", number))
        assert rig.runner.asked == []
        await rig.session.reload(ReloadEvent())
        await rig.session.restart(None)
        assert rig.runner.asked == [("change", "reload requested"), ("restart", "restart requested")]

        rig.runner.asked.clear()
        await rig.session.release(None)
        assert rig.runner.asked == [("change", "webhook: POST /deploy")]
        assert rig.runner.noted == ["a.py"]

    async def test_a_file_that_was_broken_meanwhile_keeps_the_old_process(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.session.hold(None)
        await rig.edit(a_py="def f(:")
        await rig.session.webhook(WebhookEvent("POST", "/deploy", {}, {}, b"", "7"))
        await rig.session.release(None)
        assert rig.runner.asked == []
        assert "the old process keeps running" in rig.said.getvalue()


async def test_a_file_that_changes_after_each_start_is_named_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for number in range(6):
        await rig.edit(app_log=f"{number}")
    assert rig.said.getvalue().count("add --ignore app.log") == 1


async def test_different_files_in_a_row_are_not_reported(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for number in range(6):
        await rig.edit(**{f"a{number}_log": f"{number}"})
    assert "--ignore" not in rig.said.getvalue()


async def test_no_watches_remain_if_a_path_does_not_exist(tmp_path: Path) -> None:
    async def handler(_: object) -> None: ...

    async def reading() -> AsyncGenerator[int]:
        yield 0

    router = Router()
    sources = handle_changes(
        router,
        handler,
        [tmp_path],
        lambda changes: dict.fromkeys(changes, "restart"),
        prunes=lambda _: False,
        wait=0.05,
        flat=[tmp_path / "missing"],
    )
    with pytest.raises(SourceFailed, match="missing"):
        async with watching(router, sources, reading(), asyncio.Event()):
            pass
    # Otherwise, the fixture `no_leaks` fails this test because of the open descriptor.
