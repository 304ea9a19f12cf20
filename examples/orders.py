"""Take orders over HTTP, and carry out each in a workflow. ``python examples/orders.py``.

Send one: ``curl -d '{"order": "7", "item": "lamp", "amount": 30, "to": "Turin"}' http://127.0.0.1:8080/order``. It
is stored before the response. If the program is killed, the next start continues the order, and the customer is not
charged twice. If a step fails, the earlier steps are undone; try ``"to": "nowhere"``.

``lifecycle flows signal orders.db 7 approval true`` approves an order of 1,000 or more, and ``lifecycle flows cancel
orders.db 7`` undoes an order. Set ``ORDERS=postgresql://…`` to use a server.
"""

import asyncio
import os
import re
from pathlib import Path

from lifecycle import Flows, Router, Times, WebhookEvent, WebhookSource, current_task, run
from lifecycle.flows import step, undo, wait_for, workflow

PACE = float(os.environ.get("PACE", "1"))


def book(key: str, amount: int) -> None:
    """Simulate a payment service that books each key once. The key of a step is the same when it runs again."""
    print("booking", amount, "as", key, flush=True)
    Path(f"booked-{re.sub('[/ ]', '-', key)}").write_text(str(amount))


async def reserve(item: str) -> str:  # noqa: D103
    print("reserving", item, flush=True)
    await asyncio.sleep(PACE)
    return f"the shelf of {item}"


async def charge(amount: int) -> str:  # noqa: D103
    book(key := current_task().key, amount)
    await asyncio.sleep(PACE)
    return key


async def refund(charge: str, amount: int) -> None:  # noqa: D103
    book(f"{charge}/refund", -amount)


async def ship(shelf: str, to: str) -> None:  # noqa: D103
    if to == "nowhere":
        raise ValueError("no such address")
    print("shipping from", shelf, "to", to, flush=True)


@workflow
async def order(item: str, amount: int, to: str) -> str:  # noqa: D103
    shelf = await step(reserve, item)
    undo(print, "releasing", shelf, flush=True)
    if amount <= 0:
        raise ValueError(f"an amount must be above 0, got {amount}")
    paid = await step(charge, amount)
    undo(refund, paid, amount)
    if amount >= 1000 and not await wait_for("approval", timeout=7 * 24 * 3600):  # noqa: PLR2004  # explained above
        raise PermissionError("the order was not approved")
    await step(ship, shelf, to, retry=Times(5, backoff=1, on=ConnectionError))
    return paid


async def main() -> None:  # noqa: D103
    router = Router("orders")
    router.add_source(WebhookSource(port=int(os.environ.get("PORT", "8080")), answer="handled"))
    async with Flows(os.environ.get("ORDERS", "orders.db")) as flows:

        @router.on("webhook/order")
        async def accept(event: WebhookEvent) -> None:
            values = event.json()
            await flows.start(order, id=values.pop("order"), **values).stored()

        await flows.recover(order)
        await router.run()


if __name__ == "__main__":
    run(main)
