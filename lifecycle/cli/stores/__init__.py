"""`lifecycle inbox` and `lifecycle flows`: what programs of this library have stored, looked at from outside."""

from __future__ import annotations

__all__: list[str] = []
