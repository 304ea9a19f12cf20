"""What a webhook source keeps on disk, so that a crash loses nothing that it has accepted.

Here are the settings; ``_inbox`` carries them out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lifecycle.backoff import Backoff

if TYPE_CHECKING:
    import os

__all__ = ["Inbox"]


_BACKOFF = Backoff(initial=1.0, maximum=300.0)


@dataclass(frozen=True, slots=True)
class Inbox:
    """Keeps what a `WebhookSource` accepts in the SQLite file at ``path`` until it was handled.

    A request is on disk before it is answered with 202, and stays there until its handler has returned, through a
    debounce window too. What a crash or a shutdown left is delivered again at the next start, in the order in which it
    was accepted, with a higher ``delivery().attempt``: at least once, so handlers should not mind a second time. An
    attempt is counted when the receiver takes a letter up, also where its handler was never reached.

    A handler that raises gets the event again after ``backoff``, whose figures for restarts have no meaning here, and
    others go first meanwhile. After ``max_attempts`` failures the event is a dead letter, which stays in the file
    until somebody replays or drops it (``lifecycle inbox``); so is, at once, one that no route wants. What a crash cut
    short is no failure. What a route gave up on purpose (``busy="drop"``, ``busy="restart"``) is done.

    The id that a verifier gave (of Stripe and Slack: the signed time and body) is remembered for ``dedupe`` seconds,
    together with the path: a request that repeats it is answered like the first and not delivered. 0 remembers nothing.

    One process at a time delivers from a file. Another one accepts meanwhile, and goes on with everything that is
    left when the first has ended. ``<path>-lock`` beside the file is for that.

    Raises:
        ValueError: for figures that would deliver nothing or make no sense.
    """

    path: str | os.PathLike[str]
    #: Seconds.
    dedupe: float = 600.0
    max_attempts: int = 5
    backoff: Backoff = _BACKOFF

    def __post_init__(self) -> None:
        if not 0 <= self.dedupe < math.inf:
            raise ValueError(
                f"dedupe={self.dedupe!r} is no time to remember ids for; give seconds, or 0 for not at all"
            )
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts={self.max_attempts!r} would deliver nothing; give 1 or more")
