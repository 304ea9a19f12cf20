"""The code that runs in a worker process and communicates with the pool through pipes.

These modules import little, because workers start often. `protocol` is the only parent module that they import.
"""

__all__: list[str] = []
