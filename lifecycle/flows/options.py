"""`Options`: how flows are run, said once for all of them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How flows are run.

    Raises:
        ValueError: for a concurrency that lets nothing run.
    """

    #: How many steps of one flow may be at work at once; None: all that can.
    concurrency: int | None = None
    #: Whether a failure ends the flow as it is, with nothing undone.
    never_resolve: bool = False
    #: Whether a retry that says to revert leaves it to the one above, or else has everything undone.
    defer_reverts: bool = False

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"Options(concurrency={self.concurrency!r}) lets nothing run; give 1 or more, or None")
