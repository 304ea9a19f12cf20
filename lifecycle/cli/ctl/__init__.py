"""`lifecycle ctl`: query and control a running program over its control socket.

`commands` parses the command line and imports the module that carries a command out: `queries`, `status`, `actions` or
`attach`. They send requests with `client` and print with `printing`. Nothing heavy is imported at the top, so that
`lifecycle ctl ps` starts at once.
"""

from __future__ import annotations

__all__: list[str] = []
