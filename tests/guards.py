"""Distinguishes the guard process from a program's other child processes."""

from __future__ import annotations

import psutil

__all__ = ["is_guard"]


def is_guard(process: psutil.Process) -> bool:
    """Return whether the process is the guard, which kills the program's other processes when the program exits."""
    try:
        return any(word.endswith("guard_main.py") for word in process.cmdline())
    except psutil.Error:
        return False
