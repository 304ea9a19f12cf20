"""What the processes write, each line behind the name of its process; and the same without it into files."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from itertools import cycle
from typing import TYPE_CHECKING, Final

from lifecycle.cli.failures import UsageError
from lifecycle.cli.logs import json_line, voice_of
from lifecycle.cli.messages import colourful, painted, put

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import BinaryIO, Self

    from lifecycle.cli.values import LogFormat
    from lifecycle.workers.stdio import Output

__all__ = ["Screen"]

#: Who speaks where we do.
_OURSELVES: Final = "system"
#: Cyan, yellow, green, magenta, blue, and the bright ones; red is for what goes wrong.
_COLOURS: Final = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
_ESCAPE, _RESET = "\x1b", "\x1b[0m"


class Screen:
    """Standard output, shared by processes called ``names``; ``gone`` is called when nobody reads it any more.

    As a context manager it also writes the lines of each to ``log_dir``/NAME.log, at the end of what is there.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        log_dir: Path | None,
        gone: Callable[[], object],
        log_format: LogFormat | None = None,
    ) -> None:
        width = max(map(len, (*names, _OURSELVES)))
        colour = colourful(sys.stdout)
        self._prefixes = {
            name: painted(f"{name:<{width}} |", code) if colour else f"{name:<{width}} |"
            for name, code in zip(names, cycle(_COLOURS), strict=False)
        }
        #: For what we say ourselves.
        self.voice: Final = voice_of(log_format, prefix=f"{_OURSELVES:<{width}} |")
        self._is_json = log_format == "json"
        #: Whether somebody reads it.
        self.read: bool = True
        self._gone = gone
        self._log_dir = log_dir
        self._logs: dict[str, BinaryIO] = {}
        # Those that could not be written to, which is said once.
        self._failed: set[str] = set()
        self._files = ExitStack()

    def __enter__(self) -> Self:
        """Open the files.

        Raises:
            UsageError: if one cannot be written.
        """
        if self._log_dir is not None:
            try:
                self._log_dir.mkdir(parents=True, exist_ok=True)
                self._logs = {name: self._open(self._log_dir / f"{name}.log") for name in self._prefixes}
            except OSError as error:
                self._files.close()
                raise UsageError(f"--log-dir {self._log_dir}: {error.filename}: {error.strerror}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._files.close()

    def output(self, name: str) -> Output:
        """Takes the lines of the process ``name``."""
        prefix, log = self._prefixes[name], self._logs.get(name)

        def take(line: str, stream: str) -> None:
            self._print(json_line(line, worker=name, stream=stream) if self._is_json else _shown(prefix, line))
            if log is not None:
                self._keep(name, log, line)

        return take

    @property
    def logs(self) -> tuple[int, ...]:
        """The descriptors of the files."""
        return tuple(log.fileno() for log in self._logs.values())

    def _print(self, text: str) -> None:
        if not put(sys.stdout, text):
            self.read = False
            self._gone()

    def _keep(self, name: str, log: BinaryIO, line: str) -> None:
        try:
            log.write(f"{line}\n".encode(errors="replace"))
        except OSError as error:
            if name not in self._failed:
                self._failed.add(name)
                self.voice.bad(f"{log.name}: {error.strerror}; lines of {name} are lost (said once)")

    def _open(self, file: Path) -> BinaryIO:
        # Without a buffer: what cannot be written now does not come up again later.
        return self._files.enter_context(file.open("ab", buffering=0))


def _shown(prefix: str, line: str) -> str:
    # A line that begins anew, as progress bars do, begins behind the name; colours end with the line.
    shown = line.replace("\r", f"\r{prefix} ") + (_RESET if _ESCAPE in line else "")
    return f"{prefix} {shown}\n"
