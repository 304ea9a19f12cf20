"""`lifecycle watch`: a command that is started again when files change.

`running` puts the parts together. A change goes from the files through `rules` (with `gitignore`) and `session`, which
judges it, to `generations`, which decide when another of the `runs` begins, and to `children`, who make its processes.
"""

from __future__ import annotations

__all__: list[str] = []
