"""How `FileWatchSource` knows what became of the files.

`changes` says what changed: `watches` gets hints from the system, `tree` looks at what became of the files (each a
number of `marks`), and `rules` says which of them count.
"""

from __future__ import annotations

__all__: list[str] = []
