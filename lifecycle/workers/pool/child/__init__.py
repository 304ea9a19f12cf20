"""The code of a worker process, at the other end of its pipes.

Workers start often, so these modules import little. The only module of the parent that they import is `protocol`.
"""

__all__: list[str] = []
