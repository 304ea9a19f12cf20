"""The tables ``[up.NAME]`` of a TOML file; `KEYS` has what stands in one besides ``command``, ``cwd`` and ``env``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from lifecycle.cli import values
from lifecycle.cli.config import did_you_mean, shown, texts
from lifecycle.cli.failures import ConfigError
from lifecycle.cli.options import Option, read_value
from lifecycle.cli.up.processes import Process
from lifecycle.cli.up.procfile import NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["KEYS", "read_processes"]


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("give a whole number, 0 for no limit")
    return int(text)


KEYS: Final = (
    Option("env-file", "F", "KEY=VALUE lines for this process, besides those of .env", values.path),
    Option("ready", "WHEN", "when it counts as started, such as port:8000", values.ready),
    Option("start-timeout", "S", "how long it has for that (30)", values.interval, number=True),
    Option("after", "NAME", "start when these have started; a job has to succeed", lambda text: (text,), many=True),
    Option("restart", "POLICY", "start it again never, on-failure or always", values.policy),
    Option(
        "backoff",
        "S",
        "wait S seconds before the first restart, twice as long each time (0.1)",
        values.seconds,
        number=True,
    ),
    Option("max-restarts", "N", "give it up after N restarts within a minute (0: never)", _count, number=True),
    Option("watch", "PATH", "restart it when these files change", lambda text: (values.path(text),), many=True),
    Option("stop-signal", "SIG", "ask it to stop with this signal (TERM)", values.signal),
    Option("stop-timeout", "S", "kill it S seconds after the stop signal (10)", values.seconds, number=True),
)


def read_processes(table: Mapping[str, Any], file: Path, title: str) -> tuple[Process, ...]:
    """The processes of ``table``, which is called ``title`` in ``file``.

    Raises:
        ConfigError: naming file, table, key, what was given and what is accepted.
    """
    found: list[Process] = []
    for name, value in table.items():
        try:
            found.append(_process(name, value, file.parent))
        except ValueError as error:
            raise ConfigError(f"{file}: [{title}.{name}] {error}") from None
    return tuple(found)


def _process(name: str, value: Any, base: Path) -> Process:
    if not NAME.fullmatch(name):
        raise ValueError("is no name for a process; give letters, digits, - and _")
    keys = cast("Mapping[str, Any]", value) if isinstance(value, dict) else {"command": value}
    if "command" not in keys:
        raise ValueError('has no command; give one, such as command = "python app.py"')
    return Process(name, **_fields(keys, base))


def _fields(keys: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """What the keys say, as the record has it; paths are from ``base`` on."""
    found: dict[str, Any] = {"cwd": base}
    for key, value in keys.items():
        match key:
            case "command":
                found[key] = _command(value)
            case "cwd":
                found[key] = _directory(value, base)
            case "env":
                found[key] = _variables(value)
            case _:
                option = _option(key)
                if option.field in found:
                    raise ValueError(f"{key} says the same as another key; keep one of them")
                found[option.field] = read_value(option, value)
    if "env_file" in found:
        found["env_file"] = base / found["env_file"]
    return {**found, "watch": tuple(_watched(path, base) for path in found.get("watch", ()))}


def _option(key: str) -> Option:
    for option in KEYS:
        # Also with the underscores that it has in Python.
        if key in (option.name, option.field):
            return option
    known = ["command", "cwd", "env", *(option.name for option in KEYS)]
    raise ValueError(f"{key} is not known; {did_you_mean(key.replace('_', '-'), known)}")


def _command(value: Any) -> str | tuple[str, ...]:
    words = texts("command", value)
    if not all(word.strip() for word in words[:1]) or not words or any("\0" in word for word in words):
        raise ValueError(
            f"command = {shown(value)} is empty or has a NUL; give a line for the shell, or a list of words"
        )
    return words[0] if isinstance(value, str) else tuple(words)


def _directory(value: Any, base: Path) -> Path:
    [text] = texts("cwd", value) if isinstance(value, str) else [""]
    if not text:
        raise ValueError(f"cwd = {shown(value)} is no path; give the directory that it runs in")
    if not (base / text).is_dir():
        raise ValueError(f"cwd = {shown(value)}: there is no directory {base / text}; make it, or correct the path")
    return base / text


def _watched(path: Path, base: Path) -> Path:
    if not (base / path).exists():
        raise ValueError(f'watch = "{path}": there is no {base / path}; make it, or correct the path')
    return base / path


def _variables(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f'env = {shown(value)} is no table; give one such as {{ PORT = "8000" }}')  # noqa: TRY004  # what readers raise
    return {key: _variable(key, each) for key, each in cast("dict[str, Any]", value).items()}


def _variable(key: str, value: Any) -> str:
    values.variable(key)
    if isinstance(value, bool) or not isinstance(value, str | int) or "\0" in str(value):
        raise ValueError(f"env: {key} = {shown(value)} is no text; give one in quotes")
    return str(value)
