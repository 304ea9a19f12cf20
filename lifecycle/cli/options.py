"""Declaration of options, and reading of their values from a command line or a TOML file.

If a value is invalid, its reader raises a `ValueError` that lists the accepted values. The caller adds the name of the
option or key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast, get_args

from lifecycle._net import is_loopback
from lifecycle.cli.files import did_you_mean, shown, texts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lifecycle.control.patterns import Pattern
    from lifecycle.events import Change

__all__ = [
    "LOG_FORMAT",
    "Action",
    "Address",
    "Assignment",
    "Busy",
    "Colour",
    "Glob",
    "LogFormat",
    "Option",
    "Policy",
    "Rule",
    "SignalMap",
    "address",
    "assignments",
    "busy",
    "changes",
    "colour",
    "copies",
    "count",
    "extensions",
    "find_option",
    "first_start",
    "globs",
    "interval",
    "log_format",
    "option",
    "options_of",
    "path",
    "paths",
    "policy",
    "port",
    "positive",
    "probe",
    "read_flag",
    "read_value",
    "ready",
    "rules",
    "seconds",
    "signal",
    "signal_maps",
    "store",
    "variable",
]

#: How to respond to a change while the command is running.
Busy: TypeAlias = Literal["restart", "queue", "drop"]

#: When to restart a command that has exited.
Policy: TypeAlias = Literal["never", "on_failure", "always"]

#: How to respond if a process fails when it is first started.
FirstStart: TypeAlias = Literal["fail", "retry"]

#: How to respond when a file changes.
Action: TypeAlias = Literal["restart", "reload", "ignore"]

#: When to print messages in colour.
Colour: TypeAlias = Literal["auto", "always", "never"]

#: An environment variable's name and value.
Assignment: TypeAlias = tuple[str, str]

#: The format in which messages are printed.
LogFormat: TypeAlias = Literal["text", "json"]

_Read: TypeAlias = Callable[[str], Any]


class Address(NamedTuple):
    """An address to listen on."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the address."""
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class Glob:
    """A glob for paths. It uses the pattern syntax of topics, with the rules of ``.gitignore``.

    ``*`` and ``?`` never match a slash, but ``**`` does. A glob without a slash matches names in any directory. A glob
    with a slash is anchored at ``base``. A glob that ends in a slash matches everything below a directory. Paths use
    forward slashes, and are relative to ``base`` or, if ``base`` is None, to the current directory.

    Raises:
        ValueError: if the glob is empty. An invalid glob raises the subclass `InvalidPattern`, which contains the
            position of the error.
    """

    text: str
    base: Path | None = None
    _pattern: Pattern = field(init=False, repr=False, compare=False)
    _below: Pattern | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.text.strip("./"):
            raise ValueError(f"{self.text!r} is not a glob for paths; use one such as '*.py' or 'src/**'")
        from lifecycle.control.patterns import path_glob  # slow to import, and not needed for the help

        anchored = self.text.removeprefix("./").strip("/")
        floating = "/" not in self.text.rstrip("/")
        pattern = path_glob(f"**/{anchored}" if floating else anchored)
        object.__setattr__(self, "_pattern", pattern)
        object.__setattr__(self, "_below", path_glob(f"{pattern}/**") if self.text.endswith("/") else None)

    def at(self, base: Path) -> Glob:
        """Return a copy of this glob with ``base`` as its base directory."""
        return replace(self, base=base)

    @property
    def is_name(self) -> bool:
        """True if the glob contains no wildcards."""
        return self._below is None and not any(char in self.text for char in "*?[")

    @property
    def is_path(self) -> bool:
        """True if the glob contains no wildcards, and refers to a single path."""
        return self.is_name and "/" in self.text

    def matches(self, path: str) -> bool:
        """Return True if the glob matches the path."""
        if self._below is not None:
            return self._below.matches(path) and not self._pattern.matches(path)
        return self._pattern.matches(path)

    def covers(self, path: str) -> bool:
        """Return True if the glob matches the path or one of its parent directories."""
        parts = path.split("/")
        # A glob for directories does not match a file of the same name.
        last = len(parts) - (self._below is not None)
        return any(self._pattern.matches("/".join(parts[:end])) for end in range(1, last + 1))


