"""A program that prints a diagram of itself: ``python examples/diagram.py > program.mmd``, for Mermaid or Markdown.

The program ends when the supervisor gives up on the failing worker. The diagram shows that worker in red, with the
reason.
"""

import asyncio

from lifecycle import Backoff, Router, Spec, Supervisor, TickerSource, current, hooks, run
from lifecycle.observe import mermaid

router = Router("main")
router.add_source(TickerSource(1, immediate=True))


@router.on("tick/*")
def beat(event: object) -> None:
    """Do nothing, periodically."""


async def serve() -> None:
    """Work indefinitely."""
    await asyncio.Event().wait()


async def load() -> None:
    """Fail every time."""
    raise OSError("no such table")


app = Supervisor(
    "app",
    Spec("api", serve),
    Spec("database", ["sleep", "60"]),
    Spec("importer", load, backoff=Backoff(0.01, max_restarts=2)),
)
given_up = asyncio.Event()
# A receiver is passed the sender and the hook's arguments, which this example does not need.
hooks.circuit_opened.connect(lambda *_, **__: given_up.set())


async def draw() -> str:
    """Print a diagram of the whole program after the worker has failed."""
    await given_up.wait()
    parts = [current().state(), router.state(), router.sources(), router.routes(), app.state()]
    return mermaid.system(parts, label="what runs")


if __name__ == "__main__":
    print(run(router, app, draw))
