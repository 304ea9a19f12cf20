"""A `Console` over HTTP, for the control socket and the page of the dashboard alike.

All modules but `guard` import aiohttp, so they are imported when a server starts.
"""

__all__: list[str] = []
