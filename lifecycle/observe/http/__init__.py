"""HTTP access to a `Console`, for the control socket and the dashboard.

All modules except `guard` import aiohttp, so they are only imported when a server starts.
"""

__all__: list[str] = []
