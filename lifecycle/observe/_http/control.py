"""What a control socket serves: the API, for our own user and root."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aiohttp import web

from lifecycle._net import peer
from lifecycle.observe._http.answers import problem
from lifecycle.observe._http.api import api_routes, errors_as_json

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

    from lifecycle.observe.console import Console

__all__ = ["control_app"]


def control_app(console: Console) -> web.Application:
    """The API behind the question who asks."""
    app = web.Application(middlewares=[_known, errors_as_json])
    app.add_routes(api_routes(console))
    return app


@web.middleware
async def _known(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let our own user and root pass, where the system tells who is at the other end."""
    transport = request.transport
    asking = None if transport is None else peer(transport.get_extra_info("socket"))
    if asking is not None and asking.uid not in (0, os.geteuid()):
        answer = problem(403, "this program belongs to another user")
        answer.force_close()
        return answer
    return await handler(request)
