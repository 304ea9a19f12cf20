"""The soak: one program with everything in it, and somebody who does to it what should never happen, for a long time.

``python -m tests.soak --seconds 1800`` (`make soak`). The program is `program`, with its parts in `webhooks`, `works`,
`tree`, `pooling`, `routes` and `witness`; what it says of itself goes through `notes`. It is run by `storm`, life after
life (`lives`, `courses`), under what `blows` and `senders` throw at it. What has to be true stands in `ledger` (at any
time) and in `calm` (when everything has come to rest), and that nothing grows, in `samples`.
"""
