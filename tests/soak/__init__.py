"""The soak: a program that uses every package at once, and an attacker that injects faults for a long time.

``python -m tests.soak --seconds 1800`` (`make soak`). The program is `program`, with its parts in `webhooks`,
`flow_jobs`, `tree`, `pooling`, `routes` and `observer`. It records what it does through `notes`. `storm` runs it again
and again (`lives`, `scenario`), while `attacks` and `senders` disturb it. `history` checks what must hold at any time,
`quiet_checks` what must hold when nothing is running, and `samples` that nothing grows.
"""
