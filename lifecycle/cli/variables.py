r"""Variables of the environment: files of KEY=VALUE lines, as most tools write them, and the one with a secret.

A few lines of our own rather than one more dependency: blank lines and ``#`` comments, ``export``, single quotes
(as they are), double quotes (with ``\n``, ``\t``, ``\"``, ``\\`` and ``\$``), quoted values over several lines.
``$NAME`` is not filled in.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from lifecycle.cli.config import read_text
from lifecycle.cli.failures import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["parse_env", "read_env", "secret_in"]

_ENTRY = re.compile(
    r"""
    [ \t]* (?: export [ \t]+ )? (?P<key> [A-Za-z_][A-Za-z0-9_.]* ) [ \t]* = [ \t]*
    (?: '(?P<single> [^']* )' | "(?P<double> (?: [^"\\] | \\. )* )" | (?P<bare> [^'"\n\#] [^\n]*? )? )
    [ \t]* (?: (?<=[\s'"=]) \# [^\n]* )? (?: \n | \Z )
    """,
    re.VERBOSE | re.DOTALL,
)
_BLANK = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$"}


def read_env(file: Path) -> dict[str, str]:
    """The variables that ``file`` sets.

    Raises:
        ConfigError: for a file that cannot be read, naming the line where that is the reason.
    """
    return parse_env(read_text(file), str(file))


def parse_env(text: str, name: str) -> dict[str, str]:
    """The variables that ``text`` sets; ``name`` is for the message.

    Raises:
        ConfigError: naming the line.
    """
    found: dict[str, str] = {}
    text, at = text.replace("\r\n", "\n"), 0
    while at < len(text):
        if blank := _BLANK.match(text, at):
            at = blank.end()
            continue
        entry = _ENTRY.match(text, at)
        if entry is None or "\0" in entry[0]:
            line = text.count("\n", 0, at) + 1
            raise ConfigError(f"{name}:{line}: {text[at:].splitlines()[0]!r} cannot be read; write KEY=VALUE")
        found[entry["key"]] = _value(entry)
        at = entry.end()
    return found


def secret_in(name: str) -> str:
    """The secret that the variable ``name`` holds.

    Raises:
        ConfigError: when it holds none.
    """
    secret = os.environ.get(name)
    if not secret:
        raise ConfigError(f"the variable {name} (--secret-env) is {'empty' if secret == '' else 'not set'}; set it")
    return secret


def _value(entry: re.Match[str]) -> str:
    if entry["double"] is not None:
        return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), entry["double"])
    return entry["single"] or (entry["bare"] or "").rstrip()
