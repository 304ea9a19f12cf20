"""Serve a model's predictions over HTTP: ``python examples/model_server.py``.

Try it: ``curl 'http://127.0.0.1:8080/score?text=very+good'``. At most two processes run. Each loads the model once, and
is replaced after CALLS calls. The pool's processes import this module by name, so the program starts only under
``if __name__ == "__main__"``.
"""

import os

from aiohttp import web

from lifecycle import Pool, PoolBusy, PoolFailed, Recycle, RemoteError, WorkerLost, run


class Model:
    """The object in each pool worker. Load your weights here."""

    def __init__(self, words: dict[str, int]) -> None:
        self._words = words

    def score(self, text: str) -> dict[str, int]:
        """Score a text. Any pool worker can run this."""
        return {"score": sum(self._words.get(word, 0) for word in text.split()), "process": os.getpid()}


pool = Pool(
    "model",
    "model_server:Model",
    init=({"good": 1, "bad": -1, "better": 2},),
    size=(1, 2),
    queue=20,
    deadline=5,
    recycle=Recycle(calls=int(os.environ.get("CALLS", "1000"))),
)


async def score(request: web.Request) -> web.Response:
    """Respond with the model's result, or with the status code for its failure."""
    text = request.query.get("text")
    if text is None:
        return web.json_response({"error": "the parameter text is missing"}, status=400)
    try:
        return web.json_response(await pool.call("score", text))
    except TimeoutError as error:
        return web.json_response({"error": str(error)}, status=504)
    except (PoolBusy, PoolFailed, WorkerLost) as error:
        return web.json_response({"error": str(error)}, status=503, headers={"Retry-After": "1"})
    except RemoteError as error:
        return web.json_response({"error": str(error)}, status=500)


class Server(web.AppRunner):
    """Listens on the port in PORT."""

    async def setup(self) -> None:
        """Open the port. `run` calls this."""
        await super().setup()
        await web.TCPSite(self, "127.0.0.1", int(os.environ.get("PORT", "8080"))).start()


if __name__ == "__main__":
    app = web.Application()
    app.add_routes([web.get("/score", score)])
    run(pool, Server(app))
