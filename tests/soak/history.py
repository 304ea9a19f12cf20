"""The requests to the program, its notes from all runs, and any contradictions between them.

This module checks only the notes. The module `quiet_checks` has the checks that need the running program.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from tests.soak.flow_jobs import end_of_deploy
from tests.soak.notes import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["History"]

#: The maximum number of request numbers in a message.
_SHOWN = 5


class History:
    """Reads new notes as the program writes them."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._at = 0
        #: Violations, as text.
        self.wrong: list[str] = []
        #: The number of lines read, by kind of note.
        self.lines: Counter[str] = Counter()
        # The webhooks that were accepted with 202, by path.
        self.accepted: dict[str, set[int]] = defaultdict(set)
        # Webhooks that were rejected.
        self.refused: set[int] = set()
        # The numbers of events sent over the bus.
        self.on_the_bus: set[int] = set()
        # Notes about handled requests, by request number.
        self._handled: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._deployed: dict[int, str] = {}
        self._posted: set[int] = set()
        self._done: set[int] = set()
        self._bus: set[int] = set()
        # The run in which each effect happened, by the effect's key.
        self._effects: dict[str, int] = {}
        # Flows that have announced that they finished.
        self._over: set[str] = set()
        self._calls: set[int] = set()
        self._calls_of = 0
        #: File contents in the last run, by name.
        self.files: dict[str, str | None] = {}
        #: The result of the health check in the last run.
        self.health: bool | None = None
        #: The configuration that was loaded in the last run.
        self.config: int | None = None
        #: The number of greetings in the last run.
        self.hellos = 0
        #: The number of each loop's iterations in the last run.
        self.rounds: dict[str, int] = {}
        self.sample: tuple[int, int] = (0, 0)
        self.objects: int | None = None
        #: The runs that recorded a clean exit.
        self.ended: set[int] = set()

    def begin(self) -> None:
        """Start a new run, and discard data that concerns only the previous run."""
        self.read()
        self.files, self.health, self.config, self.hellos, self.rounds = {}, None, None, 0, {}
        self.sample, self.objects = (0, 0), None

    def read(self) -> None:
        """Read the new notes."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._at += len(line)
                life, kind, *what = json.loads(line)
                self.lines[kind] += 1
                getattr(self, f"_{kind}_noted")(life, *what)

    def lacking(self) -> Iterator[str]:
        """Yield accepted requests that were not handled."""
        accepted = set().union(*self.accepted.values())
        yield from _some("accepted and not handled", accepted - self._handled.keys())
        yield from _some("posted and not done", self._posted - self._done)
        yield from _some("jobs that were not posted", self.accepted["job"] - self._posted)
        yield from _some("deploys without an end", self.accepted["deploy"] - self._deployed.keys())
        yield from _some("on the bus and not handled", self.on_the_bus - self._bus)
        # A request may have been accepted even though its sender received only the rejection of a second attempt.
        yield from _some("refused and handled", self.refused & self._handled.keys())

    # -- the notes ---------------------------------------------------------------------------------------------------

    def _wrong_noted(self, life: int, what: str) -> None:
        self.wrong.append(f"life {life}: {what}")

    def _handled_noted(self, life: int, number: int, attempt: int) -> None:
        before = self._handled[number]
        if before and before[-1][0] == life:
            self.wrong.append(f"the webhook {number} was handled twice in life {life}: {before}, {attempt}")
        before.append((life, attempt))

    def _deployed_noted(self, life: int, number: int, state: str) -> None:
        if state != end_of_deploy(number):
            self.wrong.append(f"life {life}: the deploy {number} came to {state}")
        self._deployed[number] = state
        self._over.add(f"deploy-{number}")

    def _posted_noted(self, _: int, number: int) -> None:
        self._posted.add(number)

    def _done_noted(self, _: int, number: int, __: str) -> None:
        self._done.add(number)
        self._over.add(f"job-{number}")

    def _effect_noted(self, life: int, flow: str, key: str) -> None:
        if flow in self._over:
            self.wrong.append(f"life {life}: {key} was done after the end of its flow had been told")
        if self._effects.get(key) == life:
            self.wrong.append(f"life {life}: {key} was done twice without a kill between")
        self._effects[key] = life

    def _reverted_noted(self, life: int, flow: str) -> None:
        if end_of_deploy(int(flow.removeprefix("deploy-"))) != "REVERTED":
            self.wrong.append(f"life {life}: {flow} was undone")

    def _bus_noted(self, _: int, number: int, __: int) -> None:
        self._bus.add(number)

    def _call_noted(self, life: int, number: int) -> None:
        if life != self._calls_of:
            self._calls, self._calls_of = set(), life
        if number in self._calls and number > 0:
            self.wrong.append(f"life {life}: the call {number} was carried out twice")
        self._calls.add(number)

    def _file_noted(self, _: int, name: str, content: str | None) -> None:
        self.files[name] = content

    def _health_noted(self, _: int, healthy: bool) -> None:
        self.health = healthy

    def _config_noted(self, _: int, number: int) -> None:
        self.config = number

    def _hello_noted(self, _: int) -> None:
        self.hellos += 1

    def _rounds_noted(self, _: int, rounds: dict[str, int]) -> None:
        self.rounds = rounds

    def _sample_noted(self, _: int, tasks: int, threads: int, objects: int | None) -> None:
        self.sample = tasks, threads
        self.objects = self.objects if objects is None else objects

    def _ended_noted(self, life: int, begun: int, outcomes: dict[str, int]) -> None:
        self.ended.add(life)
        if not sum(outcomes.values()) <= begun:
            self.wrong.append(f"life {life}: {begun} calls came to {outcomes}")


def _some(what: str, numbers: set[Any]) -> Iterator[str]:
    if numbers:
        yield f"{what}: {len(numbers)}, such as {sorted(numbers)[:_SHOWN]}"
