"""Importing a name when it is first asked for, so that a door to many rooms stays light."""

from __future__ import annotations

import importlib

# Checkers know the name; importing it from typing would cost more than all that this file is there to save.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, table: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for ``package``; ``table`` says which module has, or is, which name."""

    def get(name: str) -> Any:
        if name not in table:
            # With both, Python can say what was probably meant.
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=importlib.import_module(package)
            )
        module = importlib.import_module(table[name])
        return module if module.__name__ == f"{package}.{name}" else getattr(module, name)

    def names() -> list[str]:
        return sorted(table)

    return get, names
