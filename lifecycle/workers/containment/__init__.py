"""Containment: keeps a worker's processes together, and ends all of them when this program ends.

`containment` defines the levels and the class that process workers use. `guard` starts and feeds the guard process,
which runs the program `guard_main`. `cgroup` manages cgroups, and `process_scan` finds and kills remaining processes.
`guard_main` and `process_scan` import only the standard library.
"""

__all__: list[str] = []
