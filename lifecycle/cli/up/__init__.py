"""`lifecycle up`: supervise the processes of a Procfile, or of tables in a TOML file.

`processes` reads the files, `run` connects the components, `starts` orders starts and stops, `changes` restarts
processes, and `screen` prints.
"""

from __future__ import annotations

__all__: list[str] = []
