"""How an `Inbox` is carried out: `keeper` has the file, `deliverer` brings what is in it to the handlers."""

from __future__ import annotations

__all__: list[str] = []
