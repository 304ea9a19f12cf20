"""`lifecycle export systemd`: unit files for the processes of `lifecycle up`.

A target starts one service per process. The escaping follows systemd.syntax(7) and systemd.service(5).
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Final

from lifecycle.cli.files import Replaced, permissions_checked, read_env
from lifecycle.cli.output import DONE, ConfigError, UsageError, stderr_console, write
from lifecycle.cli.up.processes import environment, find_file, read_file
from lifecycle.cli.up.run import env_files_of
from lifecycle.cli.up.selection import selected

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lifecycle.cli.up.processes import Process
    from lifecycle.cli.up.selection import UpSettings

__all__ = ["export_systemd"]

#: The first line of each file. Files without it are never replaced.
_MARK: Final = "# Written by lifecycle export systemd, which replaces this file."
#: Files with variables may contain secrets. Units are readable by everyone, because systemd warns otherwise.
_MODES: Final = {".env": 0o600}
_MODE: Final = 0o644
_POLICIES: Final = {"always": "always", "on_failure": "on-failure", "never": "no", None: "always"}
#: If a process depends on a job with one of these conditions, it starts when the job has exited.
_EXITS: Final = ("up", "completed", "ended")
_PLAIN: Final = re.compile(r"/[A-Za-z0-9_./+-]*")
_ESCAPES: Final = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\t": r"\t", "\r": r"\r", "%": "%%"}
#: The characters that are special inside double quotes in a file with variables.
_QUOTED: Final = re.compile(r'[\\"`$]')
_BACKSLASH: Final = r"\\\g<0>"
#: The period of ``max-restarts``, in seconds.
_PERIOD: Final = 60


def export_systemd(settings: UpSettings, directory: Path) -> int:
    """Write the unit files, print their paths, and return the exit status.

    Raises:
        CliError: if an error is found, or a file was written by another program. In that case, nothing is written.
    """
    console = stderr_console()
    with permissions_checked():
        file = (find_file(Path.cwd()) if settings.file is None else Path.cwd() / settings.file).absolute()
        shared = env_files_of(settings.env_file, file)
        processes = selected(read_file(file, *shared, warn=console.warning), settings, file).copies
        app = re.sub("[^A-Za-z0-9_-]+", "_", file.parent.name) or "app"
        units = _Units(app, file, tuple(filter(Path.is_file, shared)), directory.absolute())
        found = units.files(processes)
        try:
            _check_replaceable(found)
            directory.mkdir(parents=True, exist_ok=True)
            for path, text in found.items():
                _write(path, text)
        except OSError as error:
            raise UsageError(f"{error.filename}: {error.strerror}; use another directory") from None
        write(sys.stdout, "".join(f"{path}\n" for path in found))
    for text in units.differences(processes):
        console.warning(text)
    return DONE


def _check_replaceable(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(_MARK):
            raise UsageError(f"{path} was not written by lifecycle export; remove it, or use another directory")


def _write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    mode = _MODES.get(path.suffix, _MODE)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as stream:
        stream.write(text)


@dataclass(frozen=True, slots=True)
class _Units:
    """The unit files for the processes in ``file``. The names of these files begin with ``app``."""

    app: str
    file: Path
    #: Env files whose variables apply to all processes.
    shared: tuple[Path, ...]
    directory: Path

    def files(self, processes: Sequence[Process]) -> dict[Path, str]:
        """Return the text of each file by path."""
        services = [self._service(each.name) for each in processes]
        target = {
            "Unit": [f"Description=Processes of {_path(self.file)}", f"Wants={' '.join(services)}"],
            "Install": ["WantedBy=multi-user.target"],
        }
        found = {self.directory / f"{self.app}.target": _text(target)}
        awaited = {name for each in processes for name, need in each.needs.items() if need in _EXITS}
        for each in processes:
            secrets = self._variables(each)
            found[self.directory / self._service(each.name)] = _text(
                self._sections(each, _type(each, awaited), secrets)
            )
            if secrets:
                lines = [f'{name}="{_QUOTED.sub(_BACKSLASH, value)}"' for name, value in secrets.items()]
                found[self._env_file(each)] = "\n".join([_MARK, *lines, ""])
        return found

    def differences(self, processes: Sequence[Process]) -> list[str]:
        """Return messages about settings that have no equivalent in systemd."""
        waits = {name for each in processes for name, need in each.needs.items() if need in ("up", "healthy")}
        found = [
            f"{each.name}: systemd does not wait until it is ready; use ready = 'notify' if possible"
            for each in processes
            if each.name in waits and each.ready not in (None, "notify")
        ]
        jobs = {each.name for each in processes if each.is_job}
        found += [
            f"{each.name}: systemd does not wait until {name} is {need}; set restart = 'never' for {name}, and remove "
            "its ready and probe"
            for each in processes
            for name, need in each.needs.items()
            if need in ("completed", "ended") and name not in jobs
        ]
        left_out = [
            f"{each.name}: {key} is left out" for each in processes for key in ("probe", "watch") if getattr(each, key)
        ]
        return found + left_out

    def _sections(self, process: Process, kind: list[str], secrets: dict[str, str]) -> dict[str, list[str]]:
        return {
            "Unit": [
                f"Description={process.name} of {_path(self.file)}",
                f"PartOf={self.app}.target",
                *self._dependencies(process),
                *_limits(process),
            ],
            "Service": [
                *kind,
                f"WorkingDirectory={_path(process.cwd)}",
                *(f'Environment="{name}={_escaped(value)}"' for name, value in _own(process, self.shared).items()),
                # The variables in this file take precedence.
                *([f"EnvironmentFile={_path(self._env_file(process))}"] if secrets else ()),
                f"ExecStart={_command(process)}",
                *([] if process.user is None else [f"User={_line('user', process.user)}"]),
                *_stop(process),
            ],
            "Install": [f"WantedBy={self.app}.target"],
        }

    def _dependencies(self, process: Process) -> list[str]:
        needs = {self._service(name): need for name, need in process.needs.items()}
        required = [name for name, need in needs.items() if need != "ended"]
        wanted = [name for name, need in needs.items() if need == "ended"]
        values = {"After": [*needs], "Requires": required, "Wants": wanted}
        return [f"{key}={' '.join(names)}" for key, names in values.items() if names]

    def _variables(self, process: Process) -> dict[str, str]:
        """Return the variables that may be secret: those from env files and the table, and words of the command."""
        own = _own(process, self.shared)
        files = (*self.shared, *filter(None, [process.env_file]))
        found = {name: value for file in files for name, value in read_env(file).items() if name not in own}
        table = {name: value for name, value in process.env.items() if own.get(name) != value}
        for name in found:
            _line("the variable", name)
        return found | table | {_word(number): word for number, word in _replaced(process).items()}

    def _service(self, name: str) -> str:
        return f"{self.app}-{name}.service"

    def _env_file(self, process: Process) -> Path:
        return self.directory / f"{self.app}-{process.name}.env"


def _own(process: Process, shared: Sequence[Path]) -> dict[str, str]:
    """Return the variables in the unit, such as PORT. Our PATH is included so that the same programs are found."""
    known = environment(process, *shared)
    port = {} if process.port is None else {"PORT": known["PORT"]}
    return {"PATH": os.environ.get("PATH", os.defpath), "PYTHONUNBUFFERED": "1", **port}


def _replaced(process: Process) -> dict[int, str]:
    """Return the words of the command that contain the values of variables, by their position."""
    return {number: word for number, word in enumerate(process.argv) if isinstance(word, Replaced)}


def _word(number: int) -> str:
    """Return the variable that contains a word of the command."""
    return f"LIFECYCLE_WORD_{number}"


def _type(process: Process, awaited: set[str]) -> list[str]:
    """Return the service type. Other processes wait until the processes in ``awaited`` have exited."""
    if process.is_job and process.name in awaited:
        # Dependent services start when the job has exited.
        return ["Type=oneshot", "RemainAfterExit=yes"]
    if process.ready == "notify":
        return ["Type=notify", f"TimeoutStartSec={_seconds(process.start_timeout)}"]
    return ["Type=exec"]


def _limits(process: Process) -> list[str]:
    if not process.max_restarts:
        return ["StartLimitIntervalSec=0"]
    return [f"StartLimitIntervalSec={_PERIOD}", f"StartLimitBurst={process.max_restarts + 1}"]


def _stop(process: Process) -> list[str]:
    signals = [Signals(code - 128).name for code in process.success_exit_codes if code - 128 in {*Signals}]
    codes = " ".join([*map(str, process.success_exit_codes), *signals])
    return [
        f"Restart={_POLICIES[process.restart]}",
        f"RestartSec={_seconds(process.backoff)}",
        *([f"SuccessExitStatus={codes}"] if codes else ()),
        "KillMode=mixed",
        f"KillSignal={process.stop_signal.name}",
        # For systemd, 0 means without a limit.
        f"TimeoutStopSec={_seconds(process.stop_timeout) if process.stop_timeout else '1ms'}",
    ]


def _seconds(number: float) -> str:
    """Return ``number`` without an exponent, which systemd would refuse."""
    return f"{number:f}".rstrip("0").rstrip(".")


def _command(process: Process) -> str:
    """Return the value of ExecStart. ``env`` finds a program without a path, because systemd would ignore PATH."""
    program, replaced = process.argv[0], _replaced(process)
    path = str(process.cwd / program) if "/" in program else program
    words = [f'"{_escaped(word).replace("$", "$$")}"' for word in (path, *process.argv[1:])]
    for number in replaced:
        words[number] = f'"${{{_word(number)}}}"'
    words[:1] = [path] if _PLAIN.fullmatch(path) and 0 not in replaced else ["/usr/bin/env", words[0]]
    return " ".join(words)


def _escaped(text: str) -> str:
    """Return ``text`` escaped for a value in double quotes."""
    return "".join(_ESCAPES.get(char) or (char if char.isprintable() else _hex(char)) for char in text)


def _hex(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def _path(path: Path) -> str:
    return _line("the path", str(path))


def _line(what: str, text: str) -> str:
    """Return ``text`` as a value without quotes, which must not continue on, or begin, another line."""
    if not text.isprintable() or text.endswith("\\"):
        raise ConfigError(
            f"{what} {text!r} cannot be used in a unit; use one without control characters, and no backslash at the end"
        )
    return text.replace("%", "%%")


def _text(sections: dict[str, list[str]]) -> str:
    parts = ("\n".join([f"[{title}]", *lines]) for title, lines in sections.items())
    return f"{_MARK}\n" + "\n\n".join(parts) + "\n"
