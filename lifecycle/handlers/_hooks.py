"""The hooks of a transition: called one after the other, all or none."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from lifecycle._util import name_of
from lifecycle.handlers._calls import adapted

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.handlers._calls import Call

__all__ = ["Hooks"]

_log = logging.getLogger("lifecycle.handlers")


class _Hook:
    """A function that takes part in a transition, and the one that takes back what it did."""

    def __init__(self, fn: Callable[..., Any], role: str) -> None:
        self.name = name_of(fn)
        self.call: Call = adapted(fn, role)
        self.undo: _Hook | None = None


class Hooks:
    """What is called for the transition ``there`` and for the one ``back``, each in the order of registration."""

    def __init__(self, there: str, back: str) -> None:
        self._opposite = {there: back, back: there}
        self._hooks: dict[str, list[_Hook]] = {there: [], back: []}

    def add(self, way: str, fn: Callable[..., Any]) -> None:
        """Call ``fn`` for ``way``; it and the first of the other way that nothing takes back yet take back each other.

        Raises:
            TypeError: when it cannot be called without arguments.
        """
        hook = _Hook(fn, f"a hook of on_{way}")
        self._hooks[way].append(hook)
        for other in self._hooks[self._opposite[way]]:
            if other.undo is None:
                hook.undo, other.undo = other, hook
                return

    def add_pair(self, there: Callable[..., Any], back: Callable[..., Any]) -> None:
        """Call one for either way; they take back each other."""
        pair = [_Hook(fn, f"{way}()") for way, fn in zip(self._hooks, (there, back), strict=True)]
        pair[0].undo, pair[1].undo = pair[1], pair[0]
        for hooks, hook in zip(self._hooks.values(), pair, strict=True):
            hooks.append(hook)

    async def run(self, way: str, *, timeout: float | None) -> None:
        """Call all for ``way`` within ``timeout`` seconds; where one fails, take back what those before it did."""
        done: list[_Hook] = []
        try:
            async with asyncio.timeout(timeout):
                for hook in list(self._hooks[way]):
                    await hook.call()
                    done.append(hook)
        except BaseException as error:
            await _roll_back(done, error, timeout)
            raise


async def _roll_back(done: list[_Hook], error: BaseException, timeout: float | None) -> None:
    """Take back what ``done`` did, the latest first; what fails now is logged and noted on ``error``."""
    for hook in reversed(done):
        if hook.undo is None:
            continue
        try:
            async with asyncio.timeout(timeout):
                await hook.undo.call()
        except Exception as second:  # noqa: BLE001  # the first error is the one to tell
            _log.exception("rolling back %s with %s failed", hook.name, hook.undo.name)
            error.add_note(f"and {hook.undo.name}, which should have taken back {hook.name}, failed: {second!r}")
