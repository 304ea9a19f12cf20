"""Whether changed Python files can be compiled, asked of the very Python that will run them.

A file that cannot is no reason to stop a process that works. The check compiles in a process of its own: it runs
nothing and writes nothing, and where it gets no answer in time it finds no fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["broken_files"]

_log = logging.getLogger("lifecycle.cli")

#: Plain enough for every Python 3; paths come in as JSON, what is wrong goes out as JSON.
_PROGRAM = """
import json, sys, traceback
found = {}
for path in json.load(sys.stdin):
    try:
        with open(path, "rb") as stream:
            source = stream.read()
    except OSError:
        continue
    try:
        compile(source, path, "exec", 0, True)
    except (SyntaxError, ValueError) as error:
        found[path] = "".join(traceback.format_exception_only(type(error), error))
    except (MemoryError, RecursionError):
        pass
json.dump(found, sys.stdout)
"""
#: Isolated, without site, no bytecode, no warnings: the process itself will show those.
_OPTIONS = ("-I", "-S", "-B", "-W", "ignore", "-c")


async def broken_files(python: str, paths: Collection[Path], *, limit: float = 5.0) -> dict[Path, str]:
    """The files among ``paths`` that ``python`` cannot compile, with what it says (file, line, caret).

    Files that are no ``.py`` or that are gone are left out. After ``limit`` seconds, or where ``python`` cannot be
    asked, nothing is found.
    """
    sources = [str(path) for path in paths if path.suffix == ".py"]
    if not sources:
        return {}
    answer = await _ask(python, json.dumps(sources).encode(), limit)
    try:
        said: dict[str, str] = json.loads(answer)
    except ValueError:
        _log.debug("%s gave no answer about the syntax of %s", python, sources)
        return {}
    return {Path(path): text.rstrip() for path, text in said.items()}


async def _ask(python: str, question: bytes, limit: float) -> bytes:
    """What the program prints; nothing where it cannot be run or takes too long."""
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            python, *_OPTIONS, _PROGRAM, stdin=pipe, stdout=pipe, stderr=null, start_new_session=True
        )
    except OSError as error:
        _log.debug("cannot run %s: %s", python, error)
        return b""
    try:
        async with asyncio.timeout(limit):
            output, _ = await process.communicate(question)
    except TimeoutError:
        return b""
    finally:
        if process.returncode is None:
            # The whole group: what it started would keep the pipes open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return output
