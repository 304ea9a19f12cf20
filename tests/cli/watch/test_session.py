"""What a change, a webhook or a word at the prompt leads to."""

from __future__ import annotations

import io
import signal
import sys
from typing import TYPE_CHECKING, Any

from lifecycle.cli import options
from lifecycle.cli.output import Voice
from lifecycle.cli.paths import PathRules
from lifecycle.cli.watch.session import Session
from lifecycle.cli.watch.settings import Settings
from lifecycle.control import FileBatch, ReloadEvent, WebhookEvent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lifecycle.events import Change


class FakeGenerations:
    """Writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.noted: list[str] = []
        self.alive = True

    def note(self, changes: Mapping[Path, Change]) -> None:
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
        self.generations = FakeGenerations()
        rules = PathRules(settings, here)
        self.session = Session(settings, rules, self.generations, Voice(stream=self.said), python=sys.executable)

    async def edit(self, **files: str) -> None:
        changes: dict[Path, Change] = {}
        for name, text in files.items():
            path = self.here / name.replace("_", ".")
            path.write_text(text)
            changes[path] = "modified"
        await self.session.files(FileBatch(changes))


async def test_a_change_asks_for_a_restart_and_says_why(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.edit(a_py="x = 1", b_html="")
    assert rig.generations.asked == [("change", "changed: a.py, b.html")]
    assert rig.generations.noted == ["a.py", "b.html"]


async def test_only_paths_that_count_are_named(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ext=("py",))
    await rig.edit(a_py="", b_html="")
    await rig.edit(b_html="")
    assert rig.generations.asked == [("change", "changed: a.py")]
    assert rig.generations.noted == ["a.py"]


async def test_a_rule_can_send_a_signal_in_place_of_a_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path, on=("*.html=reload",))
    await rig.edit(b_html="1")
    await rig.edit(a_py="", b_html="2")
    assert rig.generations.asked == [
        ("signal", signal.SIGHUP, "changed: b.html"),
        ("change", "changed: a.py, b.html"),
    ]


async def test_a_signal_takes_the_place_of_every_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path, signal=signal.SIGUSR1)
    await rig.edit(a_py="")
    await rig.session.reload(ReloadEvent())
    await rig.session.webhook(WebhookEvent("POST", "/deploy", {}, {}, b"", "7"))
    await rig.session.restart(None)
    assert rig.generations.asked == [
        ("signal", signal.SIGUSR1, "changed: a.py"),
        ("signal", signal.SIGUSR1, "reload"),
        ("signal", signal.SIGUSR1, "webhook: POST /deploy"),
        ("restart", "restart"),
    ]


class TestBrokenFiles:
    async def test_the_old_process_is_kept_and_the_error_shown(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        await rig.edit(a_py="def f(:")
        assert rig.generations.asked == []
        assert "changed: a.py; the old process goes on" in rig.said.getvalue()
        assert f'File "{tmp_path / "a.py"}", line 1' in rig.said.getvalue()
        assert "SyntaxError" in rig.said.getvalue()

    async def test_what_was_broken_keeps_it_until_mended(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        await rig.edit(a_py="def f(:")
        await rig.edit(b_py="x = 1")
        assert rig.generations.asked == []

        await rig.edit(a_py="x = 1")
        assert rig.generations.asked == [("change", "changed: a.py")]
        assert rig.generations.noted == ["a.py", "b.py", "a.py"]

    async def test_what_was_broken_may_be_deleted(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        await rig.edit(a_py="def f(:")
        (tmp_path / "a.py").unlink()
        await rig.session.files(FileBatch({tmp_path / "a.py": "deleted"}))
        assert rig.generations.asked == [("change", "changed: a.py (deleted)")]

    async def test_nothing_is_started_where_nothing_runs(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.generations.alive = False
        await rig.edit(a_py="def f(:")
        assert "not started" in rig.said.getvalue()

    async def test_the_check_can_be_left_out(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path, check=False)
        await rig.edit(a_py="def f(:")
        assert rig.generations.asked == [("change", "changed: a.py")]

    async def test_a_mistake_in_the_env_file_keeps_it_too(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path, env_file=tmp_path / "vars.env")
        await rig.edit(vars_env="WHO you\n")
        assert rig.generations.asked == []
        assert "vars.env:1: 'WHO you' cannot be read; write KEY=VALUE" in rig.said.getvalue()
        await rig.edit(vars_env="WHO=you\n")
        assert rig.generations.asked == [("change", "changed: vars.env")]

    async def test_a_restart_by_hand_is_not_checked(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        await rig.edit(a_py="def f(:")
        await rig.session.restart(None)
        assert rig.generations.asked == [("restart", "restart")]


async def test_a_file_that_is_broken_keeps_the_old_process_from_a_webhook_too(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.edit(app_py="def broken(:")
    await rig.session.webhook(WebhookEvent("POST", "/deploy", {}, {}, b"", "7"))

    assert rig.generations.asked == []

    (tmp_path / "app.py").write_text("mended = True")
    await rig.session.webhook(WebhookEvent("POST", "/deploy", {}, {}, b"", "8"))

    assert rig.generations.asked == [("change", "webhook: POST /deploy")]


class TestPause:
    async def test_what_changes_meanwhile_leads_to_one_run(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.session.hold(None)
        await rig.edit(a_py="x = 1")
        await rig.edit(b_py="x = 1")
        assert (rig.generations.asked, rig.generations.noted, rig.session.held) == ([], [], True)
        assert "held; what changes waits for release" in rig.said.getvalue()

        await rig.session.release(None)
        assert rig.generations.asked == [("change", "changed: a.py, b.py")]
        assert not rig.session.held
        await rig.edit(c_py="x = 1")
        assert rig.generations.noted == ["a.py", "b.py", "c.py"]

    async def test_what_is_as_it_was_leads_to_none(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        await rig.edit(a_py="x = 1")
        rig.generations.asked.clear()
        rig.session.hold(None)
        await rig.edit(a_py="x = 2")
        await rig.edit(a_py="x = 1")
        await rig.session.release(None)
        assert rig.generations.asked == []

    async def test_a_second_hold_forgets_nothing_and_a_second_release_says_so(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.session.hold(None)
        await rig.edit(a_py="x = 1")
        rig.session.hold(None)
        await rig.session.release(None)
        await rig.session.release(None)
        assert rig.generations.asked == [("change", "changed: a.py")]
        assert "it is not held" in rig.said.getvalue()

    async def test_requests_from_outside_wait_and_those_by_hand_do_not(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.session.hold(None)
        await rig.edit(a_py="x = 1")
        for number in "78":
            await rig.session.webhook(WebhookEvent("POST", "/deploy", {}, {}, b"", number))
        assert rig.generations.asked == []
        await rig.session.reload(ReloadEvent())
        await rig.session.restart(None)
        assert rig.generations.asked == [("change", "reload"), ("restart", "restart")]

        rig.generations.asked.clear()
        await rig.session.release(None)
        assert rig.generations.asked == [("change", "webhook: POST /deploy")]
        assert rig.generations.noted == ["a.py"]

    async def test_a_file_that_was_broken_meanwhile_keeps_the_old_process(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.session.hold(None)
        await rig.edit(a_py="def f(:")
        await rig.session.webhook(WebhookEvent("POST", "/deploy", {}, {}, b"", "7"))
        await rig.session.release(None)
        assert rig.generations.asked == []
        assert "the old process goes on" in rig.said.getvalue()