class Rule(NamedTuple):
    """The action for paths that match a glob."""

    glob: Glob
    action: Action

    def at(self, base: Path) -> Rule:
        """Return a copy of this rule whose glob has ``base`` as its base directory."""
        return self._replace(glob=self.glob.at(base))


class SignalMap(NamedTuple):
    """The signal to send when ``received`` arrives, or None to send no signal."""

    received: Signals
    sent: Signals | None


_HIGHEST_EXIT_CODE = 255
_HIGHEST_PORT = 65535
#: These signals cannot be mapped, because they cannot be caught or because the command's terminal needs them.
_UNMAPPABLE = {"SIGKILL", "SIGSTOP", "SIGCHLD", "SIGCONT", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGWINCH"}
_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001}


def seconds(text: str) -> float:
    """Read a non-negative duration, as a number of seconds or with the unit s or ms. Return seconds."""
    value = _seconds(text)
    if not 0 <= value < math.inf:
        raise ValueError("expected seconds, such as 0.5 or 500ms")
    return value


def interval(text: str) -> float:
    """Read a positive duration, in the same format as `seconds`."""
    value = _seconds(text)
    if not 0 < value < math.inf:
        raise ValueError("expected seconds above zero, such as 0.5 or 500ms")
    return value


def _seconds(text: str) -> float:
    number = text.rstrip("ms")
    try:
        return float(number) * _UNITS[text.removeprefix(number)]
    except (KeyError, ValueError):
        return math.nan


def count(text: str) -> int:
    """Read a non-negative integer."""
    if not text.isdecimal():
        raise ValueError("expected a whole number, or 0 for no limit")
    return int(text)


def copies(text: str) -> int:
    """Read a number of copies."""
    if not text.isdecimal():
        raise ValueError("expected a whole number, such as 2")
    return int(text)


def positive(text: str) -> int:
    """Read an integer of one or more."""
    if not text.isdecimal() or not int(text):
        raise ValueError("expected a whole number above zero")
    return int(text)


def exit_codes(text: str) -> tuple[int, ...]:
    """Read an exit code, as reported by a shell."""
    if not text.isdecimal() or int(text) > _HIGHEST_EXIT_CODE:
        raise ValueError(f"expected an exit code from 0 to {_HIGHEST_EXIT_CODE}, such as 143 for SIGTERM")
    return (int(text),)


def signal(text: str) -> Signals:
    """Read a signal, given as a number or as a name with or without SIG."""
    name = text.upper()
    try:
        if name.isdecimal():
            return Signals(int(name))
        return Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except (KeyError, ValueError):
        raise ValueError("expected a signal, such as HUP, SIGUSR1 or 10") from None


def signal_maps(text: str) -> tuple[SignalMap, ...]:
    """Read one ``FROM:TO``. If ``TO`` is empty, the signal is discarded."""
    received, colon, sent = text.partition(":")
    if not colon:
        raise ValueError("expected FROM:TO, such as USR1:HUP, or FROM: to discard the signal")
    found = SignalMap(signal(received), signal(sent) if sent else None)
    if found.received in (Signals.SIGTERM, Signals.SIGINT):
        raise ValueError(f"{found.received.name} stops the command with --stop-signal; map another signal")
    if found.received is Signals.SIGHUP:
        raise ValueError("SIGHUP acts like a change; to send it to the command, use --signal HUP")
    if found.received.name in _UNMAPPABLE:
        raise ValueError(f"{found.received.name} cannot be mapped; map another signal")
    return (found,)


def address(text: str) -> Address:
    """Read ``HOST:PORT``. An IPv6 host must be in brackets."""
    host, colon, number = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", number) or (":" in host and not bracketed):
        raise ValueError("expected HOST:PORT, such as 127.0.0.1:9000 or [::1]:9000")
    return Address(host[1:-1] if bracketed else host, port(number))


