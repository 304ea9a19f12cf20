"""HTTP access to a `Console`, for the control socket and the dashboard's page.

All modules except `guard` import aiohttp, so they are imported only when a server starts.
"""

__all__: list[str] = []
