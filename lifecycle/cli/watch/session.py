"""What happens to a watched command: changes, webhooks and words at the prompt, and what each leads to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lifecycle.cli.failures import ConfigError
from lifecycle.cli.variables import read_env
from lifecycle.cli.watch.contents import Contents
from lifecycle.cli.watch.syntax import broken_files
from lifecycle.cli.watch.words import changed
from lifecycle.control import FileBatch, merge_files

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping
    from pathlib import Path
    from signal import Signals

    from lifecycle.cli.messages import Voice
    from lifecycle.cli.watch.rules import PathRules
    from lifecycle.cli.watch.settings import Settings
    from lifecycle.control import ReloadEvent, WebhookEvent
    from lifecycle.events import Change
    from lifecycle.handlers import SuspendHandler

__all__ = ["Session"]


class Restartable(Protocol):
    """What is asked of `Generations`."""

    @property
    def alive(self) -> bool:
        """Whether there is a process that goes on."""
        ...

    def note(self, changes: Mapping[Path, Change]) -> None:
        """Remember for the next start."""
        ...

    def change(self, why: str) -> None:
        """Restart, as the policy allows."""
        ...

    def restart(self, why: str) -> None:
        """Restart in any case."""
        ...

    def signal(self, signum: Signals, why: str) -> None:
        """Send a signal."""
        ...


@dataclass(slots=True)
class _Waiting:
    """What came while it was held."""

    batch: FileBatch = field(default_factory=lambda: FileBatch({}))
    #: The last request from outside; empty without one.
    asked: str = ""


class Session:
    """The handlers of a watched command; each decides, says so, and leaves the doing to the generations.

    ``python`` says which interpreter runs the command, where that is known.
    """

    def __init__(
        self,
        settings: Settings,
        rules: PathRules,
        generations: Restartable,
        voice: Voice,
        *,
        python: str | None,
        suspender: SuspendHandler | None = None,
    ) -> None:
        self._settings = settings
        self._rules = rules
        self._generations = generations
        self._voice = voice
        self._suspender = suspender
        self._python = python
        self._contents = Contents()
        # What changed, and why a restart was asked for, since `hold`; None: it is not held.
        self._waiting: _Waiting | None = None
        # Files that could not be compiled when they changed; looked at again with every change.
        self._broken: frozenset[Path] = frozenset()

    def learn(self) -> AsyncGenerator[int]:
        """Read what the watched files hold, so that a touch of one is known for what it is; yields now and then."""
        return self._contents.learn(self._rules.roots, lambda path: self._rules.action(path) != "ignore")

    async def files(self, batch: FileBatch) -> None:
        """Files changed: signal, restart, or keep what runs because a file is broken."""
        if self._waiting is not None:
            self._waiting.batch = merge_files(self._waiting.batch, batch)
            return
        changes = await self._changes(batch)
        action = self._rules.strongest(changes)
        if action == "ignore":
            return
        why = changed(changes, self._rules.name)
        if action == "reload":
            self._generations.signal(self._settings.reload_signal, why)
            return
        self._generations.note(changes)
        if not await self._is_broken(changes, why):
            self._generations.change(why)

    async def webhook(self, event: WebhookEvent) -> None:
        """Somebody who knows the secret asks for it."""
        why = f"webhook: {event.method} {event.path}"
        if self._waiting is None:
            await self._as_a_change(why)
        else:
            self._waiting.asked = why
            self._voice.say(f"{why}; waits for release")

    async def reload(self, _: ReloadEvent) -> None:
        """Do what a change would."""
        await self._as_a_change("reload")

    async def restart(self, _: object) -> None:
        """Stop the command and start it anew, also one that is suspended or that a change would only signal."""
        self._generations.restart("restart")
        if self._suspender is not None:
            await self._suspender.resume()

    async def _changes(self, batch: FileBatch) -> dict[Path, Change]:
        """Those that count."""
        counting: dict[Path, Change] = {
            path: change for path, change in batch.changes.items() if self._rules.action(path) != "ignore"
        }
        return await self._contents.changed(counting)

    def hold(self, _: object) -> None:
        """Let what changes, and who asks from outside, wait; the command goes on."""
        if self._waiting is None:
            self._waiting = _Waiting()
        self._voice.say("held; what changes waits for release")

    async def release(self, _: object) -> None:
        """Act on what waited, all at once."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            self._voice.say("it is not held")
            return
        self._voice.say("released")
        if waiting.asked:
            changes = await self._changes(waiting.batch)
            self._generations.note(changes)
            await self._as_a_change(waiting.asked, changes)
        else:
            await self.files(waiting.batch)

    @property
    def held(self) -> bool:
        """Whether changes wait for `release`."""
        return self._waiting is not None

    async def _as_a_change(self, why: str, changes: Collection[Path] = ()) -> None:
        """A file that is known to be broken keeps the old process also from whoever asks from outside."""
        if self._settings.change == "reload":
            self._generations.signal(self._settings.reload_signal, why)
        elif not await self._is_broken(changes, why):
            self._generations.change(why)

    async def _is_broken(self, changes: Collection[Path], why: str) -> bool:
        """Whether a start would fail for what is known to be wrong; shows what it is."""
        if not self._settings.check:
            return False
        wrong = [*await self._syntax_errors(changes), *self._mistakes_in_env()]
        if not wrong:
            return False
        kept = "; the old process goes on" if self._generations.alive else "; not started"
        self._voice.bad("\n".join([why + kept, *wrong]))
        return True

    async def _syntax_errors(self, changes: Collection[Path]) -> Collection[str]:
        """What is wrong with changed files, and with those that were broken before."""
        suspects = sorted({*changes, *self._broken})
        if self._python is None or not suspects:
            return ()
        broken = await broken_files(self._python, suspects)
        self._broken = frozenset(broken)
        return broken.values()

    def _mistakes_in_env(self) -> list[str]:
        """The first line of ``--env-file`` that cannot be read."""
        try:
            if self._settings.env_file is not None:
                read_env(self._settings.env_file)
        except ConfigError as error:
            return [str(error)]
        return []
