"""The HTTP server of `WebhookSource`.

``server`` listens, ``requests`` handles requests, and ``admission`` turns requests into events. ``settings`` does not
need aiohttp. The other modules do, so they are imported only when a server starts.
"""

from __future__ import annotations

__all__: list[str] = []
