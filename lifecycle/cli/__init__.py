"""The commands: `lifecycle watch`, `lifecycle up`, `lifecycle run`, `lifecycle ctl` and `lifecycle webhook send`.

This is the last room, which may look into every other. Nothing here is meant to be imported but `main`; what a
program can use belongs into a room of the library.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line and return the exit status: 0 done, 1 failure, 2 usage, 3 bad configuration."""
    from lifecycle.cli.commandline import parse
    from lifecycle.cli.failures import DONE, CliError

    parsed = parse(sys.argv[1:] if argv is None else argv)
    try:
        return parsed.main(parsed)
    except CliError as error:
        from lifecycle.cli.logs import voice_of

        voice_of(vars(parsed).get("log_format")).bad(str(error))
        return error.status
    except KeyboardInterrupt:
        return DONE