def port(text: str) -> int:
    """Read a TCP port, where 0 means any free port."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > _HIGHEST_PORT:
        raise ValueError("expected a port from 0 (any free port) to 65535")
    return int(text)


def _one_of(choices: object) -> Callable[[str], Any]:
    """Return a reader that accepts the values of a `Literal`, with dashes or underscores."""
    values: dict[str, str] = {each.replace("_", "-"): each for each in get_args(choices)}
    *first, last = values

    def read(text: str) -> Any:
        if (value := values.get(text.replace("_", "-"))) is None:
            raise ValueError(f"expected {', '.join(first)} or {last}")
        return value

    return read


busy: _Read = _one_of(Busy)
colour: _Read = _one_of(Colour)
policy: _Read = _one_of(Policy)
first_start: _Read = _one_of(FirstStart)
log_format: _Read = _one_of(LogFormat)


def ready(text: str) -> str:
    """Read a condition that `ProcessWorker` can wait for."""
    from lifecycle.workers.readiness import parse_ready

    try:
        parse_ready(text)
    except ValueError as error:
        raise ValueError(_advice(error, text)) from None
    return text


def probe(text: str) -> str:
    """Read a health check in the format that `Spec` accepts."""
    from lifecycle.workers.probes import parse_probe

    try:
        parse_probe(text, "")
    except ValueError as error:
        raise ValueError(_advice(error, text)) from None
    return text


def _advice(error: ValueError, text: str) -> str:
    """Return the error message without the leading ``text``, because the caller has already shown the text."""
    return "give " + str(error).partition(" must be ")[2].replace(f", got {text!r}", "")


def rules(text: str) -> tuple[Rule, ...]:
    """Read one ``GLOB=ACTION``. The glob itself may contain ``=``."""
    pattern, _, action = text.rpartition("=")
    if not pattern or action not in get_args(Action):
        raise ValueError("expected GLOB=restart, GLOB=reload or GLOB=ignore, such as '*.html=reload'")
    return tuple(Rule(glob, cast("Action", action)) for glob in globs(pattern))


def globs(text: str) -> tuple[Glob, ...]:
    """Read one glob for paths."""
    return (Glob(text),)


def changes(text: str) -> tuple[Change, ...]:
    """Read kinds of changes separated by commas."""
    from lifecycle.events import Change

    read = _one_of(Change)
    return tuple(read(each.strip()) for each in text.split(","))


def extensions(text: str) -> tuple[str, ...]:
    """Read file name extensions separated by commas, with or without the dot."""
    found = tuple(each.strip().removeprefix(".") for each in text.split(","))
    if not all(found) or any("/" in each or "*" in each for each in found):
        raise ValueError("expected extensions separated by commas, such as py,toml")
    return found


def variable(text: str) -> str:
    """Read the name of an environment variable."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError("expected the name of an environment variable, such as WEBHOOK_SECRET (not the secret)")
    return text


def assignments(text: str) -> tuple[Assignment, ...]:
    """Read one ``KEY=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
        raise ValueError("expected KEY=VALUE, such as PORT=8000")
    return ((name, value),)


def path(text: str) -> Path:
    """Read a path. It does not have to exist."""
    if not text or "\0" in text:
        raise ValueError("expected a path")
    return Path(text)


def paths(text: str) -> tuple[Path, ...]:
    """Read one path as a tuple. It does not have to exist."""
    return (path(text),)


def store(text: str) -> Path | str:
    """Read a path or a server's URL. The URL is not checked, because an error message could reveal its password."""
    return text if "://" in text else path(text)


