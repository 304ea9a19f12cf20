"""Sources of events: signals, input lines, a prompt, webhooks, files, timers, health checks and queues.

A source is an async iterable of events, a function that returns one, or an object with ``async def run(emit)``. Each
module in this package contains one source. The libraries that a source needs are imported only when it starts.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "lifecycle.errors": "InvalidBody Refused SourceClosed SourceFailed VerificationError",
        "lifecycle.events.sources": "Source",
        ".base": "BaseSource",
        ".files": "DEFAULT_IGNORES FileWatchSource",
        ".health": "HealthCheckSource",
        ".inbox": "Inbox",
        ".input": "InputSource",
        ".prompt": "PromptSource",
        ".queue": "QueueSource",
        ".signals": "SignalSource",
        ".signatures": "GitHub GitLab Hmac Slack StandardWebhooks Stripe",
        ".schedule": "ScheduleSource",
        ".ticker": "TickerSource",
        "._webhook_rules": "Limits",
        ".webhook": "WebhookSource",
    },
)
