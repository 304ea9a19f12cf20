"""Events for code without a router: `notify` puts them into a queue and never waits.

The example exits without input: ``python examples/notify_bridge.py``. The consumer is slower than the ticker, so the
queue is sometimes full. Events that do not fit are dropped and counted, and the ticker continues.
"""

import asyncio

from lifecycle import Router, TickerSource, TickEvent, notify, run

router = Router()
queue: asyncio.Queue[TickEvent] = asyncio.Queue(maxsize=2)
router.add_source(TickerSource(0.01, immediate=True))
router.handle("tick/*", notify(queue))


async def consumer() -> str:
    """Consume three events with plain asyncio. The program ends when this function returns."""
    for _ in range(3):
        event = await queue.get()
        print(f"tick {event.count}", flush=True)
        await asyncio.sleep(0.2)
    state = router.state()
    return f"{state.handled} events were queued, {state.dropped} were dropped"


if __name__ == "__main__":
    print(run(consumer, router))
