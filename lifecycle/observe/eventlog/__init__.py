"""The event log: a program's latest events, what happened to each one, and why an event is not handled.

`log` defines `EventLog`, the public class. `recorder` follows events by means of hooks, `entries` defines the records
that readers receive, and `summaries` formats short texts for them. `files` writes events to disk, and `explanations`
explains what happens to events with a given topic.
"""

__all__: list[str] = []
