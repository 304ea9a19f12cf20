"""How a supervisor decides; `Supervisor` itself, which is asked from outside, is in `lifecycle.workers.supervisor`.

One task, the `owner`, has a `mailbox`. A start (`starts`, in their order: `start_queue`) ends in a child that runs;
what ends (`ends`) is judged by the truth tables of `policy`, and started again (`restarts`) as far as `budgets` allow.
`slots` are the places of children, `closing` empties them, `admin` and `suspension` are what is asked for by hand,
`probes` ask after health, and `watches` are told of it all.
"""

__all__: list[str] = []
