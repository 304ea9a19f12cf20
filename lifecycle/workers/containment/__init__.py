"""Containment, which keeps a worker's processes together and kills all of them when this program ends.

`containment` defines the containment levels and the class that process workers use. `guard` starts the guard process
and provides it with data. The guard runs the program `guard_main`. `cgroup` manages cgroups, and `process_scan` finds
and kills remaining processes. `guard_main` and `process_scan` only import the standard library.
"""

__all__: list[str] = []
