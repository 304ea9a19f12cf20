"""The `lifecycle` command line: packages for `watch`, `up` and `ctl`, and modules for the other commands.

`app` parses command lines. `options` and `files` read settings. `paths` determines what to do when a path changes.
`output` and `logs` print messages. `streams` writes in a thread, so that a blocked terminal does not block a command.
This package may import any other package. Other code imports only `main` from it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lifecycle.runtime.mains import AnyMain

__all__ = ["main"]


def main(argv: Sequence[str] | None = None, *, beside: Iterable[AnyMain] = ()) -> int:
    """Run a command line and return its exit status. `lifecycle watch` also runs the components in ``beside``.

    The status is 0 for success, 1 for a failure, 2 for a usage error, 3 for a configuration error, and 4 if `ctl`
    cannot find the program.
    """
    from lifecycle.cli.app import parse
    from lifecycle.cli.output import DONE, CliError

    arguments = parse(sys.argv[1:] if argv is None else argv)
    arguments.beside = tuple(beside)
    try:
        return arguments.run()
    except CliError as error:
        from lifecycle.cli.logs import console_for

        console_for(vars(arguments).get("log_format")).error(str(error))
        return error.status
    except KeyboardInterrupt:
        return DONE
