"""A model that stays loaded, a conversation that stays in one process, and a call that can be cancelled.

The example needs no setup and ends without input: ``python examples/model_pool.py``. The list in ``Model.__init__``
represents weights that take a minute to load. The pool's processes import this module by name, so the program starts
only under ``if __name__ == "__main__"``.
"""

from collections.abc import Iterator

from lifecycle import Pool, run
from lifecycle.workers.pool import Process


class Model:
    """The object in each process of the pool. It is created once and handles every call to that process."""

    def __init__(self, size: int) -> None:
        self._weights = [number * number % 97 for number in range(size)]
        self._said: dict[str, list[str]] = {}

    def score(self, text: str) -> int:
        """Answer a call without state, in any process."""
        return sum(self._weights[ord(letter)] for letter in text)

    def reply(self, user: str, text: str) -> str:
        """Reply using earlier calls. All calls from the same user must therefore reach the same process."""
        said = self._said.setdefault(user, [])
        said.append(text)
        return f"{user} has said {' and '.join(said)}"

    def tokens(self, text: str) -> Iterator[str]:
        """Yield an answer in pieces."""
        yield from text.split()

    def ponder(self) -> None:
        """Never return."""
        while True:
            pass


async def main() -> None:
    """Call two processes, each of which has loaded the model."""
    # A cancelled call has five seconds to end, in case the machine is busy. After that, its process would be killed.
    process = Process(grace=5.0)
    async with Pool("model", "model_pool:Model", init=(1000,), size=(2, 2), process=process) as pool:
        print("scores:", [score async for score in pool.map("score", ["a", "few", "texts"])], flush=True)

        for user, text in (("ann", "hello"), ("ben", "good day"), ("ann", "goodbye")):
            print(await pool.call("reply", user, text, session=user), flush=True)

        try:
            await pool.call("ponder", session="ann", deadline=0.3)
        except TimeoutError as error:
            print("given up:", error, flush=True)
        # No process was killed, so the state of the session still exists.
        print(await pool.call("reply", "ann", "hello again", session="ann"), flush=True)

        async for token in pool.stream("tokens", "one word after another"):
            print(token, end=" ", flush=True)
        print()


if __name__ == "__main__":
    run(main)
