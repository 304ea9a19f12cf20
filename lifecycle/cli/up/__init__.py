"""`lifecycle up`: the processes of a Procfile, or of tables in a TOML file, kept by a supervisor.

`processes` reads what to run, `run` starts and stops it, and `screen` prints.
"""

from __future__ import annotations

__all__: list[str] = []
