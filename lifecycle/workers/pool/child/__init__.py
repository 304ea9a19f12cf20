"""The code of a worker process, at the other end of its pipes.

Workers start often, so these modules import little, and of the parent's side only `protocol`, which both sides share.
"""

__all__: list[str] = []
