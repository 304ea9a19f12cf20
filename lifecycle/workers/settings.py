"""What settings of workers have in common, and what they are refused with."""

from __future__ import annotations

from numbers import Real

__all__ = ["check_env", "check_name", "check_number", "check_seconds"]


def check_name(name: object) -> None:
    """Raise TypeError for a name that is no text, ValueError for one that is empty."""
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no name of a worker; give a string that people recognise")
    if not name:
        raise ValueError("a worker needs a name that people recognise; '' is none")


def check_number(setting: str, value: object, *, of: str = "") -> None:
    """Raise TypeError if ``value`` is no number at all; the message says whose it is, if that is known."""
    if not isinstance(value, Real):
        raise TypeError(f"{setting}={value!r}{of and f' of {of!r}'} is no number; give seconds, such as 5.0")


def check_seconds(setting: str, value: float) -> None:
    """Raise TypeError if ``value`` is no number, ValueError if it is below 0, or not to be compared."""
    check_number(setting, value)
    if not value >= 0:
        raise ValueError(f"{setting}={value!r} is no number of seconds; give 0 or more")


def check_env(name: object, value: object) -> None:
    """Raise ValueError for what no environment can hold, TypeError for what is no text."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise TypeError(f"{name!r}: {value!r} in the environment is no text; give strings, such as {{'PORT': '8000'}}")
    if not name or "=" in name or "\0" in name:
        raise ValueError(f"{name!r} is no name of an environment variable; it must not be empty or have '=' or NUL")
    if "\0" in value:
        raise ValueError(f"the value {value!r} of {name!r} has a NUL; no environment can hold that")
