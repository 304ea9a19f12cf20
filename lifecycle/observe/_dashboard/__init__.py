"""What stands behind a `Dashboard`: who may ask, what is measured, and what an open page is told.

The files of the page are in ``page``. ``pages`` and ``live`` import aiohttp, so they are imported when a server starts.
"""

__all__: list[str] = []
