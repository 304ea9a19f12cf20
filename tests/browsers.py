"""Starts a browser for tests: headless, and without features for interactive use."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["browsing"]

_HEADLESS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-sync",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)


@contextmanager
def browsing(
    url: str, profile: Path, *options: str, stdout: Any = subprocess.DEVNULL, stderr: Any = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """Run Chromium with ``url`` open. Afterwards, remove its processes and its ``profile``."""
    command = ["chromium", *_HEADLESS, *options, f"--user-data-dir={profile}", url]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, process_group=0) as browser:
        try:
            yield browser
        finally:
            with suppress(ProcessLookupError):
                os.killpg(browser.pid, signal.SIGKILL)
    shutil.rmtree(profile, ignore_errors=True)
