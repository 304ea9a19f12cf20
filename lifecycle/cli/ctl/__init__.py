"""`lifecycle ctl`: ask a running program over its control socket, and tell it what to do.

`verbs` says what can be typed and which module carries it out: `programs`, `states`, `tails` and `queries` show
something, `actions`, `progress` and `attaching` tell the program to do something. `clients` asks (with `exchanges` and
`streams`), `printing` says how it is shown. Nothing heavy is imported here: `lifecycle ctl ps` is to be there at once.
"""

from __future__ import annotations

__all__: list[str] = []
