"""Nothing outlives its parent: what holds the processes of a worker together, and ends all of them with this program.

`containment` has the levels and what a process worker calls, `guard` the guard process from our side and `guard_main`
its program, `cgroup` the cgroups. `process_scan`, which finds and kills what is left, stands on the standard library
alone, as `guard_main` does.
"""

__all__: list[str] = []
