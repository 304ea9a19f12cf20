"""Containment: keeps the processes of a worker together, and ends all of them when this program ends.

`containment` defines the levels and the class that process workers use. `guard` is our side of the guard process, and
`guard_main` is its program. `cgroup` manages cgroups. `process_scan` finds and kills remaining processes. Like
`guard_main`, it imports only the standard library.
"""

__all__: list[str] = []
