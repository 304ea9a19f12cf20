"""The event log: the last events of a program, the outcome of each, and why an event was not handled.

`log` has the `EventLog` that readers use, `recorder` follows the events by hooks, `entries` are what readers get,
`summaries` their texts, `files` writes them to disk, and `explanations` answers why nothing happened.
"""

__all__: list[str] = []
