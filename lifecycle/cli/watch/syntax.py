"""Detection of changed files that the command's interpreter cannot compile."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle._text import printable
from lifecycle.cli.watch.contents import fingerprint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

__all__ = ["SyntaxCheck", "syntax_errors"]

_log = logging.getLogger("lifecycle.cli")

#: A program that runs on any Python 3. It reads paths, each followed by a null character, and prints errors as JSON.
#: Modules that are slow to import are imported only if there is an error.
_PROGRAM = """
import os, sys
found = {}
for path in map(os.fsdecode, sys.stdin.buffer.read().split(b"\\0")[:-1]):
    try:
        with open(path, "rb") as stream:
            source = stream.read()
    except OSError:
        continue
    try:
        compile(source, path, "exec", 0, True)
    except (SyntaxError, ValueError) as error:
        import traceback
        found[path] = "".join(traceback.format_exception_only(type(error), error))
    except (MemoryError, RecursionError):
        pass
if found:
    import json
    json.dump(found, sys.stdout)
else:
    sys.stdout.write("{}")
"""
_PYTHON: Final = (".py",)
_JAVASCRIPT: Final = (".js", ".mjs", ".cjs")
#: The report of ``node --check``, up to the message.
_JAVASCRIPT_ERROR: Final = re.compile(r".*?^SyntaxError: [^\n]*", re.DOTALL | re.MULTILINE)
#: Errors in files for browsers and compilers: JSX, and modules in a package of scripts (before Node.js 22.7).
_OTHER_FORMATS: Final = ("Unexpected token '<'", "outside a module", "Unexpected token 'export'")
#: The number of files that are checked at the same time, because ``node --check`` accepts only one file.
_AT_ONCE: Final = 4

#: Isolated mode, no site module, no bytecode files, and no warnings (the command shows its own).
_OPTIONS = ("-I", "-S", "-B", "-W", "ignore", "-c")


class SyntaxCheck:
    """Compiles a command's files with its ``interpreter``, which is Python or Node.js."""

    def __init__(self, interpreter: str) -> None:
        self._interpreter = interpreter
        # The files that could not be compiled, or were not checked yet. The next check includes them.
        self._unsure: frozenset[Path] = frozenset()
        # The file that was compiled in advance, its state at that time, and its errors (None if the check failed).
        self._first: tuple[Path, object, asyncio.Future[dict[Path, str] | None]] | None = None

    async def begin(self, path: Path) -> None:
        """Compile ``path`` in advance, unless another file is already being compiled."""
        if path.suffix not in _suffixes(self._interpreter) or (self._first is not None and not self._first[2].done()):
            return
        state = await asyncio.to_thread(fingerprint, str(path))
        if state is None:
            return
        done = asyncio.get_running_loop().create_future()
        self._first = path, state, done
        errors = None
        try:
            errors = await syntax_errors(self._interpreter, [path])
        finally:
            done.set_result(errors)

    def defer(self, changed: Iterable[Path]) -> None:
        """Include the ``changed`` files in the next check."""
        self._unsure |= {*changed}

    async def errors(self, changed: Iterable[Path] = ()) -> list[str]:
        """Compile the ``changed`` files and any that were broken before, and return the error messages."""
        paths = {*changed, *self._unsure}
        first, errors = await self._first_errors()
        found = errors if first in paths else {}
        found |= await syntax_errors(self._interpreter, sorted(paths - {first}, key=str))
        self._unsure = frozenset(found)
        return list(found.values())

    async def _first_errors(self) -> tuple[Path | None, dict[Path, str]]:
        """Return the file that was compiled in advance and its errors, or None if the file has changed since."""
        first, self._first = self._first, None
        if first is not None:
            path, state, done = first
            errors = await asyncio.shield(done)
            now = await asyncio.to_thread(fingerprint, str(path))
            if errors is not None and now == state:
                return path, errors
        return None, {}


async def syntax_errors(interpreter: str, paths: Iterable[Path], *, limit: float = 5.0) -> dict[Path, str]:
    """Return the files in ``paths`` that ``interpreter`` cannot compile, each with its error message.

    Another process compiles the files, without running them or writing bytecode. Missing files, and files in other
    languages, are skipped. If ``interpreter`` cannot be run, no errors are returned. After ``limit`` seconds, only the
    errors found so far are returned.
    """
    suffixes = _suffixes(interpreter)
    sources = [path for path in paths if path.suffix in suffixes]
    found: dict[Path, str] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(limit):
            await (_find_in_python if suffixes is _PYTHON else _find_in_javascript)(interpreter, sources, found)
    # A name with a newline could imitate one of our messages.
    return {path: text.replace(str(path), printable(str(path))) for path, text in found.items()}


def _suffixes(interpreter: str) -> tuple[str, ...]:
    return _JAVASCRIPT if Path(interpreter).name.startswith("node") else _PYTHON


async def _find_in_python(python: str, sources: Collection[Path], found: dict[Path, str]) -> None:
    if not sources:
        return
    answer = await _output([python, *_OPTIONS, _PROGRAM], b"".join(os.fsencode(path) + b"\0" for path in sources))
    try:
        errors: dict[str, str] = json.loads(answer)
    except ValueError:
        _log.debug("%s did not check the syntax of %s", python, sources)
    else:
        found.update({Path(path): text.rstrip() for path, text in errors.items()})


async def _find_in_javascript(node: str, sources: Iterable[Path], found: dict[Path, str]) -> None:
    left = iter(sources)

    async def check() -> None:
        for path in left:
            report = (await _output([node, "--check", str(path)], errors=True)).decode(errors="replace")
            error = _JAVASCRIPT_ERROR.match(report)
            if error is not None and not any(text in error[0] for text in _OTHER_FORMATS):
                found[path] = error[0]

    async with asyncio.TaskGroup() as tasks:
        for number in range(_AT_ONCE):
            tasks.create_task(check(), name=f"node --check {number}")


async def _output(argv: Sequence[str], question: bytes = b"", *, errors: bool = False) -> bytes:
    """Run a program and return its output (with ``errors``, its standard error), or nothing if it cannot be run."""
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    out, err = (null, pipe) if errors else (pipe, null)
    # Options for the command, such as --inspect, do not apply to the check.
    env = {name: value for name, value in os.environ.items() if name != "NODE_OPTIONS"}
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=out, stderr=err, env=env, start_new_session=True
        )
    except OSError as error:
        _log.debug("cannot run %s: %s", argv[0], error)
        return b""
    try:
        output = await process.communicate(question)
    finally:
        if process.returncode is None:
            # Kill the whole group, because other processes in it would keep the pipes open.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # Unlike wait(), this also closes the pipes.
            await process.communicate()
    return output[errors] or b""
