"""What a worker's environment may hold, and what it is given by itself."""

from __future__ import annotations

from lifecycle import _context

__all__ = ["TRACEPARENT", "carried", "check_env"]

#: Under which span a process was started, as W3C writes it; OpenTelemetry reads it in many languages.
TRACEPARENT = "TRACEPARENT"


def carried() -> dict[str, str]:
    """What goes along from where a worker is started."""
    traceparent = _context.traceparent.get()
    return {TRACEPARENT: traceparent} if traceparent else {}


def check_env(name: object, value: object) -> None:
    """Raise ValueError for what no environment can hold, TypeError for what is no text."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise TypeError(f"{name!r}: {value!r} in the environment is no text; give strings, such as {{'PORT': '8000'}}")
    if not name or "=" in name or "\0" in name:
        raise ValueError(f"{name!r} is no name of an environment variable; it must not be empty or have '=' or NUL")
    if "\0" in value:
        raise ValueError(f"the value {value!r} of {name!r} has a NUL; no environment can hold that")
