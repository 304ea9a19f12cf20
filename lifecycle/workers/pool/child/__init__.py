"""The code that runs in a worker process and communicates with the pool through pipes.

These modules import as little as possible, because workers are started often. The only module that they share with the
parent is `protocol`.
"""

__all__: list[str] = []
