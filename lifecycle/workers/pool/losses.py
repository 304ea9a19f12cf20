"""A member that is no more, put into words for those who waited for it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from lifecycle.errors import RemoteError, WorkerLost
from lifecycle.workers.pool.requests import LinkClosed

if TYPE_CHECKING:
    from lifecycle.workers.model import Exit
    from lifecycle.workers.pool.members import Member

__all__ = ["cause", "loss", "lost", "warn_unstopped"]

_MIB = 1024 * 1024


def lost(member: Member, function: str, end: Exit) -> WorkerLost:
    """What the caller of ``function`` is told of ``member``, which ended with it."""
    return _lost(f"{member.id!r} was lost while it worked on {function!r}", member, end)


def cause(member: Member) -> Exception:
    """Why ``member``, which has ended, did so: what its target raised, if that was it."""
    end = member.end
    if end is None or not isinstance(end.error, Exception):
        return loss(f"{member.id!r} ended by itself", member)
    if isinstance(end.error.__cause__, RemoteError):
        return end.error.__cause__
    if isinstance(end.error.__cause__, LinkClosed):
        return _lost(str(end.error), member, end)
    return end.error


def loss(message: str, member: Member) -> WorkerLost:
    """The loss of ``member``, whose end is not known yet or does not matter."""
    return WorkerLost(message, rss=member.rss, stderr=member.link.pipes.tail())


def _lost(message: str, member: Member, end: Exit) -> WorkerLost:
    said = f"\nthe last of its stderr:\n{end.stderr.strip()}" if end.stderr.strip() else ""
    return WorkerLost(
        f"{message}: {_how_it_ended(member, end)}{said}",
        exit_code=end.exit_code,
        signal=end.signal,
        rss=member.rss,
        stderr=end.stderr,
    )


def _how_it_ended(member: Member, end: Exit) -> str:
    """How ``member`` ended, in a few words."""
    memory = "" if member.rss is None else f"; it last had {member.rss / _MIB:.0f} MiB of memory"
    if member.trouble:
        return f"{member.trouble}, and it was killed{memory}"
    if end.signal is not None:
        out = ", perhaps out of memory" if end.signal == 9 else ""  # noqa: PLR2004  # not every system has a name for it
        return f"it was killed by signal {end.signal}{out}{memory}"
    if end.exit_code is not None:
        return f"it exited with status {end.exit_code}{memory}"
    return f"it {end.status}{memory}"


def warn_unstopped(pool: object) -> None:
    """Tell people that they have forgotten to stop ``pool``: its loop ends."""
    warnings.warn(f"{pool!r} was not stopped before its loop was closed", ResourceWarning, stacklevel=3, source=pool)
