"""Telling the guard from what a program runs: it is a child as well."""

from __future__ import annotations

import psutil

__all__ = ["is_guard"]


def is_guard(process: psutil.Process) -> bool:
    """Return whether it is the guard, the helper process that kills the others when the program is gone."""
    try:
        return any(word.endswith("guard_main.py") for word in process.cmdline())
    except psutil.Error:
        return False
