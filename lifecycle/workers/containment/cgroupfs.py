"""Cgroups as the guard sees them, too: all in them is killed at once, and they are removed when they are empty.

It stands on the standard library alone, as `sweeps` does, and for the same reason.
"""

from __future__ import annotations

import os

__all__ = ["kill_cgroup", "remove_cgroup"]


def kill_cgroup(path: str) -> None:
    """Kill all in a cgroup and in those below; nothing happens if it is gone."""
    try:
        with open(f"{path}/cgroup.kill", "w") as kill:  # noqa: PTH123  # pathlib costs the guard a megabyte
            kill.write("1")
    except OSError:
        pass


def remove_cgroup(path: str) -> bool:
    """Remove a cgroup and those below; False if somebody is still in there."""
    try:
        # It has none below, most often.
        os.rmdir(path)  # noqa: PTH106  # pathlib costs the guard a megabyte
    except FileNotFoundError:
        return True
    except OSError:
        return _remove_below(path)
    return True


def _remove_below(path: str) -> bool:
    try:
        below = [entry.path for entry in os.scandir(path) if entry.is_dir()]
        if not below or not all(remove_cgroup(each) for each in below):
            return False
        os.rmdir(path)  # noqa: PTH106  # pathlib costs the guard a megabyte
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
