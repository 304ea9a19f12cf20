"""Where in a flow of flows something stands, and so what comes before it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Frame", "precedes"]


class Frame(NamedTuple):
    """One flow among those around and in it."""

    #: The flow around it, and its place there.
    around: Frame | None
    place: int
    pattern: str
    #: For each item, those that follow right after it.
    edges: tuple[tuple[int, ...], ...]

    #: How many flows are around it.
    depth: int = 0


def precedes(before: tuple[Frame, int], after: tuple[Frame, int]) -> bool:
    """Whether the one place is always done with when the other begins."""
    depth = min(before[0].depth, after[0].depth)
    (frame, place), (other, position) = _level(before, depth), _level(after, depth)
    while frame is not other:
        assert frame.around is not None
        assert other.around is not None
        (frame, place), (other, position) = (frame.around, frame.place), (other.around, other.place)
    return _in_order(frame, place, position)


def _level(where: tuple[Frame, int], depth: int) -> tuple[Frame, int]:
    """The same place, seen from a flow around it that is no deeper than ``depth``."""
    frame, place = where
    for _ in range(frame.depth - depth):
        assert frame.around is not None
        frame, place = frame.around, frame.place
    return frame, place


def _in_order(frame: Frame, place: int, position: int) -> bool:
    if place < 0:
        # The retry, which is before everything in its flow.
        return position >= 0
    if position < 0 or frame.pattern == "unordered":
        return False
    if frame.pattern == "linear" or position in frame.edges[place]:
        return place < position
    return _reaches(frame.edges, place, position)


def _reaches(edges: tuple[tuple[int, ...], ...], place: int, position: int) -> bool:
    seen, ways = {place}, [place]
    while ways:
        for each in edges[ways.pop()]:
            if each == position:
                return True
            if each < position and each not in seen:
                seen.add(each)
                ways.append(each)
    return False
