"""The HTTP server of `WebhookSource`: ``server`` listens, ``requests`` answers, ``admission`` makes events of requests.

``settings`` needs no aiohttp; the other modules are imported when a server starts.
"""

from __future__ import annotations

__all__: list[str] = []
