"""`lifecycle watch`: restart a command when files change.

`run` puts the components together. A change of a file goes to `session`, which asks `paths` whether it counts and
checks the file. `runner` decides when the next run begins, and `launcher` makes its process. `settings` has the
options, `terminal` the terminals of the command, and `endpoints` live reload and the webhook.
"""

from __future__ import annotations

__all__: list[str] = []
