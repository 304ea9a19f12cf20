"""State shared by all runs: a directory, a bus, the attack switch, and the history."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.nats_servers import NatsProcess
from tests.soak.attack_switch import AttackSwitch
from tests.soak.history import History
from tests.soak.program import CONFIG, HEALTH, WATCHED
from tests.soak.samples import Series
from tests.soak.senders import Senders

if TYPE_CHECKING:
    import random

__all__ = ["SharedState"]


@dataclass
class SharedState:
    """The state of one soak."""

    directory: Path
    chance: random.Random
    history: History
    attack_switch: AttackSwitch
    senders: Senders
    #: None if nats-server is not installed.
    bus: NatsProcess | None
    #: The number of attacks of each kind, by result.
    done: Counter[str] = field(default_factory=Counter)
    quiet_phases: int = 0
    files: Series = field(default_factory=Series)
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def at(cls, directory: Path, chance: random.Random) -> SharedState:
        """Create the state in a new directory."""
        (directory / WATCHED).mkdir()
        (directory / "run").mkdir(mode=0o700)
        (directory / CONFIG).write_text('{"number": 0}')
        (directory / HEALTH).touch()
        there = Path(sys.executable).with_name("nats-server").exists()
        history, attack_switch = History(directory), AttackSwitch()
        bus = NatsProcess(directory / "bus") if there else None
        return cls(directory, chance, history, attack_switch, Senders(history, attack_switch, chance), bus)

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the soak."""
        return time.monotonic() - self.began
