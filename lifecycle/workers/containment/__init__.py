"""Containment: keeps a worker's processes together, and ends all of them when this program ends.

`containment` defines the levels and the class that process workers use. `guard` is our side of the guard process, and
`guard_main` is the program that it runs. `cgroup` manages cgroups. `process_scan` finds and kills remaining processes.
`guard_main` and `process_scan` import only the standard library.
"""

__all__: list[str] = []
