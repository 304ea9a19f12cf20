"""One HTTP server, for `WebhookSource` and `ProbeServer`: from its socket to its clean end.

`listener` holds the socket and `connections` the clients, whatever is answered. Of webhooks, `server` joins that with
`requests`, which takes a request from its path to its lane; `probes` answers probes. What imports aiohttp is itself
imported when a server starts: `hosts`, `paths` and `rules` are what a source may use before.
"""

from __future__ import annotations

__all__: list[str] = []
