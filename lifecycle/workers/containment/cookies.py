"""Cookies: an entry in the environment by which the processes of a worker are known, wherever they go.

A cookie is ``<runtime>:<worker>``: 128 random bits for this program, and a number for the worker. A worker of a worker
carries both, separated by a comma. `lifecycle.workers.containment.sweeps` recognises them.
"""

from __future__ import annotations

import itertools
import os
import secrets
from typing import TYPE_CHECKING

from lifecycle.workers.containment.sweeps import COOKIE

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["new", "runtime", "with_cookie", "without_cookies"]

_runtime: str | None = None
_numbers = itertools.count(1)


def runtime() -> str:
    """What all cookies of this program begin with; another in a copy of it made by fork."""
    global _runtime  # noqa: PLW0603  # there is one for each process
    if _runtime is None:
        _runtime = secrets.token_hex(16)
    return _runtime


def new() -> str:
    """A cookie for one life of one worker."""
    return f"{runtime()}:{next(_numbers)}"


def with_cookie(env: Mapping[str, str], cookie: str) -> dict[str, str]:
    """``env`` with ``cookie``, beside those that we were given ourselves."""
    inherited = os.environ.get(COOKIE)
    return {**env, COOKIE: f"{inherited},{cookie}" if inherited else cookie}


def without_cookies(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` for a process that belongs to nobody."""
    return {name: value for name, value in env.items() if name != COOKIE}


def _forget() -> None:
    global _runtime  # noqa: PLW0603  # as above
    _runtime = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
