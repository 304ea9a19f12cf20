"""One HTTP server, for `WebhookSource` and `ProbeServer`: from its socket to its clean end.

`listener` has the socket and `connections` the clients, whatever they are answered; `probes` answers probes. For
webhooks `server` joins the listener with `requests`: `admission` makes an event of a request, which is brought into its
lane while `under_way` keeps count, and `answers` has the words. What imports aiohttp is itself imported when a server
starts: `hosts`, `paths` and `rules` are what a source may use before.
"""

from __future__ import annotations

__all__: list[str] = []
