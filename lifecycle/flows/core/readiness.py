"""Whose turn it is: two counters for each node, kept right with every change, so that nobody ever walks the graph.

A node is settled when it and all before it are done: then those right after it wait for one less. It is quiet when
neither it nor any after it has left something to undo: then those right before it wait for one less to be undone. "All
before it", not only those right before it: a task that was put in front of one that is done already comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lifecycle.flows.core.cells import Cell
    from lifecycle.flows.plans.compiling import Plan

__all__ = ["Readiness"]


class Readiness:
    """The counters of the cells of one run, and the cells whose turn it may be."""

    def __init__(self, plan: Plan, cells: list[Cell]) -> None:
        for cell, node in zip(cells, plan.nodes, strict=True):
            cell.before = tuple(cells[number] for number in node.predecessors)
            cell.after = tuple(cells[number] for number in node.successors)
        # Those that became ready, in the order in which they did; some may be so no more.
        self.found: list[Cell] = []
        self.count(cells)

    def count(self, cells: list[Cell]) -> None:
        """Begin anew with the states that the cells have."""
        for cell in cells:
            cell.unsettled = sum(not each.settled for each in cell.before)
            cell.settled = cell.is_settled()
        for cell in reversed(cells):
            cell.unquiet = sum(not each.quiet for each in cell.after)
            cell.quiet = cell.is_quiet()
        self.found = [cell for cell in cells if cell.is_ready()]

    def changed(self, cell: Cell) -> None:
        """Set right what depends on the state and the intention of ``cell``."""
        if cell.is_settled() is not cell.settled:
            self._settle(cell)
        if cell.is_quiet() is not cell.quiet:
            self._quieten(cell)
        if cell.is_ready():
            self.found.append(cell)

    def _settle(self, cell: Cell) -> None:
        ways = [cell]
        while ways:
            turned = ways.pop()
            if turned.is_settled() is turned.settled:
                continue
            turned.settled = not turned.settled
            step = -1 if turned.settled else 1
            for each in turned.after:
                each.unsettled += step
                if each.is_settled() is not each.settled:
                    ways.append(each)
                elif not each.unsettled and each.is_ready():
                    self.found.append(each)

    def _quieten(self, cell: Cell) -> None:
        ways = [cell]
        while ways:
            turned = ways.pop()
            if turned.is_quiet() is turned.quiet:
                continue
            turned.quiet = not turned.quiet
            step = -1 if turned.quiet else 1
            for each in turned.before:
                each.unquiet += step
                if each.is_quiet() is not each.quiet:
                    ways.append(each)
                elif not each.unquiet and each.is_ready():
                    self.found.append(each)
