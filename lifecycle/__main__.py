"""``python -m lifecycle`` runs the command `lifecycle`."""

from __future__ import annotations

import sys

from lifecycle.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
