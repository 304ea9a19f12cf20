"""The shutdown hooks: last in, first out, each isolated from the others' errors."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from lifecycle import hooks
from lifecycle._naming import name_of

if TYPE_CHECKING:
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["Cleanup", "Hook", "Runnable"]

_log = logging.getLogger("lifecycle.runtime")


class Runnable(Protocol):
    """An object that cleans up in ``run``, async or plain."""

    def run(self) -> object:
        """Clean up."""
        ...


#: What `on_shutdown` takes: a function without arguments, async or plain, or an object with such a ``run``.
Hook: TypeAlias = Callable[[], object] | Runnable


class Cleanup:
    """The hooks of one lifetime, each of which runs once."""

    def __init__(self, sender: Lifetime, patience: float, *, cut: bool = False) -> None:
        self._sender = sender
        # Seconds after which a hook that still runs is named, and cancelled if it is to be cut.
        self._patience, self._cut = patience, cut
        self._hooks: list[tuple[str, Callable[[], object]]] = []
        self._closed = False

    def __len__(self) -> int:
        return len(self._hooks)

    def add(self, hook: Hook) -> None:
        """Run ``hook`` before those that were added earlier.

        Raises:
            RuntimeError: once they have run.
            TypeError: for what cannot be called.
        """
        if self._closed:
            raise RuntimeError(f"the shutdown hooks have run; {hook!r} came too late to be called")
        given: Any = hook
        call = given if callable(given) else getattr(given, "run", None)
        if not callable(call):
            raise TypeError(f"{hook!r} is no shutdown hook; give a function without arguments, async or plain")
        self._hooks.append((name_of(call), call))

    def discard(self, hook: Callable[[], object]) -> None:
        """Do not run ``hook``, if it has not run yet."""
        self._hooks = [each for each in self._hooks if each[1] != hook]

    def close(self) -> None:
        """Take no more: they would never run."""
        self._closed = True

    async def run(self, left: Callable[[], float]) -> None:
        """Run all, also those that are added meanwhile; ``left`` says how many seconds the shutdown still has."""
        while self._hooks:
            name, call = self._hooks.pop()
            await self._run_one(name, call, min(self._patience, left()))

    async def _run_one(self, name: str, call: Callable[[], object], patience: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        failure: BaseException | None = None
        slow = _Slowness(name, patience)
        naming = loop.call_later(patience, slow.tell)
        try:
            async with asyncio.timeout(patience if self._cut else None):
                result = call()
                if inspect.isawaitable(result):
                    await result
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # isolated: logged and announced
            failure = error
            _log.error("the shutdown hook %s failed: %r", name, error, exc_info=error)
        duration = loop.time() - began
        naming.cancel()
        if duration > patience:  # it blocked the loop, or the timer would have told
            slow.tell()
        hooks.hook_finished.announce(self._sender, hook=name, duration=duration, error=failure)


class _Slowness:
    """Names a hook that takes long, once."""

    def __init__(self, name: str, patience: float) -> None:
        self._name, self._patience, self._told = name, patience, False

    def tell(self) -> None:
        if not self._told:
            self._told = True
            _log.warning("the shutdown hook %s takes more than %.1f s", self._name, self._patience)
