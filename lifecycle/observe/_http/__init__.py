"""A `Console` over HTTP, for the control socket and the page alike.

All but ``refusals`` import aiohttp, so they are themselves imported when a server starts.
"""

__all__: list[str] = []
