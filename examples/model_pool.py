"""A model that stays loaded, a conversation that stays with one process, and a call that can be cancelled.

It needs nothing and ends by itself: ``python examples/model_pool.py``. The list in ``Model.__init__`` represents
weights that take a minute to load. The pool's processes import this module by name, so it starts nothing outside of
``if __name__ == "__main__"``.
"""

from collections.abc import Iterator

from lifecycle import Pool, run
from lifecycle.workers.pool import Process


class Model:
    """The object that each process of the pool holds: created there once, it serves every call to that process."""

    def __init__(self, size: int) -> None:
        self._weights = [number * number % 97 for number in range(size)]
        self._said: dict[str, list[str]] = {}

    def score(self, text: str) -> int:
        """A call that keeps nothing: any process will do."""
        return sum(self._weights[ord(letter)] for letter in text)

    def reply(self, user: str, text: str) -> str:
        """Reply with the help of earlier calls: the same user must reach the same process again."""
        said = self._said.setdefault(user, [])
        said.append(text)
        return f"{user} has said {' and '.join(said)}"

    def tokens(self, text: str) -> Iterator[str]:
        """An answer that comes in pieces."""
        yield from text.split()

    def ponder(self) -> None:
        """A call that never ends."""
        while True:
            pass


async def main() -> None:
    """Ask two processes, each of which has loaded the model, this and that."""
    # A call that is given up has five seconds to break off, before its process is killed: a machine may be busy.
    process = Process(grace=5.0)
    async with Pool("model", "model_pool:Model", init=(1000,), size=(2, 2), process=process) as pool:
        print("scores:", [score async for score in pool.map("score", ["a", "few", "texts"])], flush=True)

        for user, text in (("ann", "hello"), ("ben", "good day"), ("ann", "goodbye")):
            print(await pool.call("reply", user, text, session=user), flush=True)

        try:
            await pool.call("ponder", session="ann", deadline=0.3)
        except TimeoutError as error:
            print("given up:", error, flush=True)
        # Nothing had to be killed for that: what the process remembers is still there.
        print(await pool.call("reply", "ann", "hello again", session="ann"), flush=True)

        async for token in pool.stream("tokens", "one word after another"):
            print(token, end=" ", flush=True)
        print()


if __name__ == "__main__":
    run(main)
