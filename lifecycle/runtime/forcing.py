"""The end by force: no cleaning up, status 1, whatever state the program is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle import hooks
from lifecycle.runtime.alarms import Alarm
from lifecycle.runtime.dumps import write_stderr
from lifecycle.runtime.ownership import owner

if TYPE_CHECKING:
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["force_exit"]

#: Seconds that the receivers of `hooks.forced_exit` get at most: they run where anything may be locked.
_GRACE = 0.25

_STATUS = 1


def force_exit(sender: Lifetime, reason: str) -> None:
    """Announce it, give the terminal back, and end the process; callable in any thread and in signal handlers."""
    handlers = owner()
    backstop = Alarm(_GRACE, lambda: handlers.end_process(_STATUS))
    write_stderr(f"ended by force: {reason}\n")
    hooks.forced_exit.announce(sender, status=_STATUS, reason=reason)
    handlers.terminal.restore()
    handlers.end_process(_STATUS)
    # Only a test's stand-in returns.
    backstop.cancel()
