"""An HTTP service that stops cleanly: on SIGTERM it reports that it is not ready, and finishes open requests.

Run ``PORT=8000 python examples/service.py``, then ``curl http://127.0.0.1:8000/slow &``, and press Ctrl+C. The response
still arrives. Kubernetes requests ``/readyz`` on the port in PROBES. See "Stop cleanly in Kubernetes" in the docs.
"""

import asyncio
import os

from aiohttp import web

from lifecycle import ProbeServer, on_shutdown, run

HOST = os.environ.get("HOST", "127.0.0.1")

#: Seconds from reporting "not ready" until the server stops listening, so that load balancers can react.
NOTICE = float(os.environ.get("NOTICE", "0"))

#: Seconds for open requests to finish.
DRAIN = 10.0


probes = ProbeServer(HOST, int(os.environ.get("PROBES", "0")), drain_delay=NOTICE)


async def slow(request: web.Request) -> web.StreamResponse:
    """Send the first half of the response immediately, and the second after SECONDS."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"begun, ")
    await asyncio.sleep(float(request.query.get("seconds", "3")))
    await response.write(b"and finished\n")
    return response


async def serve() -> None:
    """Serve until cancelled, then finish open requests."""
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
    """Serve, and register a hook to flush and close resources. Hooks run after every main function has finished."""
    on_shutdown(lambda: print("closed", flush=True))
    await serve()


if __name__ == "__main__":
    run(probes, main)
