"""HTTP access to a `Console`, for both the control socket and the page of the dashboard.

All modules except `guard` import aiohttp, so they are imported only when a server starts.
"""

__all__: list[str] = []
