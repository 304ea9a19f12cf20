"""Seeing what a program does.

`mermaid` draws what ``state()`` says: a worker, a lifetime, a supervisor's tree, or all of a program. Everything here
looks at records that were handed to it; nothing here holds on to what it has seen.
"""

from __future__ import annotations

from lifecycle.observe import mermaid as mermaid

__all__: list[str] = []
