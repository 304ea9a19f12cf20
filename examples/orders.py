"""Take orders over HTTP, and carry them out in three steps: reserve, charge, ship. ``python examples/orders.py``.

Send one: ``curl -d '{"order": "7", "item": "lamp", "amount": 30, "to": "Turin"}' http://127.0.0.1:8080/order``. The
response is 200 when the order is stored in ``orders.db``. If the program is killed, the next start continues the order,
and the customer is not charged twice. If a step fails, the earlier steps are undone; try ``"to": "nowhere"``.
"""

import asyncio
import os
from pathlib import Path

from lifecycle import Flows, Router, WebhookEvent, WebhookSource, current_task, linear, run, task

PACE = float(os.environ.get("PACE", "1"))


def book(key: str, amount: int) -> None:
    """Simulate a payment service that books each key only once. Each booking is a file."""
    print("booking", amount, "as", key, flush=True)
    Path(f"booked-{key.replace('/', '-')}").write_text(str(amount))


@task
async def reserve(item: str) -> str:  # noqa: D103
    print("reserving", item, flush=True)
    await asyncio.sleep(PACE)
    return f"the shelf of {item}"


@reserve.revert(only_if_done=True)
async def release(reserve: str) -> None:  # noqa: D103
    print("releasing", reserve, flush=True)


@task
async def charge(amount: int) -> str:
    """Charge with a key that is the same if this task runs again after a crash."""
    if amount <= 0:
        raise ValueError(f"an amount must be above 0, got {amount}")
    book(key := current_task().key, amount)
    await asyncio.sleep(PACE)
    return key


@charge.revert(only_if_done=True)
async def refund(charge: str, amount: int) -> None:  # noqa: D103
    book(f"{charge}/refund", -amount)


@task
async def ship(reserve: str, to: str) -> None:  # noqa: D103
    if to == "nowhere":
        raise ValueError("no such address")
    print("shipping from", reserve, "to", to, flush=True)


order = linear("order", reserve, charge, ship)


async def main() -> None:
    """Serve until Ctrl+C. The current step then finishes, and the next start continues the unfinished orders."""
    router = Router("orders")
    router.add_source(WebhookSource(port=int(os.environ.get("PORT", "8080")), answer="handled"))
    async with Flows("orders.db") as flows:

        @router.on("webhook/order")
        async def accept(event: WebhookEvent) -> None:
            values = event.json()
            await flows.start(order, id=values.pop("order"), **values).stored()

        await flows.recover(order)
        await router.run()


if __name__ == "__main__":
    run(main)
