"""An HTTP service that stops cleanly: on SIGTERM it reports that it is not ready, and finishes open requests.

Try it: ``PORT=8000 python examples/service.py``, then ``curl http://127.0.0.1:8000/slow &`` and Ctrl+C: the answer
still comes. Kubernetes asks ``/readyz`` at the port PROBES; see "Stop cleanly in Kubernetes" in the docs.
"""

import asyncio
import os

from aiohttp import web

from lifecycle import ProbeServer, on_shutdown, run

HOST = os.environ.get("HOST", "127.0.0.1")

#: Seconds between "not ready" and the end of listening: a load balancer needs a moment to notice.
NOTICE = float(os.environ.get("NOTICE", "0"))

#: Seconds that requests under way have.
DRAIN = 10.0


probes = ProbeServer(HOST, int(os.environ.get("PROBES", "0")), drain_delay=NOTICE)


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
    app.add_routes([web.get("/slow", slow)])
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=DRAIN)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, int(os.environ.get("PORT", "8000")))
        await site.start()
        print("serving", site.name, "with probes at", probes.url, flush=True)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
        print("drained", flush=True)


async def main() -> None:
    """Hooks run when every main has ended: the last chance to flush and close."""
    on_shutdown(lambda: print("closed", flush=True))
    await serve()


if __name__ == "__main__":
    run(probes, main)
