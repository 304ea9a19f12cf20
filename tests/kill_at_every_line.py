"""Runs a program that gets one line further each time it is started, and is then killed.

``python -m tests.kill_at_every_line PROGRAM MEMORY ARGUMENT…`` runs PROGRAM. When it reaches a line of a function that
is not yet listed in the file MEMORY, it adds the line to MEMORY and kills itself with SIGKILL. Once MEMORY lists all
lines, the program runs to completion.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["run"]


def run(program: str, memory: Path) -> None:
    """Run ``program`` as the main module, and die before the first line that ``memory`` does not list."""
    died = set(memory.read_text(encoding="utf-8").split()) if memory.exists() else set[str]()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != program or frame.f_code.co_name == "<module>":
            return None
        if event == "line" and str(frame.f_lineno) not in died:
            with memory.open("a", encoding="utf-8") as file:
                file.write(f"{frame.f_lineno}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    _, program, memory, *arguments = sys.argv
    sys.argv = [program, *arguments]
    run(program, Path(memory))
