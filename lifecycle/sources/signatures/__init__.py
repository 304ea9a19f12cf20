"""Signatures of webhooks: verifiers over headers and body, as pure functions.

A verifier has ``verify(headers, body, *, now)``: header names in lower case, the body as it was sent, ``now`` in
seconds since the epoch. It returns the id of the delivery, or ``""`` if the scheme has none. For any other input it
raises `VerificationError`, and never another error. It uses no network, no clock and no log.

Each scheme also has ``sign(body, *, now, delivery_id)``, which returns the headers that its own ``verify`` accepts:
for tests of receivers, and for senders.
"""

from __future__ import annotations

from lifecycle.errors import VerificationError
from lifecycle.sources.signatures.schemes import GitHub, GitLab, Hmac, Slack, Stripe, Verifier
from lifecycle.sources.signatures.standard import StandardWebhooks

__all__ = ["GitHub", "GitLab", "Hmac", "Slack", "StandardWebhooks", "Stripe", "VerificationError", "Verifier"]


def __dir__() -> list[str]:
    return __all__
