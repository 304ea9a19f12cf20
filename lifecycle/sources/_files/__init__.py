"""How `FileWatchSource` knows what became of the files.

`changes` says what changed: `watches` gets hints from the system, for what `covers` says has to be watched; `tree`
looks at what became of the files, knows their `folders`, and compares `marks`; `rules` says which of them count.
"""

from __future__ import annotations

__all__: list[str] = []
