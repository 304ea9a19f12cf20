"""How an `Inbox` is carried out.

`keeper` has the file, `deliverer` brings what is in it to the handlers, and `outcomes` puts down what became of it.
"""

from __future__ import annotations

__all__: list[str] = []
