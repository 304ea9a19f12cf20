"""What things are called in messages, and what errors say there, the same in every room."""

from __future__ import annotations

import functools
import os.path
import sys

__all__ = ["error_text", "name_of", "program_name", "reason_of", "words_of"]


_UNSAID = "(its message cannot be had"


def name_of(fn: object) -> str:
    """What people call a function; of an object that is called like one, what its class is called."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None)
    # Some objects answer to every name, with anything.
    return name if isinstance(name, str) and name else type(fn).__qualname__


def error_text(error: BaseException) -> str:
    """The class of an error and what it says, if it says anything."""
    words = words_of(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def words_of(error: BaseException) -> str:
    """What an error says; one of a program's own whose text fails is still an error."""
    try:
        return str(error)
    except Exception as worse:  # noqa: BLE001  # what it raises is not what matters
        return f"{_UNSAID}: {type(worse).__name__})"


def reason_of(error: BaseException) -> str:
    """What an error says; with its class where the words alone would tell nothing: there are none, or only a key."""
    words = "" if type(error).__str__ is KeyError.__str__ else words_of(error)
    return words if words and not words.startswith(_UNSAID) else error_text(error)


def program_name() -> str:
    """What this program is called: the module that ``python -m`` runs, or its file without the ending."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    # pathlib would double what an import of this room costs.
    stem, _ = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))  # noqa: PTH119, PTH122
    return stem if stem not in ("", "-", "-c") else "python"
