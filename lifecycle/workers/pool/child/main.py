"""The program of a Python worker process. ``ps`` shows its path.

It runs as a file, with ``-P``, so that modules next to it or in the working directory are not imported by mistake. It
imports this library from the same place as the parent. The rest of the code is in `runtime`.
"""

import gc
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the worker until its end."""
    # Modules that are imported now never become garbage, and collecting would slow the start.
    gc.disable()
    root = os.path.abspath(__file__)  # noqa: PTH100  # pathlib would slow the start
    for _ in range(5):
        root = os.path.dirname(root)  # noqa: PTH120  # as above
    sys.path.insert(0, root)

    from lifecycle.workers.pool.child.runtime import serve  # needs the path above

    serve()


if __name__ == "__main__":
    main()
