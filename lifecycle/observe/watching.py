"""`watch`: what changes in a program, as it happens and not more often than somebody can look at it.

One observation is shared by all who watch the same lifetime. It listens to hooks only as long as it knows of nothing
new: under load that is one announcement an interval, whatever goes on.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from lifecycle import hooks
from lifecycle.observe._snapshot.nodes import nodes
from lifecycle.observe.snapshots import lifetime_here, snapshot_of

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from lifecycle.observe._snapshot.views import Snapshot
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["Update", "Watch", "watch"]

_Nodes = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Update:
    """What is new since the reader last looked."""

    snapshot: Snapshot
    #: The nodes that are new or different, by id; None for one that is gone. The first has all.
    nodes: dict[str, dict[str, Any] | None]


def watch(*components: object, interval: float = 0.2) -> Watch:
    """What changes from now on in the program, or in ``components``: an async iterator of `Update`.

    The first comes at once and has everything; the next when something has changed, at least ``interval`` seconds
    later. Who is slow gets the newest state and what is different from the one that he got before, never a backlog.
    ``async with watch() as changes`` ends it with the block.

    Raises:
        LookupError: without components, outside a lifetime.
        ValueError: for an interval that is not above 0.
    """
    if not interval > 0:
        raise ValueError(f"watch(interval={interval!r}) leaves no time to look; give seconds above 0")
    if components:
        return Watch(Observation(None, components), interval)
    return Watch(_observation_of(lifetime_here()), interval)


class Watch:
    """What `watch` returns; one reader."""

    def __init__(self, observation: Observation, interval: float) -> None:
        self._observation: Observation | None = observation
        self._interval = interval
        self._seen: _Sight | None = None
        # When it may have the next, by the loop's clock.
        self._due = 0.0
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration, also of who waits in it."""
        self._observation = None
        self._ended.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Update:
        while self._observation is not None:
            looking = asyncio.ensure_future(self._observation.newer(self._seen, self._interval, self._due))
            ending = asyncio.ensure_future(self._ended.wait())
            try:
                await asyncio.wait([looking, ending], return_when=asyncio.FIRST_COMPLETED)
            finally:
                looking.cancel()
                ending.cancel()
                await asyncio.wait([looking, ending])
            if not looking.cancelled():
                sight = looking.result()
                self._due = asyncio.get_running_loop().time() + self._interval
                change = sight.since(self._seen)
                self._seen = sight
                if change:
                    return Update(sight.snapshot, change)
        raise StopAsyncIteration


class _Sight:
    """What was seen at one moment."""

    def __init__(self, snapshot: Snapshot, at: float) -> None:
        self.snapshot = snapshot
        self.nodes: _Nodes = nodes(snapshot)
        #: By the loop's clock.
        self.at = at
        # What was different from the sight that most readers saw before.
        self._known: tuple[_Sight, dict[str, dict[str, Any] | None]] | None = None

    def since(self, before: _Sight | None) -> dict[str, dict[str, Any] | None]:
        """What is different from ``before``."""
        if before is None:
            return dict(self.nodes)
        if self._known is None or self._known[0] is not before:
            self._known = before, _difference(before.nodes, self.nodes)
            # Or each would keep the one before it, and that the one before, for ever.
            before._known = None  # noqa: SLF001  # one of ours
        return self._known[1]


def _difference(old: _Nodes, new: _Nodes) -> dict[str, dict[str, Any] | None]:
    changed: dict[str, dict[str, Any] | None] = {key: node for key, node in new.items() if old.get(key) != node}
    for key in old.keys() - new.keys():
        changed[key] = None
    return changed


class Observation:
    """Looks at components for all who want to know, not more often than the first of them wants."""

    def __init__(self, lifetime: Lifetime | None, components: tuple[object, ...] = ()) -> None:
        # Weakly: what watches a lifetime does not keep it.
        self._lifetime = None if lifetime is None else ref(lifetime)
        self._components = components
        self._loop = asyncio.get_running_loop()
        self._latest: _Sight | None = None
        self._news = asyncio.Event()
        self._listening = False

    async def newer(self, than: _Sight | None, interval: float, due: float) -> _Sight:
        """What is to be seen, if that may be something else than ``than``, but not before it is ``due``."""
        while True:
            latest, now = self._latest, self._loop.time()
            if latest is None:
                return self._look(now)
            if latest is than and not self._news.is_set():
                await self._news.wait()
            elif now < due:
                await asyncio.sleep(due - now)
            elif latest is than or (self._news.is_set() and now >= latest.at + interval):
                return self._look(now)
            else:
                return latest

    def _look(self, now: float) -> _Sight:
        self._news.clear()
        self._listen()
        lifetime = None if self._lifetime is None else self._lifetime()
        components = self._components if lifetime is None else lifetime.components()
        self._latest = sight = _Sight(snapshot_of(lifetime, components), now)
        return sight

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            for hook in _TELLING:
                hook.connect(self._stirred, weak=True)

    def _stirred(self, _sender: object, **_: object) -> None:
        """Something has changed, here or in a thread."""
        if _running_loop() is self._loop:
            self._hear()
        else:
            with suppress(RuntimeError):  # the loop may be closed by now
                self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        """Know that there is something new, which is enough until somebody looks."""
        if self._listening:
            self._listening = False
            for hook in _TELLING:
                hook.disconnect(self._stirred)
        self._news.set()


#: All that are announced, but for those that tell of nothing that can be seen.
_TELLING: tuple[hooks.Hook, ...] = tuple(
    hook
    for hook in (getattr(hooks, name) for name in hooks.__all__)
    if isinstance(hook, hooks.Hook) and hook not in (hooks.forced_exit, hooks.hook_finished, hooks.critical_finished)
)

#: So that those who watch one lifetime find each other; it holds nothing, and forgets by itself.
_shared: WeakKeyDictionary[Lifetime, ref[Observation]] = WeakKeyDictionary()


def _observation_of(lifetime: Lifetime) -> Observation:
    known = _shared.get(lifetime)
    observation = None if known is None else known()
    if observation is None:
        observation = Observation(lifetime)
        _shared[lifetime] = ref(observation)
    return observation


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
