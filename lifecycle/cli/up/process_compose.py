"""The processes of `lifecycle up`, read from the YAML of process-compose.

Keys with an equivalent in `lifecycle up` are translated. An unsupported key that would change what runs is an error.
Other keys are ignored, some of them with a warning.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from lifecycle._util import needs_extra
from lifecycle.cli.files import Replaced, did_you_mean, read_env, read_text, shown
from lifecycle.cli.output import ConfigError
from lifecycle.cli.up.processes import process_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from lifecycle.cli.up.processes import ExitOn, Process

__all__ = ["read_process_compose"]

#: The end of the error message for each unsupported key.
_REFUSED: Final = {
    "env_cmds": "run the commands in the processes",
    "extends": "write the keys into this file",
    "http_get.headers": "let the program answer without them",
    "is_daemon": "run the program in the foreground, because no process outlives `lifecycle up`",
    "is_dotenv_disabled": "remove variables for other processes from .env",
    "is_elevated": "run `lifecycle up` as root, with `user` in lifecycle.toml for the others",
    "mcp": "remove the process",
    "schedule": "start the program with a timer of systemd, or with a ScheduleSource",
    "shutdown.command": "use shutdown.signal",
    "shutdown.send_keys": "use shutdown.signal",
    "vars": "write the values into the commands",
}
#: Keys that have no effect here, or that request what `lifecycle up` always does.
_UNNEEDED: Final = (
    *("version", "name", "description", "is_strict", "is_tui_disabled", "ordered_shutdown", "log_level", "log_length"),
    *("is_template_disabled", "shutdown.parent_only", "disable_ansi_colors", "launch_timeout_seconds"),
    *("readiness_probe.initial_delay_seconds", "liveness_probe.initial_delay_seconds", "http_get.status_code"),
    *("readiness_probe.success_threshold", "liveness_probe.success_threshold"),
)
#: Keys that are ignored with a warning.
_IGNORED: Final = (
    *("log_location", "log_format", "log_configuration", "truncate_log", "namespace", "is_tty", "is_interactive"),
    *("watch", "mcp_server", "monitor_for", "monitor_silence_threshold", "availability.exit_on_skipped"),
)
_CONDITIONS: Final = {
    "process_started": "started",
    "process_healthy": "healthy",
    "process_log_ready": "healthy",
    "process_completed": "ended",
    "process_completed_successfully": "completed",
}
_POLICIES: Final = {
    "no": "never",
    "never": "never",
    "always": "always",
    "on_failure": "on-failure",
    "exit_on_failure": "never",
}
_REFERENCE: Final = re.compile(r"\$(?:\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}|(?P<bare>[A-Za-z_]\w*))")
#: The maximum number of values in a file, counting each alias.
_MOST_VALUES: Final = 100_000
#: The default condition of a dependency.
_STARTED: Final = "process_started"


def read_process_compose(
    file: Path, variables: Mapping[str, str], warn: Callable[[str], object]
) -> tuple[Process, ...]:
    """Return the processes in a process-compose file, replacing references to ``variables`` in its values.

    Raises:
        ConfigError: if the file, or a key in it, is invalid or not supported.
    """
    try:
        value = _load(file)
        _check_size(value)
        if not _Node(value, "", warn).flag("disable_env_expansion"):
            value = _expanded(value, variables)
        project = _Node(value, "", warn)
        project.flag("disable_env_expansion")
        reader = _Reader(file.parent, project)
        found = tuple(reader.process(name, node) for name, node in project.nodes("processes"))
        project.check()
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: is nested too deeply, or contains itself; remove this nesting") from None
    return found


def _check_size(value: Any) -> None:
    """Raise `ValueError` if aliases, which are cheap to read, make up too many values."""
    if (count := _size(value, {})) > _MOST_VALUES:
        raise ValueError(f"its aliases make up {count} values, and the limit is {_MOST_VALUES}; remove some aliases")


def _size(value: Any, known: dict[int, int]) -> int:
    """Return the number of values in ``value``, where an alias counts as often as it occurs."""
    identity = id(value)
    if identity not in known:
        known[identity] = 1 + sum(_size(each, known) for each in _values_below(value))
    return known[identity]


def _values_below(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return cast("dict[object, Any]", value).values()
        case list():
            return cast("list[object]", value)
        case _:
            return ()


def _load(file: Path) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]  # its stubs are another package
    except ModuleNotFoundError:
        raise ConfigError(f"{file}: {needs_extra('YAML', 'PyYAML', 'yaml')}") from None
    try:
        return yaml.load(read_text(file), _loader(yaml.SafeLoader, yaml.constructor.ConstructorError))  # noqa: S506  # safe
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: cannot be read: {' '.join(str(error).split())}") from None


def _loader(base: Any, wrong: Any) -> Any:
    """Return a loader that raises the error ``wrong`` for duplicate keys, keys such as ``on``, and invalid values."""

    class Loader(base):  # type: ignore[misc]  # PyYAML is imported when it is needed
        def compose_mapping_node(self, anchor: str | None) -> Any:
            node: Any = base.compose_mapping_node(self, anchor)
            seen: set[str] = set()
            keys: list[Any] = [key for key, _ in node.value if isinstance(key.value, str)]
            for key in keys:
                if key.tag == "tag:yaml.org,2002:bool":
                    raise wrong(None, None, f"the key {key.value} is a boolean; write it in quotes", key.start_mark)
                if key.value in seen:
                    raise wrong(None, None, f"the key {key.value} occurs twice; remove one of them", key.start_mark)
                # Several mappings can be merged.
                if key.value != "<<":
                    seen.add(key.value)
            return node

        def flatten_mapping(self, node: Any) -> None:
            if _flattened_size(node, self.flatten_mapping) > _MOST_VALUES:
                raise wrong(None, None, "<< merges too many keys; remove some aliases", node.start_mark)
            base.flatten_mapping(self, node)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return base.construct_object(self, node, deep)
            except (AttributeError, KeyError, TypeError, ValueError):
                raise wrong(None, None, f"not a valid {node.tag.rpartition(':')[2]}", node.start_mark) from None

    return Loader


def _flattened_size(node: Any, flatten: Callable[[Any], None]) -> int:
    """Call ``flatten`` for each mapping that the ``<<`` keys of a mapping merge. Return the number of their keys."""
    values = [value for key, value in node.value if key.tag == "tag:yaml.org,2002:merge"]
    given = [each for value in values for each in (value.value if value.id == "sequence" else [value])]
    merged = [each for each in given if each.id == "mapping"]
    for each in merged:
        flatten(each)
    return sum(len(each.value) for each in merged)


class _Node:
    """A mapping at ``path`` in the file, such as ``processes.web``. `check` reports keys that were not read.

    Raises:
        ValueError: if ``value`` is not a mapping.
    """

    def __init__(self, value: Any, path: str, warn: Callable[[str], object]) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{path or 'the file'} is not a mapping; write KEY: VALUE below it")  # noqa: TRY004  # as readers
        self._values = {str(key): each for key, each in cast("dict[object, Any]", value).items()}
        self._read: set[str] = set()
        self.path = path
        self.warn = warn

    def at(self, key: str) -> str:
        """Return the path of a key, for messages."""
        return f"{self.path}.{key}".removeprefix(".")

    def get(self, key: str) -> Any:
        """Return a key's value, or None if the key is missing."""
        self._read.add(key)
        return self._values.get(key)

    def node(self, key: str) -> _Node:
        """Return the mapping below a key. It is empty if the key is missing."""
        value = self.get(key)
        return _Node({} if value is None else value, self.at(key), self.warn)

    def nodes(self, key: str) -> list[tuple[str, _Node]]:
        """Return the names and mappings in the mapping below a key."""
        of = self.node(key)
        return [(name, of.node(name)) for name in of._values]  # noqa: SLF001  # the same class

    def text(self, key: str) -> str | None:
        """Return a key's value as a string, or None if the key is missing. Numbers are converted."""
        value = self.get(key)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bool | list | dict):
            raise ValueError(f"{self.at(key)}: {shown(value)} is not a string; write it in quotes")  # noqa: TRY004  # as readers
        return str(value)

    def flag(self, key: str) -> bool:
        """Return a key's boolean value, or False if the key is missing."""
        value = self.get(key)
        if value not in (None, True, False, "true", "false"):
            raise ValueError(f"{self.at(key)}: {shown(value)} is not a boolean; write true or false")
        return value in (True, "true")

    def number(self, key: str, default: int, least: int = 0) -> int:
        """Return a key's value as a whole number, or ``default`` if it is missing or less than ``least``."""
        text = self.text(key)
        if text is not None and not (text.isascii() and text.isdecimal()):
            raise ValueError(f"{self.at(key)}: {text!r} is not a whole number")
        return default if text is None or int(text) < least else int(text)

    def _names(self, key: str) -> tuple[str, str]:
        """Return the two names of a key in the tables above: the key alone, and the key with its parent's name."""
        return key, f"{self.path.rpartition('.')[2]}.{key}"

    def refuse(self) -> None:
        """Raise `ValueError` for an unsupported key, unless its value is false."""
        for key, value in self._values.items():
            reason = next((_REFUSED[each] for each in self._names(key) if each in _REFUSED), "")
            if reason and value not in (None, False):
                raise ValueError(f"{self.at(key)} is not supported; {reason}")

    def check(self) -> None:
        """Raise `ValueError` for an unsupported or unknown key, and warn about ignored keys."""
        self.refuse()
        for key in self._values.keys() - self._read:
            known = self._names(key)
            if any(each in _REFUSED for each in known):
                continue
            if any(each in _IGNORED for each in known):
                hint = "; use --log-dir" if key == "log_location" else ""
                self.warn(f"{self.at(key)} is ignored{hint}")
            elif not any(each in _UNNEEDED for each in known) and not key.startswith("x-"):
                raise ValueError(f"{self.at(key)} is not known; {did_you_mean(key, self._read)}")


