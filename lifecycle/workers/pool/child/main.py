"""The program that a Python worker process runs. ``ps`` shows the path of this file.

The interpreter runs the file with ``-P``, which keeps it from importing modules in the file's directory or the working
directory by mistake. The file imports this library from the same location as the parent. The rest of the code is in
`runtime`.
"""

import gc
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the worker until it exits."""
    # Collecting garbage would slow the start down, and imported modules never become garbage.
    gc.disable()
    root = os.path.abspath(__file__)  # noqa: PTH100  # pathlib would slow the start
    for _ in range(5):
        root = os.path.dirname(root)  # noqa: PTH120  # as above
    sys.path.insert(0, root)

    from lifecycle.workers.pool.child.runtime import serve  # needs the import path that is set above

    serve()


if __name__ == "__main__":
    main()
