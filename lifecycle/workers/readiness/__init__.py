"""When a process counts as ready: what `ProcessWorker` is told as ``ready=``, and the wait for it.

There is a module for each way: a port that accepts, a URL that answers, a line of output, a notice in systemd's form.
"""

from __future__ import annotations

from lifecycle.workers.readiness.conditions import Readiness, unready, wanted
from lifecycle.workers.readiness.lines import Line

__all__ = ["Line", "Readiness", "unready", "wanted"]
