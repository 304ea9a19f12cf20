"""`lifecycle ctl`: query and control a running program through its control socket.

`commands` parses the command line and imports the module that implements the command: `queries`, `status`, `actions`,
`attach` or `console`. These modules send requests using `client` and print responses using `printing`. Large modules
are imported only when needed, so `lifecycle ctl ps` starts quickly.
"""

from __future__ import annotations

__all__: list[str] = []
