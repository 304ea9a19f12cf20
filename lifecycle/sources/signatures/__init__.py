"""Webhook signatures. The verifiers are pure functions of the headers and body.

A verifier has a method ``verify(headers, body, *, now)``. The header names are in lower case, the body is unchanged,
and ``now`` is in seconds since the epoch. It returns the delivery's id, or ``""`` if the scheme has none. If the
request is not valid, it raises `VerificationError`. It never raises any other error. It does not use the network, read
the clock or log anything.

Each scheme also has a method ``sign(body, *, now, delivery_id)``, which returns the headers that its own ``verify``
accepts. Use it in senders and in tests of receivers.
"""

from __future__ import annotations

from lifecycle.errors import VerificationError
from lifecycle.sources.signatures.schemes import GitHub, GitLab, Hmac, Slack, Stripe, Verifier
from lifecycle.sources.signatures.standard import StandardWebhooks

__all__ = ["GitHub", "GitLab", "Hmac", "Slack", "StandardWebhooks", "Stripe", "VerificationError", "Verifier"]


def __dir__() -> list[str]:
    return __all__
