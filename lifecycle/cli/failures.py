"""Why a command does not begin, each with the status it ends with."""

from __future__ import annotations

from lifecycle.errors import LifecycleError

__all__ = ["CONFIGURATION", "DONE", "FAILED", "USAGE", "CliError", "ConfigError", "UsageError"]

#: Done, or stopped on request.
DONE = 0
#: A failure, or ended by force.
FAILED = 1
#: The command line asks for something that cannot be.
USAGE = 2
#: A configuration file, or what it leads to, is wrong.
CONFIGURATION = 3


class CliError(LifecycleError):
    """Something that ends a command with a message and no traceback."""

    status = FAILED


class UsageError(CliError):
    """The command line is wrong; the message says what to give instead."""

    status = USAGE


class ConfigError(CliError):
    """A file, a key of it, or a variable of the environment is wrong; the message names it."""

    status = CONFIGURATION
