"""Restart a command when files below a directory change.

Try it::

    python examples/hot_reload.py examples/site python examples/site/app.py

Saving several files at the same time causes one restart. Two runs of the command never overlap. Ctrl+C stops the
command and the program.
"""

import sys

from lifecycle import Debounce, FileBatch, FileWatchSource, ProcessWorker, Router, merge_files, run


class App:
    """Runs the command again after each change, one run at a time."""

    def __init__(self, *argv: str) -> None:
        self.argv = argv
        self.worker: ProcessWorker | None = None

    async def run(self) -> None:
        """Start the command when the program starts. The lifetime stops the last run."""
        await self.restart()

    async def restart(self) -> None:
        """Stop the process and its children, and start a new worker, because a worker runs only once."""
        if self.worker is not None:
            await self.worker.stop()
        self.worker = ProcessWorker("app", *self.argv, output=lambda line, _stream: print("|", line, flush=True))
        await self.worker.start()


def main(directory: str, *argv: str) -> None:
    """Watch ``directory`` and run ``argv`` until Ctrl+C."""
    app, router = App(*argv), Router()
    router.add_source(FileWatchSource(directory))

    @router.on("file/*", debounce=Debounce(0.2, max_wait=2, merge=merge_files), busy="restart")
    async def reload(batch: FileBatch) -> None:
        print("changed:", ", ".join(path.name for path in batch.changes), flush=True)
        await app.restart()

    run(app, router)


if __name__ == "__main__":
    if len(sys.argv) < 3:  # noqa: PLR2004  # this file, the directory, the command
        sys.exit(f"usage: {sys.argv[0]} DIRECTORY COMMAND...")
    main(*sys.argv[1:])
