"""What things are called in messages, the same in every room."""

from __future__ import annotations

import functools
import os.path
import sys

__all__ = ["error_text", "name_of", "program_name"]


def name_of(fn: object) -> str:
    """What people call a function; of an object that is called like one, what its class is called."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None)
    # Some objects answer to every name, with anything.
    return name if isinstance(name, str) and name else type(fn).__qualname__


def error_text(error: BaseException) -> str:
    """The class of an error and what it says, if it says anything."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def program_name() -> str:
    """What this program is called: the module that ``python -m`` runs, or its file without the ending."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    # pathlib would double what an import of this room costs.
    stem, _ = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))  # noqa: PTH119, PTH122
    return stem if stem not in ("", "-", "-c") else "python"
