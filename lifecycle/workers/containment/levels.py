"""The names of the ways to hold a worker's processes together, and which of them can be meant."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Level"]


class Level(StrEnum):
    """How far the processes of a worker are held together, by what was asked for or what was got."""

    #: Asked for: a cgroup where we may make one, else the guard, else the group.
    AUTO = "auto"
    #: Its process group; what leaves the group, or outlives a program that was killed, is out of reach.
    GROUP = "group"
    #: And a guard, which kills group, descendants and whoever carries the worker's cookie when this program is gone.
    GUARD = "guard"
    #: And a cgroup (version 2), which only a process leaves that writes to the cgroup above, as our user and root can.
    CGROUP = "cgroup"
    #: And a pid namespace, which nothing leaves.
    PIDNS = "pidns"
    #: It may outlive us.
    DETACHED = "detached"

    @classmethod
    def wanted(cls, contain: str, *, detached: bool) -> Level:
        """What is asked for by these two settings of a worker.

        Raises:
            ValueError: if they make no sense.
        """
        known = [str(level) for level in cls if level is not cls.DETACHED]
        if contain not in known:
            raise ValueError(f"contain={contain!r} is unknown; give one of {', '.join(map(repr, known))}")
        if not detached:
            return cls(contain)
        if contain != cls.AUTO:
            raise ValueError(f"contain={contain!r} and detached=True contradict each other; give one of them")
        return cls.DETACHED
