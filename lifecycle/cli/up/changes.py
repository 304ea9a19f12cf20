"""Files that change restart the processes that watch them; which count is decided as for `lifecycle watch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle.cli.watch.gitignore import available
from lifecycle.cli.watch.rules import PathRules, absolute, own_output
from lifecycle.cli.watch.settings import Settings
from lifecycle.cli.watch.words import changed
from lifecycle.control import Debounce, Router, merge_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lifecycle.cli.messages import Voice
    from lifecycle.cli.up.processes import Process
    from lifecycle.control import FileBatch
    from lifecycle.events import Change

__all__ = ["watching"]

#: Act once it was quiet for so long, or after the other time where it never is.
_QUIET: Final = 0.1
_LONGEST_WAIT: Final = 2.0


def watching(
    processes: Sequence[Process],
    restart: Callable[[Sequence[str]], None],
    voice: Voice,
    *,
    logs: Sequence[int] = (),
) -> Router | None:
    """A router that has processes restarted by ``restart``, which does not wait; None if no process watches files."""
    watches = [_Watch(each, logs) for each in processes if each.watch]
    if not watches:
        return None
    from lifecycle.sources import FileWatchSource

    async def files(batch: FileBatch) -> None:
        concerned: list[str] = []
        for watch in watches:
            if changes := watch.of_interest(batch):
                voice.say(f"{changed(changes, watch.rules.name)}; restarting {watch.name}")
                concerned.append(watch.name)
        restart(concerned)

    router = Router("up")
    router.handle("file/*", files, debounce=Debounce(_QUIET, max_wait=_LONGEST_WAIT, merge=merge_files))
    router.add_source(FileWatchSource(*(path for watch in watches for path in watch.paths)))
    return router


class _Watch:
    """What one process watches."""

    def __init__(self, process: Process, logs: Sequence[int]) -> None:
        self.name = process.name
        self.paths = tuple(absolute(path, Path.cwd()) for path in process.watch)
        settings = Settings(command=process.argv, paths=self.paths)
        self.rules = PathRules(settings, Path.cwd(), git=available(), outputs=own_output(*logs))

    def of_interest(self, batch: FileBatch) -> dict[Path, Change]:
        """The changes that this one wants to know."""
        return {
            path: change
            for path, change in batch.changes.items()
            if any(path.is_relative_to(root) for root in self.paths) and self.rules.action(path) != "ignore"
        }
