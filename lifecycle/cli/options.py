"""What an option is, on a command line and as a key of a configuration file; a key is an option's long name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from lifecycle.cli import values
from lifecycle.cli.config import shown, texts

__all__ = ["LOG_FORMAT", "Flag", "Option", "read_value"]

_Read: TypeAlias = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """An option with a value; where ``many`` may be given, one text reads as a tuple and they are joined."""

    name: str
    metavar: str
    help: str
    read: _Read = str
    #: What a configuration file may give: texts, or numbers.
    number: bool = False
    many: bool = False

    @property
    def field(self) -> str:
        """Where the settings keep it."""
        return self.name.replace("-", "_")


@dataclass(frozen=True, slots=True)
class Flag:
    """An option without a value. ``--NAME`` and ``--no-NAME`` both exist, so that a file can be overruled."""

    name: str
    help: str
    #: What it is without being given; the help shows the form that changes it.
    default: bool = False

    @property
    def field(self) -> str:
        """Where the settings keep it."""
        return self.name.replace("-", "_")

    @property
    def shown(self) -> str:
        """The form that changes the default."""
        return f"no-{self.name}" if self.default else self.name


#: Most commands have it.
LOG_FORMAT = Option(
    "log-format", "FORMAT", "how to say what there is to say: text, or json, an object a line", values.log_format
)


def read_value(option: Option, value: Any) -> Any:
    """What ``value``, as a file gives it, means for ``option``.

    Raises:
        ValueError: naming the option, what was given and what is accepted.
    """
    if option.many:
        parts = (part for text in texts(option.name, value) for part in _parse(option, text))
        return tuple(parts)
    if option.number:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{option.name} = {shown(value)} is no number; give one without quotes, such as 5")
        return _parse(option, str(value))
    if not isinstance(value, str):
        raise ValueError(f"{option.name} = {shown(value)} is no text; give one in quotes")  # noqa: TRY004  # what readers raise
    return _parse(option, value)


def _parse(option: Option, text: str) -> Any:
    try:
        return option.read(text)
    except ValueError as error:
        raise ValueError(f"{option.name} = {text if option.number else shown(text)}: {error}") from None
