"""The event log: the last events of a program, the outcome of each, and the reasons why an event is not handled.

`log` defines `EventLog`, the public class. `recorder` follows the events by hooks, `entries` defines the records that
readers receive, and `summaries` their texts. `files` writes events to disk, and `explanations` explains what happens
to a topic.
"""

__all__: list[str] = []