class _Reader:
    """Reads the processes in ``project``. Paths are relative to ``base``."""

    def __init__(self, base: Path, project: _Node) -> None:
        self._base = base
        self._env = self._pairs(project)
        shell = project.node("shell")
        self._shell = (shell.text("shell_command") or "bash", shell.text("shell_argument") or "-c")

    def process(self, name: str, node: _Node) -> Process:
        """Return a process."""
        node.refuse()
        disabled = [node.flag(key) for key in ("disabled", "is_disabled", "is_foreground")]
        keys: dict[str, Any] = {
            "command": self._command(node),
            "env": {"PC_PROC_NAME": name, **self._env, **self._env_file(node), **self._pairs(node)},
            "depends-on": {other: self._condition(need) for other, need in node.nodes("depends_on")},
            "disabled": any(disabled),
            "replicas": node.number("replicas", 1, 1),
            **self._stop(node.node("shutdown")),
        }
        for key, ours in (("working_dir", "cwd"), ("success_exit_codes", "success-exit-codes")):
            if (value := node.get(key)) is not None:
                keys[ours] = value
        restart, exit_on = self._restarts(node.node("availability"))
        keys |= restart | self._probes(node, restarts="max-restarts" in restart)
        node.check()
        if not keys["command"]:
            raise ValueError(f'{node.path} has no command; add one, such as command: "python app.py"')
        try:
            process = process_of(name, keys, self._base)
        except ValueError as error:
            raise ValueError(f"{node.path}: {error}") from None
        return replace(process, exit_on=exit_on, constant_backoff=True)

    def _command(self, node: _Node) -> list[str]:
        """Return the words of the command, or an empty list if there is none."""
        line, words = node.text("command"), node.get("entrypoint")
        if line:
            return [*self._shell, line]
        if not isinstance(words, list):
            return []
        return [word if isinstance(word, str) else str(word) for word in cast("list[object]", words)]

    def _env_file(self, node: _Node) -> dict[str, str]:
        file = node.text("env_file")
        return {} if file is None else read_env(self._base / (node.text("working_dir") or "") / file)

    @staticmethod
    def _pairs(node: _Node) -> dict[str, str]:
        """Return the variables in a list of ``KEY=VALUE`` strings."""
        given: list[object] | object = node.get("environment") or []
        if not isinstance(given, list) or not all(isinstance(each, str) and "=" in each for each in given):  # pyright: ignore[reportUnknownVariableType]  # YAML
            raise ValueError(f"{node.at('environment')} is not a list of strings such as 'KEY=VALUE'")
        pairs = (each.partition("=") for each in cast("list[str]", given))
        return {key: value for key, _, value in pairs}

    @staticmethod
    def _condition(node: _Node) -> str:
        given = node.text("condition") or _STARTED
        node.check()
        if given not in _CONDITIONS:
            raise ValueError(f"{node.at('condition')}: {given!r} is not known; {did_you_mean(given, _CONDITIONS)}")
        return _CONDITIONS[given]

    @staticmethod
    def _stop(node: _Node) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if number := node.number("signal", 0):
            found["stop-signal"] = str(number)
        if seconds := node.number("timeout_seconds", 0):
            found["stop-timeout"] = seconds
        node.check()
        return found

    @staticmethod
    def _restarts(node: _Node) -> tuple[dict[str, Any], ExitOn]:
        """Return the keys for restarts, and which exits of the process stop all processes."""
        given = node.get("restart")
        # YAML 1.1 reads an unquoted `no` as false.
        policy = "no" if given in (None, False) else str(given)
        if policy not in _POLICIES:
            raise ValueError(f"{node.at('restart')}: {policy!r} is not known; {did_you_mean(policy, _POLICIES)}")
        limits = {"backoff": node.number("backoff_seconds", 1, 1), "max-restarts": node.number("max_restarts", 0)}
        exit_on: ExitOn = "failure" if policy == "exit_on_failure" else "never"
        if node.flag("exit_on_end"):
            exit_on = "end"
        node.check()
        found = {"restart": _POLICIES[policy]}
        return (found if found["restart"] == "never" else {**found, **limits, "first-start": "retry"}), exit_on

    def _probes(self, node: _Node, *, restarts: bool) -> dict[str, Any]:
        """Return the keys for readiness and health. process-compose also restarts a process that is no longer ready."""
        readiness, liveness = node.node("readiness_probe"), node.node("liveness_probe")
        probes = {readiness: self._check(readiness), liveness: self._check(liveness)}
        keys: dict[str, Any] = {}
        if line := node.text("ready_log_line"):
            keys["ready"] = f"line:{re.escape(line)}"
        elif probes[readiness].startswith("http"):
            timing = self._timing(readiness)
            least = readiness.number("initial_delay_seconds", 0)
            keys["ready"] = probes[readiness]
            keys["start-timeout"] = least + timing["probe-failures"] * timing["probe-interval"]
        elif all(probes.values()):
            node.warn(f"{liveness.path} is ignored, because readiness_probe is a command")
            probes[liveness] = ""
        for each in (liveness, readiness):
            timing = self._timing(each)
            each.check()
            if probes[each] and "probe" not in keys:
                keys |= {"probe": probes[each], **timing, "restart-unhealthy": restarts}
        return keys

    def _check(self, node: _Node) -> str:
        """Return a probe in the form that a `Spec` accepts, or an empty string if there is none."""
        http, command = node.node("http_get"), node.node("exec")
        host, port, path, scheme = (http.text(key) for key in ("host", "port", "path", "scheme"))
        line, directory = command.text("command"), command.text("working_dir")
        http.check()
        command.check()
        if line:
            inside = f"cd {shlex.quote(directory)} && {line}" if directory else line
            return f"cmd:{shlex.join([*self._shell, inside])}"
        if not any((host, port, path, scheme)):
            return ""
        return f"{scheme or 'http'}://{host or '127.0.0.1'}{f':{port}' if port else ''}{path or '/'}"

    @staticmethod
    def _timing(node: _Node) -> dict[str, int]:
        return {
            "probe-interval": node.number("period_seconds", 10, 1),
            "probe-timeout": node.number("timeout_seconds", 1, 1),
            "probe-failures": node.number("failure_threshold", 3, 1),
        }


