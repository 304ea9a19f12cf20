"""Where events come from.

A source is an async iterable of events, a function that returns one, or an object with ``async def run(emit)``.
Each file here is one such object; what it needs beyond the standard library is imported when it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle._lazy import lazy_names

if TYPE_CHECKING:
    from lifecycle.errors import SourceClosed, SourceFailed, VerificationError
    from lifecycle.sources.base import BaseSource
    from lifecycle.sources.files import DEFAULT_IGNORES, FileWatchSource
    from lifecycle.sources.health import HealthCheckSource
    from lifecycle.sources.inbox import Inbox
    from lifecycle.sources.input import InputSource
    from lifecycle.sources.probes import ProbeServer
    from lifecycle.sources.prompt import PromptSource
    from lifecycle.sources.queue import QueueSource
    from lifecycle.sources.signals import SignalSource
    from lifecycle.sources.signatures import GitHub, GitLab, Hmac, Slack, StandardWebhooks, Stripe
    from lifecycle.sources.ticker import TickerSource
    from lifecycle.sources.webhook import Limits, WebhookSource

__all__ = [
    "DEFAULT_IGNORES",
    "BaseSource",
    "FileWatchSource",
    "GitHub",
    "GitLab",
    "HealthCheckSource",
    "Hmac",
    "Inbox",
    "InputSource",
    "Limits",
    "ProbeServer",
    "PromptSource",
    "QueueSource",
    "SignalSource",
    "Slack",
    "SourceClosed",
    "SourceFailed",
    "StandardWebhooks",
    "Stripe",
    "TickerSource",
    "VerificationError",
    "WebhookSource",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BaseSource": "lifecycle.sources.base",
        "DEFAULT_IGNORES": "lifecycle.sources.files",
        "FileWatchSource": "lifecycle.sources.files",
        "GitHub": "lifecycle.sources.signatures",
        "GitLab": "lifecycle.sources.signatures",
        "HealthCheckSource": "lifecycle.sources.health",
        "Hmac": "lifecycle.sources.signatures",
        "Inbox": "lifecycle.sources.inbox",
        "InputSource": "lifecycle.sources.input",
        "Limits": "lifecycle.sources.webhook",
        "ProbeServer": "lifecycle.sources.probes",
        "PromptSource": "lifecycle.sources.prompt",
        "QueueSource": "lifecycle.sources.queue",
        "SignalSource": "lifecycle.sources.signals",
        "Slack": "lifecycle.sources.signatures",
        "SourceClosed": "lifecycle.errors",
        "SourceFailed": "lifecycle.errors",
        "StandardWebhooks": "lifecycle.sources.signatures",
        "Stripe": "lifecycle.sources.signatures",
        "TickerSource": "lifecycle.sources.ticker",
        "VerificationError": "lifecycle.errors",
        "WebhookSource": "lifecycle.sources.webhook",
    },
)
