"""Distinguishes the processes that the library starts for itself from a program's other child processes."""

from __future__ import annotations

import psutil

__all__ = ["is_checker", "is_guard"]


def is_guard(process: psutil.Process) -> bool:
    """Return whether the process is the guard, which kills the program's other processes when the program exits."""
    try:
        return any(word.endswith("guard_main.py") for word in process.cmdline())
    except psutil.Error:
        return False


def is_checker(process: psutil.Process) -> bool:
    """Return whether the process is the Python that `lifecycle watch` keeps ready for the next syntax check."""
    try:
        return any("compile(source" in word for word in process.cmdline())
    except psutil.Error:
        return False
