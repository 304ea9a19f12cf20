"""The commands: `watch`, `up` and `ctl` in packages of their names, `run`, `webhook`, `inbox` and `flows` in modules.

`app` parses command lines. `options` and `files` read settings, `paths` decides which paths count, `output` and `logs`
print. This is the last package, which may import every other. Only `main` is meant to be imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lifecycle.runtime.mains import AnyMain

__all__ = ["main"]


def main(argv: Sequence[str] | None = None, *, beside: Iterable[AnyMain] = ()) -> int:
    """Carry out a command line and return the exit status; `lifecycle watch` runs the components ``beside``, too.

    The status is 0 for done, 1 for a failure, 2 for usage, 3 for bad configuration, 4 for no such program.
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
