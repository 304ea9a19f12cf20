"""The code that runs in a worker process and communicates with the pool through pipes.

These modules import little, because workers start often. `protocol` is the only module that they share with the parent.
"""

__all__: list[str] = []