# -- variables ---------------------------------------------------------------------------------------------------------


def _expanded(value: Any, variables: Mapping[str, str], at: str = "") -> Any:
    """Replace ``$NAME`` and ``${NAME:-default}`` in all strings below ``value``. ``$$`` becomes ``$``.

    Raises:
        ValueError: if a variable is not set, except in a command, where the shell replaces it.
    """
    match value:
        case dict():
            items = cast("dict[object, Any]", value).items()
            return {key: _expanded(each, variables, f"{at}.{key}".removeprefix(".")) for key, each in items}
        case list():
            return [_expanded(each, variables, at) for each in cast("list[object]", value)]
        case str():
            in_shell = at.rpartition(".")[2] == "command"
            replaced = _in_shell if in_shell else _required
            parts = value.split("$$")
            try:
                text = "$".join(_REFERENCE.sub(lambda found: replaced(found, variables), part) for part in parts)
            except ValueError as error:
                raise ValueError(f"{at}: {error}") from None
            return text if text == "$".join(parts) else Replaced(text, value)
        case _:
            return value


def _in_shell(found: re.Match[str], variables: Mapping[str, str]) -> str:
    return variables.get(found["name"] or found["bare"], found[0])


def _required(found: re.Match[str], variables: Mapping[str, str]) -> str:
    name = found["name"] or found["bare"]
    if found["default"] is not None:
        return variables.get(name) or found["default"]
    if name not in variables:
        raise ValueError(f"{found[0]} is not set; set {name}, or write ${found[0]} for the literal text")
    return variables[name]
