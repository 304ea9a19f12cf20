"""What is said while the processes run: which of them started, which ended, and what follows from that."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lifecycle.cli.up.outcomes import how
from lifecycle.workers.model import FINAL, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lifecycle.cli.messages import Voice
    from lifecycle.cli.up.processes import Process
    from lifecycle.events import StatusEvent
    from lifecycle.workers import WorkerState

__all__ = ["Narrator"]


class Narrator:
    """Tells of ``processes``; ``stops_all`` says whether all are stopped because one has ended."""

    def __init__(
        self, processes: Sequence[Process], voice: Voice, stops_all: Callable[[Process, WorkerState], bool]
    ) -> None:
        self._processes = {each.name: each for each in processes}
        self._voice = voice
        self._stops_all = stops_all

    def tell(self, event: StatusEvent) -> None:
        """Say what is news; restarts and what is given up are in the library's log."""
        process = self._processes.get(event.component)
        if process is None:
            return
        state = cast("WorkerState", event.state)
        if event.new != event.old:
            self._moved(process, event, state)
        elif state.circuit == "open" and process.watch:
            self._voice.say(f"{process.name} waits for the next change")

    def _moved(self, process: Process, event: StatusEvent, state: WorkerState) -> None:
        match event.new:
            case Status.STARTING if process.ready is not None:
                self._voice.say(f"starting {process.name}")
            case Status.RUNNING if event.old == Status.STARTING:
                self._started(process, state)
            case Status.STOPPING:
                self._voice.say(f"stopping {process.name}")
            case new if new in FINAL:
                self._ended(process, event.old, state)
            case _:
                pass

    def _started(self, process: Process, state: WorkerState) -> None:
        word = "started" if process.ready is None else "ready:"
        again = f", restart {state.restarts}" if state.restarts else ""
        self._voice.good(f"{word} {process.name} (pid {state.pid}{again})")

    def _ended(self, process: Process, old: str, state: WorkerState) -> None:
        if state.status is Status.STOPPED:
            return
        told = f"{process.name} {how(state)}"
        if old == Status.STOPPING:
            self._voice.warn(told)
        elif old == Status.STARTING:
            # Only at first is that the end of all.
            self._voice.bad(told + self._others(stop=not state.restarts))
        elif not process.comes_back(failed=state.error is not None):
            stop = self._stops_all(process, state)
            then = "; waiting for a change" if process.watch else self._others(stop=stop)
            (self._voice.good if state.error is None else self._voice.bad)(told + then)

    def _others(self, *, stop: bool) -> str:
        return "; stopping the others" if stop and len(self._processes) > 1 else ""
