"""Importing a name when it is first asked for, so that a door to many rooms stays light.

What a package offers stands in one table, module by module, in its ``__init__.py``; what checkers and editors read is
the stub beside it, with a line a name. The suite holds them together. The table is not read from the stub, so that a
program works where only its bytecode was packed.
"""

from __future__ import annotations

import importlib

# Checkers know the name; importing it from typing would cost more than all that this file is there to save.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, table: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` for ``package``.

    ``table`` says which names each module has; one that begins with a dot is in ``package``. A module that has its own
    name is offered itself, as an attribute, and is not in ``__all__``.
    """
    homes = {name: module for module, names in table.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in homes:
            # With both, Python can say what was probably meant.
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=importlib.import_module(package)
            )
        module = importlib.import_module(homes[name], package)
        return module if homes[name] == f".{name}" else getattr(module, name)

    def names() -> list[str]:
        return sorted(homes)

    return sorted(name for name, module in homes.items() if module != f".{name}"), get, names
