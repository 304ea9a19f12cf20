"""`lifecycle watch`: restart a command when files change.

`run` connects the components. `session` receives changed files, selects an action with `paths`, and checks the files.
`runner` decides when the next run begins, and `launcher` creates its process. `settings` defines the options,
`terminal` manages the terminals of the command, and `endpoints` contains live reload and the webhook.
"""

from __future__ import annotations

__all__: list[str] = []
