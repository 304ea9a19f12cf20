"""Imports names when they are first used, so that importing a package is fast.

A package's names are listed in a table in its ``__init__.py``, grouped by module. Type checkers and editors read the
stub next to it, which has one line per name. The test suite checks that the two agree. We don't read the table from the
stub, so that programs work even if only their bytecode was packaged.
"""

from __future__ import annotations

import importlib

# Type checkers recognise this name. Importing it from typing would take longer than this module saves.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, table: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` for ``package``.

    ``table`` maps each module to its names. Modules that begin with a dot are in ``package``. If a name is the same as
    its module's, it refers to the module itself, which becomes an attribute of the package but is not in ``__all__``.
    """
    homes = {name: module for module, names in table.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in homes:
            # These two arguments let Python suggest the name that was probably meant.
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=importlib.import_module(package)
            )
        module = importlib.import_module(homes[name], package)
        return module if homes[name] == f".{name}" else getattr(module, name)

    def names() -> list[str]:
        return sorted(homes)

    return sorted(name for name, module in homes.items() if module != f".{name}"), get, names
