"""What a worker's environment may hold."""

from __future__ import annotations

__all__ = ["check_env"]


def check_env(name: object, value: object) -> None:
    """Raise ValueError for what no environment can hold, TypeError for what is no text."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise TypeError(f"{name!r}: {value!r} in the environment is no text; give strings, such as {{'PORT': '8000'}}")
    if not name or "=" in name or "\0" in name:
        raise ValueError(f"{name!r} is no name of an environment variable; it must not be empty or have '=' or NUL")
    if "\0" in value:
        raise ValueError(f"the value {value!r} of {name!r} has a NUL; no environment can hold that")
