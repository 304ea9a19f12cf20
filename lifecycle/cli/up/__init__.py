"""`lifecycle up`: supervise the processes of a Procfile, or of tables in a TOML file.

`processes` reads the files, `run` starts and stops the processes, `changes` restarts them, and `screen` prints.
"""

from __future__ import annotations

__all__: list[str] = []
