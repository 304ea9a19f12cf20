"""How `FileWatchSource` finds changes: ``tree`` remembers what was seen, ``watching`` decides where to look again."""

from __future__ import annotations

__all__: list[str] = []
