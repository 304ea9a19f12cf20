"""Detection of changed files that the command's interpreter cannot compile."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle._async import start_task
from lifecycle._text import printable

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncGenerator, Awaitable, Collection, Iterable, Sequence

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
sys.stdout.flush()
os._exit(0)
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
#: The seconds after a check until an interpreter is started for the next one. By then, the command has restarted.
_LATER: Final = 0.5


class SyntaxCheck:
    """Compiles a command's files with its ``interpreter``, which is Python or Node.js."""

    def __init__(self, interpreter: str) -> None:
        self._interpreter = interpreter
        # The files that could not be compiled, or were not checked yet. The next check includes them.
        self._unsure: frozenset[Path] = frozenset()
        # A Python interpreter that waits for the files of the next check, and whether a check has taken it.
        self._ready: asyncio.Task[Process | None] | None = None
        self._taken = asyncio.Event()

    @asynccontextmanager
    async def in_advance(self) -> AsyncGenerator[None]:
        """Keep a Python interpreter ready for the next check while the block runs, which halves the time of a check."""
        task = start_task(self._keep_ready(), name="start Python for the next syntax check")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _keep_ready(self) -> None:
        try:
            while _suffixes(self._interpreter) is _PYTHON:
                await asyncio.sleep(_LATER)
                self._taken.clear()
                self._ready = start_task(_start(_checker(self._interpreter)), name="start Python")
                await self._taken.wait()
        finally:
            if (ready := self._take()) is not None and (process := await ready) is not None:
                await _kill(process)

    def _take(self) -> asyncio.Task[Process | None] | None:
        ready, self._ready = self._ready, None
        self._taken.set()
        return ready

    def defer(self, changed: Iterable[Path]) -> None:
        """Include the ``changed`` files in the next check."""
        self._unsure |= {*changed}

    async def errors(self, changed: Iterable[Path] = ()) -> list[str]:
        """Compile the ``changed`` files and any that were broken before, and return the error messages."""
        paths = sorted({*changed, *self._unsure}, key=str)
        ready = self._take() if any(path.suffix in _PYTHON for path in paths) else None
        found = await syntax_errors(self._interpreter, paths, ready=ready)
        self._unsure = frozenset(found)
        return list(found.values())


async def syntax_errors(
    interpreter: str, paths: Iterable[Path], *, limit: float = 5.0, ready: Awaitable[Process | None] | None = None
) -> dict[Path, str]:
    """Return the files in ``paths`` that ``interpreter`` cannot compile, each with its error message.

    Another process compiles the files, without running them or writing bytecode. Missing files, and files in other
    languages, are skipped. If ``interpreter`` cannot be run, no errors are returned. After ``limit`` seconds, only the
    errors found so far are returned. ``ready`` returns a process of Python that was started for this check.
    """
    suffixes = _suffixes(interpreter)
    sources = [path for path in paths if path.suffix in suffixes]
    found: dict[Path, str] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(limit):
            if suffixes is _PYTHON:
                await _find_in_python(interpreter, sources, found, ready)
            else:
                await _find_in_javascript(interpreter, sources, found)
    # A name with a newline could imitate one of our messages.
    return {path: text.replace(str(path), printable(str(path))) for path, text in found.items()}


def _suffixes(interpreter: str) -> tuple[str, ...]:
    return _JAVASCRIPT if Path(interpreter).name.startswith("node") else _PYTHON


def _checker(python: str) -> list[str]:
    return [python, *_OPTIONS, _PROGRAM]


async def _find_in_python(
    python: str, sources: Collection[Path], found: dict[Path, str], ready: Awaitable[Process | None] | None
) -> None:
    if not sources:
        return
    question = b"".join(os.fsencode(path) + b"\0" for path in sources)
    answer = b"" if ready is None else await _ask(await ready, question)
    # The process that was started in advance may have been killed in the meantime.
    answer = answer or await _ask(await _start(_checker(python)), question)
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
            report = (await _ask(await _start([node, "--check", str(path)], errors=True))).decode(errors="replace")
            error = _JAVASCRIPT_ERROR.match(report)
            if error is not None and not any(text in error[0] for text in _OTHER_FORMATS):
                found[path] = error[0]

    async with asyncio.TaskGroup() as tasks:
        for number in range(_AT_ONCE):
            tasks.create_task(check(), name=f"node --check {number}")


async def _start(argv: Sequence[str], *, errors: bool = False) -> Process | None:
    """Start a program of which `_ask` reads the output (with ``errors``, the standard error), if it can be run."""
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    out, err = (null, pipe) if errors else (pipe, null)
    # Options for the command, such as --inspect, do not apply to the check.
    env = {name: value for name, value in os.environ.items() if name != "NODE_OPTIONS"}
    try:
        return await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=out, stderr=err, env=env, start_new_session=True
        )
    except OSError as error:
        _log.debug("cannot run %s: %s", argv[0], error)
        return None


async def _ask(process: Process | None, question: bytes = b"") -> bytes:
    """Return what ``process`` answers, which is nothing if there is none. Afterwards, the process has ended."""
    if process is None:
        return b""
    try:
        out, err = await process.communicate(question)
    finally:
        await _kill(process)
    return out or err or b""


async def _kill(process: Process) -> None:
    """Kill a process, unless it has ended."""
    if process.returncode is None:
        # Kill the whole group, because other processes in it would keep the pipes open.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # Unlike wait(), this also closes the pipes.
        await process.communicate()
