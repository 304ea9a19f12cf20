"""A page for the hot reloader: edit the template, or break this file."""

import os
from pathlib import Path

from aiohttp import web

TEMPLATE = Path(__file__).with_name("page.html")
PAGE = TEMPLATE.read_text(encoding="utf-8")
COLOUR = "#1f6feb"


async def index(_: web.Request) -> web.Response:
    """Respond with the template that was read when this process started."""
    page = PAGE.replace("{colour}", COLOUR).replace("{pid}", str(os.getpid()))
    return web.Response(text=page, content_type="text/html")


def make_app() -> web.Application:
    """Create the site's application."""
    app = web.Application()
    app.router.add_get("/", index)
    return app


if __name__ == "__main__":
    port = int(os.environ.get("PORT", "8000"))
    ready = f"serving http://127.0.0.1:{port}/ (changed: {os.environ.get('LIFECYCLE_CHANGES', '[]')})"
    web.run_app(make_app(), host="127.0.0.1", port=port, print=lambda _: print(ready, flush=True), reuse_address=True)
