"""The program of a member in Python: what its command line executes, so that ``ps`` shows what it is.

It is executed as a file, with ``-P``: whatever stands beside it or in the directory that it runs in is imported by
nobody by mistake, and this library is found where the parent found it. All else is in `life`.
"""

import gc
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Live as a member, to the end."""
    # Nothing of what is imported now is garbage; to look for some would slow the start.
    gc.disable()
    room = os.path.abspath(__file__)  # noqa: PTH100  # pathlib would slow the start
    for _ in range(5):
        room = os.path.dirname(room)  # noqa: PTH120  # the same
    sys.path.insert(0, room)

    from lifecycle.workers.pool.child.life import live  # it is found from here on

    live()


if __name__ == "__main__":
    main()
