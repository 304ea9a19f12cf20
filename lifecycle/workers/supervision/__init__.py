"""The parts of a supervisor: decisions (`loop`), children (`child`), stops (`stopping`), and event streams (`watch`).

When a child crashes, this is what happens:

1. `BaseWorker._finish` creates the `Exit`, and `SupervisorLoop._worker_changed` posts it as a message.
2. `SupervisorLoop._worker_ended` handles the message, and `verdict` applies the child's restart policy.
3. `SupervisorLoop._schedule_restart` counts the restart in the child's circuit breaker and in the `Budget`.
4. `Child.take_delay` returns the backoff. With a strategy other than one_for_one, `Stopper` stops the siblings first.
5. `Child.begin_start` creates and starts a new worker, and `SupervisorLoop._start_done` handles the outcome.
"""

__all__: list[str] = []