# -- declarations -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """A command-line option, and the key with the same name in a configuration file.

    A flag has two forms, ``--NAME`` and ``--no-NAME``, so that the command line can override a configuration file.
    An option with ``many`` can be repeated. Each value is read as a tuple, and the tuples are joined.
    """

    name: str
    help: str
    #: The placeholder for the value in the help, or None for a flag.
    metavar: str | None = None
    read: _Read = str
    #: Whether the value in a configuration file is a number rather than a string.
    number: bool = False
    many: bool = False
    default: Any = None
    #: The heading above the option in the help.
    group: str = "options"
    #: Alternative names on the command line, including dashes. For a flag, they select the form shown in the help.
    aliases: tuple[str, ...] = ()
    #: Additional names that take no value, and the value that each name assigns to this option.
    presets: tuple[tuple[str, Any], ...] = ()

    @property
    def is_flag(self) -> bool:
        """True if the option does not take a value."""
        return self.metavar is None

    @property
    def field(self) -> str:
        """The name of the settings field."""
        return self.name.replace("-", "_")

    @property
    def shown(self) -> str:
        """The name shown in the help. For a flag, it is the form that changes the default."""
        return f"no-{self.name}" if self.default is True else self.name

    @property
    def shown_default(self) -> str:
        """The default, as a user would write it. Empty for a flag, or if there is no default."""
        match self.default:
            case Signals() as default:
                return default.name.removeprefix("SIG")
            case bool() | None | ():
                return ""
            case float() as default:
                return f"{default:g}"
            case default:
                return str(default)

    @property
    def described(self) -> str:
        """The help text, followed by the default if there is one."""
        return f"{self.help} [default: {self.shown_default}]" if self.shown_default else self.help

    def preset_help(self, value: Any) -> str:
        """Return the help text for a name that sets this option to ``value``."""
        written = f"--{'' if value else 'no-'}{self.name}" if self.is_flag else f"--{self.name} {value}"
        return f"same as '{written}'" + (", which is the default" if value == self.default else "")


def option(  # noqa: PLR0913  # the fields of `Option`, each with a default
    metavar: str | None,
    help: str,  # noqa: A002  # the name argparse uses
    read: _Read = str,
    *,
    default: Any = None,
    number: bool = False,
    many: bool = False,
    group: str = "options",
    aliases: tuple[str, ...] = (),
    presets: tuple[tuple[str, Any], ...] = (),
) -> Any:
    """Declare a field of a settings dataclass as an option (see `Option`). Without ``metavar``, it is a flag."""
    default = () if many else default
    # `options_of` sets the name to the field's name.
    declared = Option("", help, metavar, read, number, many, default, group, aliases, presets)
    return field(default=default, metadata={"option": declared})


#: The message format for `watch`, `up` and `run`.
LOG_FORMAT = Option(
    "log-format",
    "set the format of messages: text, or json for one JSON object per line",
    "FORMAT",
    log_format,
    default="text",
    group="output",
)


def options_of(settings: type) -> tuple[Option, ...]:
    """Return the options that a settings dataclass declares, in the order of its fields."""
    return tuple(
        replace(each.metadata["option"], name=each.name.replace("_", "-"))
        for each in fields(settings)
        if "option" in each.metadata
    )


def find_option(key: str, known: Iterable[Option], *others: str) -> tuple[Option, bool]:
    """Return the option for a key in a configuration file, and whether the key negates a flag.

    The key may contain dashes or underscores.

    Raises:
        ValueError: if the key is unknown. The message suggests one from ``known`` and ``others``.
    """
    name = key.replace("_", "-")
    for each in known:
        if name == each.name:
            return each, False
        if each.is_flag and name == f"no-{each.name}":
            return each, True
    raise ValueError(f"{key} is not known; {did_you_mean(name, [*others, *(each.shown for each in known)])}")


def read_value(option: Option, value: Any) -> Any:
    """Convert the value of ``option`` in a configuration file to a setting.

    Raises:
        ValueError: if the value is invalid. The message contains the option, the value and the accepted values.
    """
    if option.many:
        given = _numbers(option.name, value) if option.number else texts(option.name, value)
        return tuple(part for text in given for part in _parse(option, text))
    if option.number:
        if not _is_number(value):
            raise ValueError(f"{option.name} = {shown(value)} is not a number; write it without quotes, such as 5")
        return _parse(option, str(value))
    if not isinstance(value, str):
        raise ValueError(f"{option.name} = {shown(value)} is not a string; write it in quotes")  # noqa: TRY004  # readers raise ValueError
    return _parse(option, value)


def _numbers(key: str, value: Any) -> list[str]:
    """Return a number, or a list of numbers, as strings."""
    found: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]  # TOML
    if not all(map(_is_number, found)):
        raise ValueError(f"{key} = {shown(value)} is not a list of numbers; use one such as [0, 1]")
    return [str(each) for each in found]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_flag(key: str, value: Any) -> bool:
    """Convert the value of the flag ``key`` in a configuration file to a setting.

    Raises:
        ValueError: if the value is not a boolean.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{key} = {shown(value)} is not a boolean; write true or false")  # noqa: TRY004  # readers raise ValueError
    return value


def _parse(option: Option, text: str) -> Any:
    try:
        return option.read(text)
    except ValueError as error:
        raise ValueError(f"{option.name} = {text if option.number else shown(text)}: {error}") from None
