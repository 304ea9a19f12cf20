"""A program that draws itself: ``python examples/diagram.py > program.mmd``, for Mermaid or a Markdown file.

It ends when the supervisor has given up the failing worker. That worker is red in the diagram, with the reason.
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
    """Fail, every time."""
    raise OSError("no such table")


app = Supervisor(
    "app",
    Spec("api", serve),
    Spec("database", ["sleep", "60"]),
    Spec("importer", load, backoff=Backoff(0.01, max_restarts=2)),
)
given_up = asyncio.Event()
# A receiver is called with the sender and the hook's arguments, which are not needed here.
hooks.circuit_opened.connect(lambda *_, **__: given_up.set())


async def draw() -> str:
    """Draw the whole program after the worker has failed."""
    await given_up.wait()
    parts = [current().state(), router.state(), router.sources(), router.routes(), app.state()]
    return mermaid.system(parts, label="what runs")


if __name__ == "__main__":
    print(run(router, app, draw))
