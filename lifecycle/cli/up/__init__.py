"""`lifecycle up`: the processes of a Procfile, or of tables in a TOML file, kept by a supervisor.

`files` finds and reads what is to be run (`procfile`, `tables`), as records (`processes`). `running` puts them under a
supervisor, `screens` shows what they write, `narration` what happens to them, and `outcomes` how it ended.
"""

from __future__ import annotations

__all__: list[str] = []
