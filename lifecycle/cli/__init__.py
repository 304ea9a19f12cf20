"""The commands: `watch`, `up` and `ctl` in folders of their names, `inbox` and `flows` in ``stores``.

`lifecycle run` is in ``targets``, `lifecycle webhook send` in ``webhook_sending``; the other modules serve several.
``commandline`` says what can be typed, and which of them carries it out.

This is the last room, which may look into every other. Nothing here is meant to be imported but `main`; what a
program can use belongs into a room of the library.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lifecycle.runtime.mains import AnyMain

__all__ = ["main"]


def main(argv: Sequence[str] | None = None, *, beside: Iterable[AnyMain] = ()) -> int:
    """Carry out a command line and return the exit status; `lifecycle watch` runs the mains ``beside`` what it does.

    The status is 0 for done, 1 for a failure, 2 for usage, 3 for bad configuration, 4 for no such program.
    """
    from lifecycle.cli.app import parse
    from lifecycle.cli.output import DONE, CliError

    arguments = parse(sys.argv[1:] if argv is None else argv)
    arguments.beside = tuple(beside)
    try:
        return arguments.main(arguments)
    except CliError as error:
        from lifecycle.cli.logs import console_for

        console_for(vars(arguments).get("log_format")).error(str(error))
        return error.status
    except KeyboardInterrupt:
        return DONE
