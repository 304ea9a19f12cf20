"""What things are called in messages, the same in every room."""

from __future__ import annotations

__all__ = ["name_of"]


def name_of(fn: object) -> str:
    """What people call a function, or an object that is called like one."""
    return getattr(fn, "__qualname__", None) or repr(fn)
