"""Random router programs, compared with their recorded outcomes.

A seed determines a program: its routes, handlers, sources and actions. `playing` runs it in virtual time. The file
`tests/data/router_programs.json` has six digits for each section of the outcome of each seed, and a few outcomes in
full. From the root of the repository::

    python -m tests.control.programs                         # compare with the recorded outcomes
    python -m tests.control.programs --record                # record them again
    python -m tests.control.programs --show 7                # print a program and its outcome
    python -m tests.control.programs --against ../main --seeds 100000

The last command runs the same programs with the code of another checkout, and prints the first differences.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.control.playing import Outcome

__all__ = ["Action", "Program", "Registered", "differences", "main", "recorded", "report", "write"]

RECORDED = Path(__file__).parents[1] / "data" / "router_programs.json"

#: The number of recorded seeds, and the number of outcomes that are recorded in full.
_SEEDS, _IN_FULL = 1000, 30

#: The maximum size of an outcome that is recorded in full, in characters.
_READABLE = 3000

_TOPICS = ("a", "a/b", "a/c", "a/b/c", "device/1/temp", "device/2/temp", "device/1/load", "job/x", "job/y", "job")

_PATTERNS = (
    *("a", "a/b", "a/c", "a/*", "*/b", "a/**", "**", "*", "?", "a/[bc]", "a/[!b]", "**/c", "a/*/c", "[aj]*/**"),
    *("device/{id}/temp", "device/{id}/{kind}", "device/{id}/*", "device/**", "device/1/*", "device/*/load"),
    *("job/{id}", "job/*", "job/x", "{id:**}", "job/**", "a/{id:**}"),
)

_COMMANDS = (
    *(("deploy", "site"), ("deploy", "site", "3"), ("deploy", "shop", "--force"), ("deploy",), ("deploy", "a", "b")),
    *(("say", "it"), ("say",), ("unknown", "x")),
)


# -- programs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Registered:
    """A handler, and the settings with which it is registered."""

    name: str
    pattern: str
    #: The steps of the handler. The data of the event selects one of these scripts.
    scripts: tuple[tuple[tuple[Any, ...], ...], ...]
    is_async: bool = True
    params: tuple[str, ...] = ()
    #: wait, max_wait, whether the events are merged, and the name of a key.
    debounce: tuple[float, float | None, bool, str | None] | None = None
    busy: str = "queue"
    concurrency: int = 1
    #: None, ``share NAME`` or ``key NAME``.
    lane: str | None = None
    middleware: tuple[str, ...] = ()
    is_observer: bool = False

    @property
    def is_ordered(self) -> bool:
        """True if the handler gets one event after the other."""
        return self.concurrency == 1 and (self.lane is None or not self.lane.startswith("key"))

    @property
    def stream(self) -> str:
        """The name under which the handler's calls are noted: that of a shared lane, or its own."""
        return self.lane if self.lane is not None and self.lane.startswith("share") else self.name


@dataclass(frozen=True)
class Action:
    """Something that happens at a certain time."""

    at: float
    kind: str
    label: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Program:
    """A router, and what happens to it."""

    seed: int
    buffer: int
    drain_timeout: float
    #: Whether receivers are connected to the hooks.
    is_hooked: bool
    use: tuple[str, ...]
    #: Whether the middleware of the router is registered before its routes.
    use_first: bool
    routes: tuple[Registered, ...]
    observers: tuple[Registered, ...]
    fallback: Registered | None
    #: Whether the commands of `playing` are registered.
    has_commands: bool
    #: The name and kind of each source, and its events: a pause before each, and its topic.
    sources: tuple[tuple[str, str, tuple[tuple[float, str], ...]], ...]
    actions: tuple[Action, ...]
    topics: tuple[str, ...] = field(default=_TOPICS)

    def __str__(self) -> str:
        """Return the program in many lines."""
        return pformat(self, width=120, sort_dicts=False)


def write(seed: int) -> Program:
    """Return the program of ``seed``."""
    return _Writer(seed).program()


