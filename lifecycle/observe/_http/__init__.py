"""A `Console` over HTTP, for the control socket and the page alike.

All of it imports aiohttp, so it is itself imported when a server starts.
"""

__all__: list[str] = []
