"""A directory for control sockets, separate for each test."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the directory where the commands look for programs.

    Its path is short, because a socket's address is limited to about 100 characters.
    """
    with tempfile.TemporaryDirectory(prefix="ctl") as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        own = Path(directory, "lifecycle")
        own.mkdir(mode=0o700)
        yield own
