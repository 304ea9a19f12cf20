"""The parts of a supervisor: the `loop` that decides, each `child`, `stopping` them, and the streams of `watch`.

The path of a crash:

1. `BaseWorker._finish` creates the `Exit`, and `SupervisorLoop._worker_changed` posts it as a message.
2. `SupervisorLoop._worker_ended` handles the message, and `verdict` decides from the policy of the child.
3. `SupervisorLoop._schedule_restart` counts the restart in the circuit breaker of the child and in the `Budget`.
4. `Child.take_delay` returns the backoff. With a strategy other than one_for_one, `Stopper` stops the siblings first.
5. `Child.begin_start` creates and starts a new worker, and `SupervisorLoop._start_done` handles the outcome.
"""

__all__: list[str] = []
