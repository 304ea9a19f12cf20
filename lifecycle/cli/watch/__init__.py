"""`lifecycle watch`: restart a command when files change.

`run` connects the components. `session` receives changed files, selects an action using `paths`, and checks the files.
`runner` decides when to start the next run, and `launcher` creates its process. `settings` defines the options,
`terminal` manages the command's terminals, and `endpoints` contains live reload and the webhook.
"""

from __future__ import annotations

__all__: list[str] = []
