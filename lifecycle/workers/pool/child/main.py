"""The program that a Python worker process runs. ``ps`` shows the path of this file.

The parent runs this file with ``python -P``, so that modules in its directory or in the working directory are not
imported by mistake. The library is imported from the same location as in the parent. The rest of the code is in
`runtime`.
"""

import gc
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the worker until it exits."""
    # Garbage collection would slow down the start, and imported modules never become garbage.
    gc.disable()
    root = os.path.abspath(__file__)  # noqa: PTH100  # importing pathlib would slow down the start
    for _ in range(5):
        root = os.path.dirname(root)  # noqa: PTH120  # as above
    sys.path.insert(0, root)

    from lifecycle.workers.pool.child.runtime import serve  # requires the path that is added above

    serve()


if __name__ == "__main__":
    main()
