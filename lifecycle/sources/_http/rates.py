"""How often a client may ask: one number a client, whatever the rate."""

from __future__ import annotations

__all__ = ["Rates"]

#: Clients that are remembered; beyond it the one that was quiet for longest is forgotten.
_CLIENTS = 10_000


class Rates:
    """At most ``count`` requests in any ``seconds`` from each client, spent at once or evenly.

    Kept as the time until which a client's allowance is spent (the generic cell rate algorithm).
    """

    def __init__(self, count: int, seconds: float, *, clients: int = _CLIENTS) -> None:
        self._seconds = seconds
        self._each = seconds / count
        self._clients = clients
        # Until when each is booked; the first has been quiet for longest.
        self._booked: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._booked)

    def wait(self, client: str, now: float) -> float:
        """0 if ``client`` may ask now, which is counted; else the seconds until it may."""
        booked = max(self._booked.pop(client, now), now)
        wait = booked + self._each - self._seconds - now
        # A hair of slack: sums of floats must not refuse the last of `count`.
        refused = wait > self._each * 1e-6
        self._booked[client] = booked if refused else booked + self._each
        if len(self._booked) > self._clients:
            del self._booked[next(iter(self._booked))]
        return wait if refused else 0.0
