"""The event log: a program's last events, the outcome of each, and the reasons why an event is not handled.

`log` defines `EventLog`, the public class. `recorder` follows the events through hooks, `entries` defines the records
that readers receive, and `summaries` formats their texts. `files` writes events to disk, and `explanations` explains
what happens to a topic.
"""

__all__: list[str] = []
