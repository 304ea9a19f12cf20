"""Two programs that share work: one accepts photos over HTTP, the other makes thumbnails.

You need the extras ``nats`` and ``postgres``, a NATS server with JetStream at NATS, and a PostgreSQL database at FLOWS.
Start both, and send a photo::

    python examples/photos.py accept
    python examples/photos.py work
    curl -d cat.jpg http://127.0.0.1:8080/photo

Jobs are stored in PostgreSQL, so either program can be killed and started again, on several machines. When a thumbnail
is ready, the worker sends an event over NATS, and the first program prints it.
"""

import asyncio
import os
import sys

from lifecycle import Flows, JobQueue, Router, WebhookEvent, WebhookSource, linear, run, task
from lifecycle.bridges import BusEvent, NatsBridge
from lifecycle.flows import send

NATS = os.environ.get("NATS", "nats://127.0.0.1:4222")
FLOWS = os.environ.get("FLOWS", "postgresql://127.0.0.1/photos")
PACE = float(os.environ.get("PACE", "1"))


@task
async def resize(photo: str) -> str:
    """Simulate resizing a photo. The task runs again if the process is killed."""
    print("resizing", photo, flush=True)
    await asyncio.sleep(PACE)
    return f"small-{photo}"


@task
def announce(resize: str) -> None:
    """Send an event when the job is stored as done."""
    send("photo/done", {"photo": resize})


async def accept() -> None:
    """Enqueue a job per request, and print the results of all workers."""
    router = Router("accept")
    router.add_source(WebhookSource(port=int(os.environ.get("PORT", "8080")), answer="handled"))
    router.add_source(NatsBridge(NATS, group="accept", subscribe="photo/*"))

    @router.on("photo/done")
    def done(event: BusEvent) -> None:
        print("done:", event.data["photo"], flush=True)

    async with Flows(FLOWS) as flows:
        queue = JobQueue(flows)

        @router.on("webhook/photo")
        async def enqueue(event: WebhookEvent) -> None:
            await queue.enqueue("thumbnail", id=event.text(), photo=event.text())

        await router.run()


async def work() -> None:
    """Carry out jobs, and publish the events that they send."""
    router = Router("work")
    router.add_source(NatsBridge(NATS, group="work", publish="photo/*"))
    async with Flows(FLOWS) as flows, asyncio.TaskGroup() as group:
        router.add_source(flows.outbox())
        group.create_task(router.run())
        # If a worker dies, another worker claims its jobs when the lease expires.
        await JobQueue(flows).work({"thumbnail": linear("thumbnail", resize, announce)}, lease=10)


if __name__ == "__main__":
    run({"accept": accept, "work": work}[sys.argv[1]])
