"""The soak: a program that uses every package of the library and runs under injected faults for a long time.

``python -m tests.soak --seconds 1800`` (`make soak`). The program is `program`, with its parts in `webhooks`,
`flow_jobs`, `tree`, `pooling`, `routes` and `observer`. It records its actions through `notes`. `storm` runs the
program repeatedly (`lives`, `scenario`), while `attacks` and `senders` disturb it. `history` checks conditions that
must always hold. `quiet_checks` checks conditions that must hold while the program is idle. `samples` checks that
resource usage does not grow.
"""
