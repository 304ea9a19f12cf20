"""Queries about processes, for tests that check which processes are left."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Iterable

__all__ = ["alive", "kill_all", "members"]


def alive(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def members(pgid: int) -> list[int]:
    """Return all running processes in a process group."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getpgid(process.pid) == pgid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


async def kill_all(processes: Iterable[Process]) -> None:
    """Kill the child processes that still run."""
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.wait()
