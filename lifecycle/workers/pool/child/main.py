"""The program of a Python worker process; ``ps`` shows its path.

It runs as a file, with ``-P``: modules next to it or in the working directory are not imported by mistake, and this
library is found where the parent found it. The rest is in `runtime`.
"""

import gc
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run as a worker until the end."""
    # Modules that are imported now are never garbage; collecting would slow the start.
    gc.disable()
    root = os.path.abspath(__file__)  # noqa: PTH100  # pathlib would slow the start
    for _ in range(5):
        root = os.path.dirname(root)  # noqa: PTH120  # the same
    sys.path.insert(0, root)

    from lifecycle.workers.pool.child.runtime import serve  # it is found from here on

    serve()


if __name__ == "__main__":
    main()
