"""An HTTP service that stops cleanly: on SIGTERM it says that it is not ready, and finishes what it has begun.

Try it: ``PORT=8000 python examples/service.py``, then ``curl http://127.0.0.1:8000/slow &`` and Ctrl+C: the answer
still comes. In Kubernetes, ``GET /ready`` is the readiness probe; see "Stop cleanly in Kubernetes" in the docs.
"""

import asyncio
import os

from aiohttp import web

from lifecycle import current, on_shutdown, run

#: Seconds between "not ready" and the end of listening: a load balancer needs a moment to notice.
NOTICE = float(os.environ.get("NOTICE", "0"))

#: Seconds that requests under way have.
DRAIN = 10.0


async def ready(_: web.Request) -> web.Response:
    """200 while requests are welcome."""
    return web.Response(status=503 if current().stopping else 200)


async def slow(request: web.Request) -> web.StreamResponse:
    """An answer that takes a while: its first half comes at once, the second after SECONDS."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"begun, ")
    await asyncio.sleep(float(request.query.get("seconds", "3")))
    await response.write(b"and finished\n")
    return response


async def serve() -> None:
    """The service's main: it is cancelled to stop it, and has its time to end."""
    app = web.Application()
    app.add_routes([web.get("/ready", ready), web.get("/slow", slow)])
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=DRAIN)
    await runner.setup()
    try:
        site = web.TCPSite(runner, os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "8000")))
        await site.start()
        print("serving", site.name, flush=True)
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(NOTICE)
        await runner.cleanup()
        print("drained", flush=True)


async def main() -> None:
    """Hooks run when every main has ended: the last chance to flush and close."""
    on_shutdown(lambda: print("closed", flush=True))
    await serve()


if __name__ == "__main__":
    run(main)
