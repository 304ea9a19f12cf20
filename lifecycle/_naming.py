"""What things are called in messages, the same in every room."""

from __future__ import annotations

import os.path
import sys

__all__ = ["name_of", "program_name"]


def name_of(fn: object) -> str:
    """What people call a function, or an object that is called like one."""
    name = getattr(fn, "__qualname__", None)
    # Some objects answer to every name, with anything.
    return name if isinstance(name, str) and name else repr(fn)


def program_name() -> str:
    """What this program is called: the module that ``python -m`` runs, or its file without the ending."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    # pathlib would double what an import of this room costs.
    stem, _ = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))  # noqa: PTH119, PTH122
    return stem if stem not in ("", "-", "-c") else "python"
