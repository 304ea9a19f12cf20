"""Variables of the environment: ``.env`` files, which python-dotenv reads, and the one with a secret."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from lifecycle.cli.config import read_text
from lifecycle.cli.failures import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["parse_env", "read_env", "secret_in"]


def read_env(file: Path) -> dict[str, str]:
    """The variables that ``file`` sets.

    Raises:
        ConfigError: for a file that cannot be read, naming the line where that is the reason.
    """
    return parse_env(read_text(file), str(file))


def parse_env(text: str, name: str) -> dict[str, str]:
    """The variables that ``text`` sets; ``name`` is for the message.

    Raises:
        ConfigError: naming the line, where python-dotenv would leave it out.
    """
    # It takes longer to import than all that a command without such a file does.
    from dotenv.main import DotEnv
    from dotenv.parser import parse_stream

    from lifecycle._masking import masked

    for each in parse_stream(io.StringIO(text)):
        written = each.original.string
        if each.error or "\0" in written:
            line = next(iter(written.strip().splitlines()), "")
            raise ConfigError(f"{name}:{each.original.line}: {masked(line)!r} cannot be read; write KEY=VALUE")
    # A variable that is set already wins, also where another refers to it.
    found = DotEnv(None, stream=io.StringIO(text), override=False).dict()
    return {key: value for key, value in found.items() if value is not None}


def secret_in(name: str) -> str:
    """The secret that the variable ``name`` holds.

    Raises:
        ConfigError: when it holds none.
    """
    secret = os.environ.get(name)
    if not secret:
        raise ConfigError(f"the variable {name} (--secret-env) is {'empty' if secret == '' else 'not set'}; set it")
    return secret
