"""Who sent a webhook: signatures over a request's headers and body, as pure functions of what arrived.

A verifier has ``verify(headers, body, *, now)``: header names in lower case, the body as it was sent, ``now`` in
seconds since the epoch. It returns the id of the delivery, or ``""`` where the scheme has none, and on any input
whatsoever raises `VerificationError` and nothing else. No network, no clock, no logging here.

Each scheme also has ``sign(body, *, now, delivery_id)``, which returns the headers that its own ``verify`` accepts:
for the tests of who receives, and for who sends.
"""

from __future__ import annotations

from lifecycle.errors import VerificationError
from lifecycle.sources.signatures.plain import GitHub, GitLab, Hmac
from lifecycle.sources.signatures.stamped import Slack, Stripe
from lifecycle.sources.signatures.standard import StandardWebhooks
from lifecycle.sources.signatures.verifiers import Verifier

__all__ = ["GitHub", "GitLab", "Hmac", "Slack", "StandardWebhooks", "Stripe", "VerificationError", "Verifier"]
