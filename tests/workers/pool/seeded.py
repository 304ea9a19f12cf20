"""Call targets for the pools in `test_seed`."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["Commands", "Patience"]


class Commands:
    """The commands of the original pool implementation, including those that fail."""

    def test_command(self, **_arguments: object) -> dict[str, int]:
        """Return the id of this process."""
        return {"worker_id": os.getpid()}

    def fail(self) -> None:
        """Raise an ordinary error."""
        raise ValueError("no such command")

    def wait_for(self, path: str) -> None:
        """Keep the worker busy until a file with this name exists."""
        while not Path(path).exists():
            time.sleep(0.005)

    def touch(self, path: str) -> None:
        """Create a file as evidence of the call."""
        Path(path).touch()

    def exit(self, code: int) -> None:
        """Exit the process."""
        os._exit(code)

    def exit_once(self, path: str) -> str:
        """Exit the process on the first call."""
        if not Path(path).exists():
            Path(path).touch()
            os._exit(1)
        return "done"


class Patience:
    """A target that is not ready until a file with this name exists."""

    def __init__(self, path: str) -> None:
        Commands().wait_for(path)