class _Writer:
    """Chooses the parts of a program at random."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.topics = tuple(self.random.sample(_TOPICS, self.random.randint(2, 5)))
        # The shared lanes with a concurrency above 1, whose routes all need the same.
        self.concurrency = {name: self.random.choice((1, 1, 1, 2)) for name in ("share x", "share y")}
        self.concurrency |= {f"key {name}": self.random.choice((1, 2, 3)) for name in ("topic", "parity", "same")}
        self.is_debounced: set[str] = set()
        self.count = 0
        self.observed: list[str] = []
        self.labels: list[str] = []
        self.has_commands = False

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def seconds(self, most: float) -> float:
        """Return a time in microseconds, so that hardly any two things happen at the same time."""
        return self.random.randint(1, int(most * 1e6)) / 1e6

    def program(self) -> Program:
        choose = self.random.choice
        routes = tuple(self.route() for _ in range(self.random.randint(1, 6)))
        has_observers, self.has_commands = self.chance(0.3), self.chance(0.15)
        observers = tuple(self.observer() for _ in range(self.random.randint(1, 2))) if has_observers else ()
        sources = tuple(self.source(number) for number in range(choice_of(self.random, (0, 0, 0, 1, 1, 2))))
        return Program(
            self.seed,
            buffer=choose((0, 0, 1, 2, 3, 100)),
            drain_timeout=choose((0.0, 0.4, 2.5, 30.0)),
            is_hooked=self.chance(0.5),
            use=tuple(self.middleware() for _ in range(choose((0, 0, 0, 1, 1, 2)))),
            use_first=self.chance(0.5),
            routes=routes,
            observers=observers,
            fallback=self.handler("**", "fallback") if self.chance(0.4) else None,
            has_commands=self.has_commands,
            sources=sources,
            actions=tuple(sorted(self.actions(sources), key=lambda each: each.at)),
        )

    # -- handlers --------------------------------------------------------------------------------------------------

    def handler(self, pattern: str, kind: str, **settings: Any) -> Registered:
        """Return a handler with random scripts."""
        self.count += 1
        name = f"{kind}{self.count}"
        is_async = self.chance(0.85)
        scripts = tuple(self.script(is_async=is_async) for _ in range(self.random.randint(1, 3)))
        params: tuple[str, ...] = ()
        if is_async and self.chance(0.8):
            params = tuple(each for each in ("id", "kind") if f"{{{each}" in pattern)
        return Registered(name, pattern, scripts, is_async, params, is_observer=kind == "observer", **settings)

    def script(self, *, is_async: bool) -> tuple[tuple[Any, ...], ...]:
        steps: list[tuple[Any, ...]] = []
        if is_async:
            steps = [self.step() for _ in range(self.random.choice((0, 0, 1, 1, 1, 2, 2, 3)))]
        if self.chance(0.35):
            errors = ("ValueError", "NotHandled", "NotHandled", "NotHandled", "Dropped", "Refused", "UsageError")
            steps.append(("raise", self.random.choice((*errors, "CancelledError") if is_async else errors)))
        elif self.chance(0.3):
            steps.append(("return",))
        return tuple(steps)

    def step(self) -> tuple[Any, ...]:
        kind = self.random.choice(("sleep",) * 8 + ("resist", "emit", "emit", "emit and wait", "emit_nowait", "call"))
        return (kind, self.seconds(1.5) if kind in ("sleep", "resist") else self.topic())

    def topic(self) -> str:
        return self.random.choice(self.topics if self.chance(0.9) else _TOPICS)

    def settings(self) -> dict[str, Any]:
        """Return random settings of a route."""
        settings: dict[str, Any] = {}
        if self.chance(0.25):
            settings["busy"] = self.random.choice(("drop", "restart", "restart"))
        if self.chance(0.4):
            lane = self.random.choice(("share x", "share x", "share y", *("key topic", "key parity", "key same")))
            if self.chance(0.04):
                lane = "key broken"
            settings["lane"] = lane
            settings["concurrency"] = self.concurrency.get(lane, 1)
        if self.chance(0.2) and settings.get("lane") not in self.is_debounced:
            wait = self.seconds(1.2)
            settings["debounce"] = (
                wait,
                wait + self.seconds(1.0) if self.chance(0.4) else None,
                self.chance(0.5),
                choice_of(self.random, (None, None, "topic", "parity")),
            )
            self.is_debounced |= {settings["lane"]} if "lane" in settings else set()
        if ("lane" not in settings and self.chance(0.3)) or self.chance(0.02):
            settings["concurrency"] = self.random.randint(2, 3)
        if self.chance(0.3):
            settings["middleware"] = tuple(self.middleware() for _ in range(self.random.randint(1, 2)))
        return settings

    def route(self) -> Registered:
        return self.handler(self.random.choice(_PATTERNS), "h", **self.settings())

    def observer(self) -> Registered:
        settings = {name: value for name, value in self.settings().items() if name not in ("lane", "concurrency")}
        one = self.handler(self.random.choice(_PATTERNS), "observer", **settings)
        self.observed.append(one.name)
        return one

    def middleware(self) -> str:
        names = ("recover", "recover with", "once", "log", "around", "around", "around")
        return f"timeout {self.seconds(1.2)}" if self.chance(0.25) else self.random.choice(names)

    def source(self, number: int) -> tuple[str, str, tuple[tuple[float, str], ...]]:
        kind = "refusing" if self.chance(0.1) else self.random.choice(("iterate", "push", "failing"))
        events = tuple((self.seconds(1.5), self.topic()) for _ in range(self.random.randint(1, 5)))
        return f"s{number + 1}", kind, events

    # -- actions ---------------------------------------------------------------------------------------------------

    def actions(self, sources: Sequence[Any]) -> Iterator[Action]:
        yield Action(self.seconds(2.0) if self.chance(0.3) else 0.0, "run", "run")
        if self.chance(0.2):
            yield Action(self.seconds(2.0), "up", "up")
        at = 0.001
        for number in range(self.random.randint(4, 16)):
            at += self.seconds(0.8)
            yield self.action(at, f"e{number}", sources)
        yield Action(at + self.seconds(2.0), "probe", "probe")
        end = at + self.seconds(3.0)
        if self.chance(0.7):
            yield Action(end, "kill" if self.chance(0.15) else "stop", "stop")
            if self.chance(0.3):
                yield Action(end + self.seconds(4.0), "run", "run again")
                for number in range(3):
                    yield self.action(end + 4.0 + self.seconds(3.0), f"late{number}", sources)

    def action(self, at: float, label: str, sources: Sequence[Any]) -> Action:
        kinds = ("emit",) * 8 + ("burst",) * 4 + ("crowd",) * 3 + ("await", "cancel", "cancel", "subscribe")
        rare = ("probe", "explain", "remove", "replace", "replace", "register", "fallback", "hold", "release")
        kind = self.random.choice(kinds if self.chance(0.8) else (*rare, "observe", "unobserve"))
        if self.has_commands and self.chance(0.3):
            kind = "command"
        if kind in ("hold", "release") and not sources:
            kind = "emit"
        if kind in ("observe", "unobserve") and not self.observed:
            kind = "emit"
        if kind in ("await", "cancel") and not self.labels:
            kind = "emit"
        return Action(at, kind, label, self.arguments(kind, label, sources))

    def arguments(self, kind: str, label: str, sources: Sequence[Any]) -> tuple[Any, ...]:  # noqa: C901, PLR0911  # a table
        choose = self.random.choice
        if kind in ("emit", "burst", "crowd"):
            self.labels.append(label)
            how = choose(("emit", "emit and wait", "emit_nowait", "call"))
            return (self.topic(), how) if kind == "emit" else (self.topic(), how, self.random.randint(2, 5))
        if kind == "command":
            self.labels.append(label)
            return choose(_COMMANDS)
        if kind in ("await", "cancel"):
            return (choose(self.labels),)
        if kind == "subscribe":
            return choose((*_PATTERNS, "**", "a/**")), choose((1, 2, 100)), self.seconds(0.5), self.random.randint(1, 4)
        if kind in ("register", "replace"):
            return (self.route(),)
        if kind == "observe":
            return (self.observer(),)
        if kind == "unobserve":
            return (choose(self.observed),)
        if kind == "remove":
            return (choose(_PATTERNS),)
        if kind == "fallback":
            return (self.handler("**", "fallback"),)
        if kind in ("hold", "release"):
            return (choose(sources)[0],)
        return (self.topic(),) if kind == "explain" else ()


def choice_of(chosen: random.Random, values: Sequence[Any]) -> Any:
    """Choose one of ``values``, which may be of several types."""
    return chosen.choice(values)


# -- recorded outcomes ----------------------------------------------------------------------------------------------


def recorded() -> tuple[list[str], dict[int, Outcome]]:
    """Return the digests of each seed, and the outcomes that are recorded in full."""
    data = json.loads(RECORDED.read_text(encoding="utf-8"))
    return data["digests"], {int(seed): outcome for seed, outcome in data["in full"].items()}


def _record() -> None:
    from tests.control.playing import digests, play

    lines: list[str] = []
    full: dict[str, Outcome] = {}
    for seed in range(_SEEDS):
        outcome = play(write(seed))
        lines.append(digests(outcome))
        if len(full) < _IN_FULL and len(json.dumps(outcome)) < _READABLE:
            full[str(seed)] = outcome
    RECORDED.write_text(json.dumps({"digests": lines, "in full": full}, indent=0) + "\n", encoding="utf-8")
    print(f"{len(lines)} outcomes are recorded in {RECORDED}")


def differences(seeds: Sequence[int] | None = None) -> list[int]:
    """Play the recorded programs, and return the seeds whose outcomes differ."""
    from tests.control.playing import digests, play

    lines, _ = recorded()
    return [seed for seed in seeds or range(len(lines)) if digests(play(write(seed))) != lines[seed]]


def report(seed: int) -> str:
    """Return the program of ``seed``, and how its outcome differs from the recorded one."""
    from tests.control.playing import SECTIONS, digests, play

    lines, full = recorded()
    program = write(seed)
    outcome = play(program)
    pairs = zip(SECTIONS, lines[seed].split(), digests(outcome).split(), strict=True)
    text = [f"seed {seed}", str(program), "", f"different: {', '.join(name for name, old, new in pairs if old != new)}"]
    if seed in full:
        return "\n".join([*text, *_compared(full[seed], outcome)])
    show = f"python -m tests.control.programs --against CHECKOUT --first {seed} --seeds 1"
    return "\n".join([*text, *_told(outcome), f"the recorded outcome has digests only; for both, run: {show}"])


def _told(outcome: Outcome) -> Iterator[str]:
    for section, lines in outcome.items():
        yield f"--- {section}"
        yield from lines


def _compared(old: Outcome, new: Outcome) -> Iterator[str]:
    yield from difflib.unified_diff([*_told(old)], [*_told(new)], "recorded", "now", lineterm="", n=1000)


# -- the command ----------------------------------------------------------------------------------------------------


def _against(checkout: str, first: int, number: int, shown: int) -> int:
    """Compare the outcomes of ``number`` seeds with those of another checkout, in blocks."""
    from tests.control.playing import SECTIONS, play

    different, block = 0, 500
    for start in range(first, first + number, block):
        seeds = range(start, min(start + block, first + number))
        for seed, old in zip(seeds, _elsewhere(checkout, seeds), strict=True):
            new = play(write(seed))
            if old == new:
                continue
            different += 1
            print(f"seed {seed} differs in {', '.join(each for each in SECTIONS if old[each] != new[each])}")
            if different <= shown:
                print(write(seed), *_compared(old, new), "", sep="\n")
        print(f"{seeds.stop - first} programs, {different} different", flush=True)
    return 1 if different else 0


def _elsewhere(checkout: str, seeds: range) -> Iterator[Outcome]:
    command = [sys.executable, "-m", "tests.control.programs", "--print", f"{seeds.start}:{seeds.stop}"]
    environment = {**os.environ, "PYTHONPATH": checkout}
    done = subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    yield from map(json.loads, done.stdout.splitlines())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    from tests.control.playing import play

    parser = argparse.ArgumentParser("python -m tests.control.programs", description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="record the outcomes of the code of this checkout")
    parser.add_argument("--show", type=int, metavar="SEED", help="print a program and its outcome")
    parser.add_argument("--against", metavar="CHECKOUT", help="compare with the code of another checkout")
    parser.add_argument("--first", type=int, default=0, help="the first seed for --against")
    parser.add_argument("--seeds", type=int, default=_SEEDS, help="the number of seeds for --against")
    parser.add_argument("--shown", type=int, default=3, help="the number of differences that are printed in full")
    parser.add_argument("--print", metavar="FIRST:END", help="print the outcomes of these seeds as JSON, one per line")
    options = parser.parse_args(argv)
    if options.record:
        _record()
        return 0
    if options.show is not None:
        print(write(options.show), *_told(play(write(options.show))), sep="\n")
        return 0
    if options.print is not None:
        for seed in range(*map(int, options.print.split(":"))):
            print(json.dumps(play(write(seed))))
        return 0
    if options.against is not None:
        return _against(options.against, options.first, options.seeds, options.shown)
    different = differences()
    print(*map(report, different[: options.shown]), f"{len(different)} outcomes differ: {different}", sep="\n\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
