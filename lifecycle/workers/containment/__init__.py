"""Nothing outlives its parent: what ties the processes of a worker to it, and all of them to this program.

The layers, from the weakest: the process group that every worker has; the guard, a small process of our own that
kills what is left when this program is gone, however it went; and, where the system has them, a cgroup or a pid
namespace, which nothing can leave. A `Bond` puts them together for one worker.

`guards` is our side of the guard and `watchman` the program that it runs, which stands on `sweeps` and `cgroupfs` and
on nothing else of ours. `cookies` are what processes are known by, `moves` bring them into their `cgroups` beside the
start, `namespaces` are of pids. `holds` is for who needs the guard without a process of a worker.
"""

from __future__ import annotations

from lifecycle.workers.containment.bonds import Bond
from lifecycle.workers.containment.holds import Keep
from lifecycle.workers.containment.levels import Level

__all__ = ["Bond", "Keep", "Level"]
