"""A counter behind a prompt: suspend it, resume it, change its step, quit.

Run it with ``python examples/repl.py`` and type ``help``. The first Ctrl+C suspends, the second quits. The program also
reads commands from a pipe: ``(echo suspend; echo show; echo quit) | python examples/repl.py``.
"""

import asyncio

from lifecycle import CommandEvent, new_interactive_router, run


class Counter:
    """Counts until it is suspended, and continues when it is resumed."""

    def __init__(self) -> None:
        self.count = 0
        self.step = 1
        self._may_count = asyncio.Event()
        self._may_count.set()

    async def run(self) -> None:
        """Count ten times per second."""
        while True:
            await self._may_count.wait()
            self.count += self.step
            await asyncio.sleep(0.1)

    def suspend(self) -> None:
        """Stop counting, and keep the count."""
        self._may_count.clear()
        print(f"the counter is at {self.count}")

    def resume(self) -> None:
        """Continue counting."""
        self._may_count.set()


counter = Counter()
repl = new_interactive_router(suspend=counter, shutdown=lambda: print(f"counted to {counter.count}"))


@repl.command
def show(_: CommandEvent) -> None:
    """Show the count."""
    print(counter.count)


@repl.command
def step(event: CommandEvent) -> None:
    """Count in steps of NUMBER."""
    try:
        counter.step = int(*event.args)
    except (TypeError, ValueError):
        print("usage: step NUMBER")


@repl.command
async def wait(event: CommandEvent) -> None:
    """Wait for SECONDS. Ctrl+C cancels the wait."""
    await asyncio.sleep(float(event.args[0]) if event.args else 5)
    print("waited")


if __name__ == "__main__":
    run(counter, repl)
