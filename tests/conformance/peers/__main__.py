"""Checks each statement and prints the result."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from tests.conformance.peers import executors, routers, supervisors, watchers

__all__ = ["main"]

PEERS = ("blinker", "circus", "dbos", "pyee", "starlette", "supervisor", "uvicorn", "watchfiles")


def main() -> int:
    """Check all statements, and return 1 if one is wrong."""
    for name in PEERS:
        with suppress(PackageNotFoundError):
            print(name, version(name))
    outcomes = [
        tried(module, name) for module in (routers, watchers, supervisors, executors) for name in module.__all__
    ]
    return 0 if all(outcomes) else 1


def tried(module: object, name: str) -> bool:
    try:
        getattr(module, name)()
    except ImportError as error:
        print(f"skipped    {name}: {error}")
    except AssertionError:
        print(f"WRONG      {name}")
        return False
    else:
        print(f"confirmed  {name}")
    return True


if __name__ == "__main__":
    sys.exit(main())
