"""What `generations` needs of whoever makes the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from signal import Signals

    from lifecycle.events import Change
    from lifecycle.workers.protocols import Worker

__all__ = ["Launcher"]


class Launcher(Protocol):
    """Makes workers for the command."""

    @property
    def name(self) -> str:
        """What people call the command."""
        ...

    def make(self, changes: Mapping[Path, Change]) -> Worker:
        """A new worker; ``changes`` are those since the last that came up. Raises CliError."""
        ...

    def signal(self, signum: Signals) -> None:
        """Send ``signum`` to the worker that runs, of two to the older."""
        ...

    def is_last(self, exit_code: int | None) -> bool:
        """Whether who ended the command wanted to end everything: by Ctrl+C in its terminal."""
        ...
