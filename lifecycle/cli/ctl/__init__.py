"""`lifecycle ctl`: query and control a running program over its control socket.

`commands` parses the command line and imports the module that runs a command: `queries`, `status`, `actions` or
`attach`. These modules send requests with `client` and print with `printing`. Large modules are not imported at the
top, so `lifecycle ctl ps` starts quickly.
"""

from __future__ import annotations

__all__: list[str] = []
