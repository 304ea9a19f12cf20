"""The HTTP server of `WebhookSource`.

``server`` listens, ``requests`` answers requests, and ``admission`` turns requests into events. ``settings`` needs no
aiohttp. The other modules are imported when a server starts.
"""

from __future__ import annotations

__all__: list[str] = []
