"""`FakeSignals`: signals that a test sends to a program in the same process, without involving the system."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, ClassVar

from lifecycle.runtime.signals import SignalRegistry, replace_registry

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["FakeSignals"]


class FakeSignals(SignalRegistry):
    """Replaces the system's signals inside a ``with`` block. Also works in virtual time.

    Lifetimes and signal sources that are started inside the block receive the signals that you send with `send`. A
    forced exit is recorded in ``exits`` instead of ending the test. ``terminal`` sets whether there is a controlling
    terminal, which determines what SIGHUP means.
    """

    # Nothing else can replace these handlers, and a timer would advance virtual time.
    check_every: ClassVar[float | None] = None

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal
        self._real: SignalRegistry | None = None
        #: The exit statuses of forced exits. A real process would have exited at the first one.
        self.exits: list[int] = []

    def __enter__(self) -> Self:
        self._real = replace_registry(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._real is not None, "a block is left after it was entered"
        replace_registry(self._real)

    def send(self, signum: int = signal.SIGINT) -> None:
        """Deliver ``signum`` now.

        Raises:
            LookupError: if nothing receives the signal. It would have killed a real process.
        """
        if not self._receivers.get(signum):
            name = signal.Signals(signum).name
            raise LookupError(f"{name} is not handled; start a lifetime or a SignalSource in this block first")
        self.deliver(signum)

    def can_take(self, signum: int) -> bool:
        """Accept any signal, in any thread."""
        return signum in signal.valid_signals()

    def handles_sigterm(self) -> bool:
        """Return whether a receiver in this block handles SIGTERM."""
        return bool(self._receivers.get(signal.SIGTERM))

    def send_sigterm(self) -> None:
        """Deliver SIGTERM to the receivers, if there are any. The test's process continues."""
        self.deliver(signal.SIGTERM)

    def end_process(self, status: int) -> None:
        """Record that the process would have exited."""
        self.exits.append(status)

    def has_terminal(self) -> bool:
        """Return the value that the test has set."""
        return self._terminal

    def is_ignored(self, signum: int) -> bool:  # noqa: ARG002  # the signature of the base class
        """Return False, because no signal is ignored."""
        return False

    def _install(self, signum: int) -> Any:  # noqa: ARG002  # the signature of the base class
        return signal.SIG_DFL

    def _holds(self, signum: int) -> bool:  # noqa: ARG002  # the signature of the base class
        return True

    def _restore(self, signum: int, before: Any) -> None:
        """Do nothing, because no handler was replaced."""
