"""`lifecycle up`: supervise the processes defined in a Procfile or a TOML file.

`processes` reads the files, `run` connects the components, `starts` orders starts and stops, `changes` restarts
processes when their files change, and `screen` prints the output.
"""

from __future__ import annotations

__all__: list[str] = []
