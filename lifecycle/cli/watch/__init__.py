"""`lifecycle watch`: a command that is started again when files change.

`running` puts the parts together. A change goes from the files through `rules` (with `gitignore`) and `session`, which
decides, to `generations`, which keep one run at a time, and from there to `children`, who make its processes.
"""

from __future__ import annotations

__all__: list[str] = []
